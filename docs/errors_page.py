"""Makes docs/reference/errors.md: every error code, with its cause and its cure.

The codes are collected from the source. The page is not made if a code has no entry in `CURES`, or an entry no code.
"""

# ruff: noqa: E501 - a code has one line, with its cause and its cure

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from footplate.contract.lifecycle import Reason

REPOSITORY = Path(__file__).parents[1]

CURES: dict[str, dict[str, tuple[str, str]]] = {
    "Answers of the service": {
        "bundle_in_use": ("A job that has not ended needs this bundle.", "Wait for the job, or cancel it."),
        "cannot_answer": ("The model cannot answer this request.", "The message says why, and the hint what would work."),
        "cannot_pin": ("The artifact store refuses the link that keeps a checkpoint.", "Use a file system with hard links."),
        "checkpoint_damaged": ("The files of the checkpoint differ from its manifest.", "Use an older checkpoint."),
        "checkpoint_gone": ("The checkpoint was deleted.", "List the checkpoints and choose another one."),
        "checkpoint_in_use": ("A job is starting from this checkpoint.", "Delete it after that job has started."),
        "checkpoint_needed": ("The job needs this checkpoint to continue.", "Delete it after the job has ended."),
        "checkpoint_pinned": ("The checkpoint is pinned.", "Unpin it first: `footplate checkpoints JOB --unpin ID`."),
        "body_too_large": ("The body has more bytes than allowed.", "Put data into files, and upload them."),
        "code_is_off": ("The service accepts no code.", "The operator sets `FOOTPLATE_CODE=on`."),
        "conflict": ("The job's state does not allow this action.", "`allowed` in the answer lists the actions that work."),
        "file_in_use": ("A job that has not ended names this file.", "Wait for the job, or cancel it."),
        "forbidden": ("The key lacks a scope or belongs to another project.", "Use a key with the scope that is named."),
        "headers_too_large": ("The headers of the request are too large.", "Send fewer or shorter headers."),
        "host_not_allowed": ("The `Host` header is not a name of this service.", "Use the address that `make up` prints."),
        "idempotency_key_reused": ("The `Idempotency-Key` was used with another body.", "Use a new key for a new job."),
        "internal": ("The service has a fault.", "Search its log for the `request_id` of the answer."),
        "invalid_bundle": ("The zip cannot be used.", "`errors` lists each problem with its path."),
        "invalid_file": ("The file of rows cannot be used.", "`errors` says what would work."),
        "invalid_form": ("The form of an upload cannot be read.", "`curl -F file=@rows.jsonl …` sends a form that can."),
        "invalid_header": ("A header has a value that cannot be used.", "`errors` names it."),
        "model_not_found": ("No base model or fine-tuned model has this name.", "`models.list()` lists them."),
        "upload_ended": ("The upload in parts is complete, cancelled or older than an hour.", "Create a new upload."),
        "invalid_query": ("The query has an unknown or wrong parameter.", "`errors` lists each, with the nearest name."),
        "invalid_spec": ("The body has mistakes.", "`errors` lists each with its place; the next section explains their codes."),
        "keys_not_in_force": ("The service was started without a key.", "Set `FOOTPLATE_API_KEY` and start it again."),
        "node_in_use": ("The node sends heartbeats, or holds attempts.", "Stop its worker, and remove it once it is shown as lost."),
        "not_available_yet": ("The request is understood, but not built yet.", "`detail` says what to use instead."),
        "not_found": ("No such thing exists, or it belongs to another project.", "Check the id, and the key's project."),
        "no_checkpoint": ("The job has no such checkpoint.", "`footplate checkpoints JOB` lists those that it has."),
        "not_servable": ("A checkpoint of this job can only be loaded by the job's own code.", "Download it."),
        "not_served_yet": ("The model was not loaded, or had no time, within the `wait` of the request.", "Try again; `detail` says what it waits for."),
        "range_not_satisfiable": ("The range lies outside of the file.", "The answer says how many bytes the file has."),
        "serving_busy": ("As many requests as allowed wait for this checkpoint.", "Wait for the seconds in `Retry-After`."),
        "serving_ended": ("The process that answered has ended, or its answer was lost.", "Send the request again; the session's job says why."),
        "serving_failed": ("The checkpoint cannot be loaded.", "`footplate show` of the session's job has the error."),
        "store_unreadable": ("The artifact store cannot be read.", "Mount it, or fix its permissions."),
        "store_unwritable": ("The artifact store cannot be written.", "Mount it, add space, or fix its permissions."),
        "too_many_requests": ("The key or address sends too many requests.", "Wait for the seconds in `Retry-After`."),
        "too_many_webhooks": ("The project has as many webhooks as it may.", "Delete one."),
        "unauthorized": ("The request has no valid key.", "Send `Authorization: Bearer …`, or set `FOOTPLATE_API_KEY`."),
        "unavailable": ("The database is unreachable.", "Try again after `Retry-After`; `/readyz` says since when."),
        "unknown_component": ("No component has this name.", "Use one of the known names that the answer lists."),
        "unsupported_media_type": ("The body is of another type.", "Send `Content-Type: application/json`."),
        "version_changed": ("The job has changed since you read it.", "Read it again, and repeat the change."),
        "webhook_not_answered": ("The receiver of a webhook did not answer a test.", "The sentence says why."),
        "webhook_disabled": ("The webhook is disabled.", "Enable it first."),
    },
    "Problems in a body or query": {
        "bad_cursor": ("The cursor is not one that the service gave.", "Use `next_cursor` of the page before."),
        "bad_hub_name": ("The name of a model or dataset on a hub is malformed.", "`hub://owner/name`, or `hub://name`."),
        "bad_name": ("The name of a file or variable cannot be used.", "The hint has one that can."),
        "bad_url": ("The URL cannot be used.", "An https URL of an allowed host."),
        "bundle_too_large": ("The zip is larger than allowed.", "Leave out data; upload it as files."),
        "cannot_change": ("A fork cannot change this field.", "Create a new job, or fork with `--weights`."),
        "cannot_continue": ("The job has no checkpoint from which another one can start.", "Let it save one first."),
        "code_is_off": ("The spec names code, and the service accepts none.", "The operator sets `FOOTPLATE_CODE=on`."),
        "damaged": ("The zip is damaged.", "Make it again."),
        "disagreement": ("Two places of the spec say different things.", "Remove one of both."),
        "does_not_divide": ("A number of processes does not divide another.", "Choose numbers that divide."),
        "duplicate_id": ("Two optimizers have one id.", "Give each its own."),
        "duplicate_job": ("A job is named twice.", "Name it once."),
        "duplicate_key": ("A JSON object has a key twice.", "Remove one."),
        "duplicate_name": ("The zip has a name twice.", "Make it again."),
        "duplicate_part": ("An upload names a part twice.", "Name each part once."),
        "invalid_training_file": ("A line cannot be trained on.", "The message names the line and the reason."),
        "not_supported": ("OpenAI's API has this value, and Footplate has not.", "Leave it out, or take a value from the hint."),
        "other_content": ("The parts do not have this MD5.", "Upload the parts again."),
        "unknown_part": ("The upload has no part with this id.", "Use the ids of its own parts."),
        "wrong_size": ("The parts have another size than the upload.", "Send all parts, or create the upload with their size."),
        "duplicate_parameter": ("A query parameter is given twice.", "Give it once."),
        "empty_bundle": ("The zip has no files.", "Zip the folder with your code."),
        "empty_file": ("The file has no rows.", "Upload a file with rows."),
        "env_not_allowed": ("A job may not set this variable.", "The operator lists it in `FOOTPLATE_ENV_ALLOWED`."),
        "file_missing": ("No node has this path.", "Check the name below `data://` or `models://`."),
        "hub_is_off": ("Nodes may not download from a hub.", "The operator sets `FOOTPLATE_HUB=on`."),
        "invalid_form": ("The form cannot be read.", "Send one field named `file`."),
        "invalid_json": ("The body is not JSON.", "The answer has line and column."),
        "invalid_parameter": ("A query parameter has a wrong value.", "The hint has a right one."),
        "key_in_url": ("A key is in the URL.", "Send it as a header, or use a ticket."),
        "lone_surrogate": ("A text has half of a character.", "Send valid Unicode."),
        "missing": ("A required field is missing.", "Add it; the hint has an example."),
        "name_taken": ("A module of the bundle has the name of an installed one.", "Rename it."),
        "needs_bundle": ("The spec names your code, but no bundle.", "Submit with `--code DIR`, or set `code.bundle`."),
        "needs_own_code": ("This field takes code of yours only.", "Name it as `module:Attr`."),
        "no_main_loss": ("No optimizer uses the loss of the model.", "Leave out `loss` for one of them."),
        "no_reader": ("The suffix of a path says no format.", "Name a reader, such as `files/csv`."),
        "no_column": ("A map names a column that the uploaded file lacks.", "Choose one of the columns that the message lists."),
        "no_row_left": ("A split would leave out every row of the training set.", "Choose a smaller `test_size`, such as 0.1."),
        "no_such_loop": ("The job has a loop of your own, which takes no commands.", "Cancel it and submit a changed spec."),
        "no_tokenizer": ("The service sees no such tokenizer.", "Leave it out, or name a folder below `models://`."),
        "not_a_job": ("This argument is for scripts, not for jobs.", "Remove it; the server sets it."),
        "not_a_requirement": ("An entry of `code.requires` is not a requirement.", "Write it as for pip: `einops>=0.8`."),
        "not_a_schedule_here": ("This optimizer cannot use that schedule.", "The hint lists those that work."),
        "not_a_zip": ("The body is not a zip.", "`zip -r code.zip my_folder`."),
        "not_available_yet": ("The argument is known, but not built yet.", "The hint says what to use instead."),
        "not_in_bundle": ("The bundle has no such module.", "The hint lists the modules that it has."),
        "not_installed": ("No node has the library that this needs.", "The hint has the command that installs it."),
        "not_jsonl": ("A line is not a JSON object.", "One object per line, without a list around them."),
        "not_parquet": ("The file is not complete Parquet.", "Write it again, and close the writer."),
        "not_parted": ("The optimizers do not cover each parameter once.", "The message lists the parameters."),
        "not_patchable": ("A fork cannot change this field.", "The hint says how to change it."),
        "not_reachable": ("A webhook may not call this address.", "The operator lists it in `FOOTPLATE_WEBHOOKS_ALLOW`."),
        "not_text": ("The file is not text.", "Upload JSON lines, CSV, TSV or Parquet."),
        "not_utf8": ("The file is not UTF-8.", "Convert it: `iconv -t utf-8`."),
        "not_well_formed": ("The value has another form.", "The hint has an example."),
        "not_your_project": ("The key belongs to another project.", "Leave out `project`, or use another key."),
        "nothing_to_change": ("The body changes nothing.", "Name a field to change."),
        "nothing_to_do": ("The order is empty.", "Name `save`, `evaluate` or `set`."),
        "nul": ("A text has a NUL character.", "Remove it."),
        "out_of_range": ("A number is too small or too large.", "The message has the limits."),
        "package_missing": ("No node has a package of `code.requires`.", "Install it on the nodes."),
        "packed": ("The file is compressed.", "Unpack it first."),
        "path_outside_root": ("A path leads out of its root.", "Remove `..` and absolute parts."),
        "path_without_root": ("A path has no root.", "Begin it with `data://`, `models://` or `hub://`."),
        "server_owned": ("The server sets this argument.", "Remove it."),
        "state_is_an_end": ("This filter is for states in which jobs change.", "Filter by tag, or list the jobs."),
        "store_not_allowed": ("Nodes may not download from this host.", "The operator lists it in `FOOTPLATE_STORES_ALLOW`."),
        "too_deep": ("The JSON is nested too deep.", "Nest it less."),
        "too_long": ("A text or the body is too long.", "Put data into files."),
        "too_many": ("A list has too many entries.", "The message has the limit."),
        "too_many_files": ("The zip has too many files.", "Leave out what training does not need."),
        "too_many_jobs": ("One stream names too many jobs.", "Use a filter, or several streams."),
        "too_many_parts": ("An upload below `/v1` has too many parts.", "Begin a new upload, with larger parts."),
        "too_short": ("A text or list is too short.", "The message has the limit."),
        "unknown_argument": ("The component has no such argument.", "The hint has the nearest name."),
        "unknown_bundle": ("The project has no bundle with this hash.", "Upload it, or submit with `--code`."),
        "unknown_choice": ("The value is not one of the choices.", "The hint has the nearest one."),
        "unknown_component": ("No component has this name.", "The hint has the nearest name."),
        "unknown_field": ("The spec has no such field.", "The hint has the nearest name."),
        "unknown_file": ("The project has no file with this id.", "Upload the rows; the answer has the id."),
        "unknown_job": ("The project has no job with this id.", "`footplate ls` lists the jobs."),
        "unknown_kind": ("No event or file has this kind.", "The hint lists the kinds."),
        "unknown_parameter": ("The route has no such query parameter.", "The hint has the nearest name."),
        "unknown_secret": ("No node holds a secret with this name.", "The operator adds it to a node's environment."),
        "unknown_state": ("Jobs have no such state.", "The hint lists the states."),
        "unpacks_too_large": ("The zip unpacks to more than allowed.", "Leave out data; upload it as files."),
        "which_ones": ("A bulk request names jobs and filters, or neither.", "Give one of both."),
        "wrong_row": ("The trainer cannot use a row of an uploaded file.", "The message names the line, and the hint the columns."),
        "wrong_type": ("The value has another type.", "The message says which type is needed."),
    },
    "Errors of a job": {
        "checkpoint_corrupt": ("A checkpoint does not match its checksums.", "Nothing: the job continues from an older one."),
        "crashed": ("The training process died by a signal, or by an exit code that is not the program's own decision.", "Read `footplate logs JOB --stream stderr`."),
        "dataset_changed": ("A URL has another file than when the job began.", "Put the old file back and resume, or fork the job."),
        "dataset_error": ("Data is missing, changed or unreadable.", "Restore the rows and resume, or fork the job."),
        "dataset_not_allowed": ("The server of a URL, or a hub, refuses the node.", "Name a URL that needs no password, or set the nodes' `HF_TOKEN`."),
        "dataset_not_found": ("A URL or a dataset of a hub does not exist.", "Look for a misspelt name."),
        "dataset_too_large": ("A URL's file is larger than the node allows.", "The operator raises `FOOTPLATE_STORES_MAX_MB`, or use `data://`."),
        "error": ("Your code, model or data raised an exception, or ended the program by sys.exit with 2, a message, or too early with 0.", "`footplate show JOB` has the traceback."),
        "hub_cache_unusable": ("The node cannot write downloaded files.", "The operator makes room on the node's disk."),
        "hub_is_off": ("The node may not download from a hub.", "The operator sets `FOOTPLATE_HUB=on` on the nodes."),
        "hub_unreachable": ("The hub gave no complete answer for five minutes.", "Resume the job. The operator checks `HF_ENDPOINT` and proxies of the nodes."),
        "journal_full": ("Too many events wait on the node's disk.", "Free space or bring Redis back, then resume."),
        "no_valid_checkpoint": ("No checkpoint of the job can be verified.", "Submit the job again."),
        "node_lost": ("The node sent no heartbeat for a whole lease.", "Nothing: the job is tried again, up to `retry.max_attempts`."),
        "not_buildable": ("A part of the spec cannot be built from its arguments.", "The message names the part; submit a corrected spec."),
        "oom": ("The GPU or the machine has no memory left.", "Halve `per_device_train_batch_size`, double `gradient_accumulation_steps`."),
        "own_code_error": ("Your code cannot be imported or called.", "The message has file and line."),
        "poison": ("Three attempts in a row were lost without a new checkpoint.", "Read the attempts' errors, then resume."),
        "second_model": ("TRL's reference or reward model cannot be sharded.", "Use DDP, or train an adapter."),
        "stalled": ("There was no progress for the job's `stall_limit`.", "Look for a deadlock, or raise `resources.stall_limit`."),
        "store_refused": ("The operator does not allow a URL's host, its address, or the target of a redirect.", "The operator lists the host in `FOOTPLATE_STORES_ALLOW`."),
        "store_unreachable": ("The server of a URL gave no complete answer for five minutes.", "Resume the job. The operator checks the nodes' network."),
        "time_limit": ("The job ran for its `time_limit`.", "`footplate resume JOB` with a higher `time_limit`."),
    },
    "Errors of the command and the client": {
        "bad_settings": ("A setting is wrong.", "The message names it, and what would work."),
        "download_failed": ("A file did not arrive whole.", "The same command continues the download."),
        "imported_too_early": ("A library was imported before `footplate.install()`.", "Call it before the other imports."),
        "unreachable": ("The service does not answer at this address.", "Start it, or set `FOOTPLATE_URL`."),
        "usage": ("The command cannot be understood.", "The message has an example."),
        "wait_timeout": ("The job did not end in the given time.", "Wait longer; the job continues."),
    },
}  # fmt: skip
"""The cause and the cure of each code, by where the code appears."""


def errors_page(notice: str) -> str:
    """Returns the page. Raises ValueError if it and the source have different codes."""
    explained = {code for codes in CURES.values() for code in codes}
    in_source = source_codes()
    if unexplained := in_source - explained:
        raise ValueError(f"add the cause and the fix of {sorted(unexplained)} to docs/errors_page.py")
    if stale := explained - in_source - {reason.value for reason in Reason}:
        raise ValueError(f"docs/errors_page.py explains {sorted(stale)}, and the source has no such codes")
    return "\n".join(
        [
            "# Errors, with cause and fix",
            notice,
            "Every error has a stable code, a sentence, and a hint that says what would work. Programs compare the code.",
            "A message may be reworded.",
            "\nThe service answers with `application/problem+json`. `code` and `detail` are about the whole request.",
            "`errors` lists every mistake in a body at once, each with a JSON pointer to its place.",
            *(line for title, codes in CURES.items() for line in section(title, codes)),
            "",
        ]
    )


def section(title: str, codes: dict[str, tuple[str, str]]) -> Iterator[str]:
    yield f"\n## {title}\n"
    yield "| code | cause | cure |"
    yield "|---|---|---|"
    for code, (cause, cure) in sorted(codes.items()):
        yield f"| `{code}` | {cause} | {cure} |"


@cache
def source_codes() -> frozenset[str]:
    """Returns the codes of all error classes and of all problems that the source creates."""
    return frozenset(
        code
        for folder in ("footplate", "service", "worker")
        for path in (REPOSITORY / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for code in (class_code(node) if isinstance(node, ast.ClassDef) else call_code(node))
    )


def class_code(node: ast.ClassDef) -> Iterator[str]:
    """Yields the `code` of a class whose base is an error."""
    names = {base.id for base in node.bases if isinstance(base, ast.Name)}
    for statement in node.body if names - {"BaseModel"} else []:
        match statement:
            case ast.Assign(targets=[ast.Name(id="code")], value=ast.Constant(value=str(code))):
                yield code


def call_code(node: ast.AST) -> Iterator[str]:
    """Yields the code of a call such as `Problem(pointer, "too_long", …)` or `NotFetched("hub_is_off", …)`."""
    match node:
        case ast.Call(func=ast.Name(id="Problem" | "require_known"), args=[_, ast.Constant(value=str(code)), *_]):
            yield code
        case ast.Call(func=ast.Name(id="NotFetched"), args=[ast.Constant(value=str(code)), *_]):
            yield code
        case ast.Call(func=ast.Name(id="_refuse"), keywords=keywords):
            yield "invalid_json"
            yield from (
                keyword.value.value
                for keyword in keywords
                if keyword.arg == "code" and isinstance(keyword.value, ast.Constant)
            )
