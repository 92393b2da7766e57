"""Writes the pages that are made from the code. `make fix` runs it.

`pages` lists the pages. Most texts are the docstrings below fields and states in the code. A test compares the pages
with the code.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import tomllib
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prometheus_client.metrics_core import Metric
from pydantic_core import PydanticUndefined

from docs import diagram
from docs.errors_page import errors_page
from docs.performance_page import performance_page, plot
from docs.rest_page import rest_page
from docs.spec_page import libraries, spec_page
from footplate.contract import events, lifecycle
from footplate.contract.arguments import NOT_YET, TrainingArguments
from footplate.contract.arguments.legacy import LEGACY, RenamedArgument
from footplate.contract.arguments.not_supported import CHOICES_NOT_YET
from footplate.contract.components import GROUPS
from footplate.contract.help_texts import meanings
from footplate.contract.settings import Settings, variable
from footplate.runtime.catalogue import describe
from footplate.sdk.settings import ClientSettings
from footplate.trainer.overrides import NEVER_CALLED
from service.api.openapi import describe as describe_api
from service.app import routes
from service.counters import Counts, prometheus_name
from service.metrics import Meters
from service.settings import ServiceSettings
from worker.settings import WorkerSettings

FOLDER = Path(__file__).parent
MADE = "<!-- Made by docs/generate.py; edit the code that it is made from. -->\n"


def pages() -> dict[str, str]:
    api = describe_api(routes())
    return {
        "reference/settings.md": settings_page(),
        "reference/lifecycle.md": lifecycle_page(),
        "reference/events.md": events_page(),
        "reference/parity.md": parity_page(),
        "reference/metrics.md": metrics_page(),
        "reference/components.md": components_page(),
        "reference/spec.md": spec_page(MADE),
        "reference/errors.md": errors_page(MADE),
        "reference/rest.md": rest_page(MADE, api),
        "explanation/performance.md": performance_page(MADE),
        "explanation/performance.svg": plot(),
        "explanation/processes.svg": diagram.processes(),
        "explanation/way.svg": diagram.way(),
        "reference/states.svg": diagram.states(),
        "openapi.json": json.dumps(api, indent=1, ensure_ascii=False) + "\n",
    }


def settings_page() -> str:
    return "\n".join(
        [
            "# Every setting",
            MADE,
            "Settings are environment variables, read once at the start. An empty variable counts as unset. A wrong",
            "value stops the start with a message that names the variable, and so does a `FOOTPLATE_` variable that no",
            "process reads. `make up` passes its environment to every process that it starts. A path may begin with",
            "`~`, the home folder of the user.",
            "\n## The service: `python -m service api | control | all | migrate | backup`\n",
            *table(ServiceSettings),
            "\n## A node: `python -m worker`\n",
            *table(WorkerSettings),
            "\n## The client and the command: `from footplate import Client`, `footplate`\n",
            *table(ClientSettings),
            "",
        ]
    )


def table(settings: type[Settings]) -> list[str]:
    rows, meaning = ["| variable | default | meaning |", "|---|---|---|"], meanings(settings)
    for name, field in settings.model_fields.items():
        default = field.default if field.default_factory is None else "this host's name"
        default_text = (
            ""
            if default in (None, "", PydanticUndefined)
            else f"`{default}`"
            if field.default_factory is None
            else default
        )
        rows.append(f"| `{variable(name)}` | {default_text} | {one_line(meaning.get(name))} |")
    return rows


def lifecycle_page() -> str:
    moves = [
        f"| {old} | {', '.join(sorted(new)) or 'nothing, because it is final'} |"
        for old, new in lifecycle.MOVES.items()
    ]
    return "\n".join(
        [
            "# The life of a job",
            MADE,
            "A job is in one of eight states, and has a reason beside its state. One guarded SQL statement makes each",
            "move. A request that comes too late moves nothing, and its answer says so.",
            "\n![The states of a job and the moves between them, as the table below lists them](states.svg)",
            "\nMost jobs go this way: queued → starting → running → succeeded.",
            "A pause is running → stopping → paused, and a lost node is running → queued.",
            "\n## States\n",
            *members(lifecycle.JobState),
            "\n## Moves\n",
            "| from | to |",
            "|---|---|",
            *moves,
            "\n## Reasons\n",
            *members(lifecycle.Reason),
            "\n## Kinds of stop\n",
            *members(lifecycle.StopMode),
            "",
        ]
    )


def events_page() -> str:
    envelope = [f"`{name}`" for name in events.Event.model_fields]
    return "\n".join(
        [
            "# Events",
            MADE,
            "An event is one immutable fact about a job. Every event has the same envelope: "
            + ", ".join(envelope)
            + ".",
            "`no` numbers the events of a job without gaps, and is the cursor of readers. The node's own numbers are",
            "`attempt`, `source` and `seq`.",
            'NaN and infinities travel as the strings `"NaN"`, `"Infinity"`, `"-Infinity"`. Readers ignore kinds that',
            "they do not know.",
            "\n## Kinds\n",
            *members(events.Kind),
            "",
        ]
    )


def metrics_page() -> str:
    own = [metric for metric in Meters().registry.collect() if metric.name.startswith("footplate")]
    rows = [f"| `{scraped_name(metric)}` | {metric.type} | {metric.documentation} |" for metric in own]
    control = [
        f"| `{prometheus_name(field.name)}` | {field.metadata['meaning']} | {field.metadata['advice']} |"
        for field in dataclasses.fields(Counts)
    ]
    return "\n".join(
        [
            "# What Prometheus may scrape",
            MADE,
            "`GET /metrics` of any API process. What to alert on: [monitor the service](../guides/monitor.md).",
            "\n## Of control: counted since its start\n",
            "| name | meaning | what to do when it moves |",
            "|---|---|---|",
            *control,
            "\n`retries` and `jobs_failed` have the label `reason`, one of those in [lifecycle](lifecycle.md). Any API",
            "process shows these numbers: its own control's where it has one, else what control leaves in Redis.",
            "\n## Of the API process that is asked, and of SQL\n",
            "| name | type | meaning |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def scraped_name(metric: Metric) -> str:
    """Returns the name under which Prometheus scrapes a metric. That of a counter has a suffix."""
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def components_page() -> str:
    """Returns the page of components, from the registered entry points and their signatures."""
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["project"]
    lines = []
    for group in GROUPS:
        registered = project["entry-points"].get(f"footplate.{group}", {})
        lines += [f"\n## {group.capitalize()}\n"] if registered else []
        for name, target in sorted(registered.items()):
            lines += component(group, name, target)
    return "\n".join(
        [
            "# What a spec may name",
            MADE,
            "All fields of a spec, with an example each: [the job spec](spec.md).\n",
            'Write a name alone, or `{"use": name, "args": {…}}`. `GET /components` lists the same, and what the',
            "plugins on your nodes add. `POST /jobs` refuses a wrong name or argument. Paths are names under",
            "`data://` or `models://`, or [on a hub](../guides/hub.md). A component that needs another library names",
            "the extra that has it.",
            *lines,
            "",
        ]
    )


def component(group: str, name: str, target: str) -> list[str]:
    module, _, attribute = target.partition(":")
    factory = getattr(importlib.import_module(module), attribute)
    with libraries():
        described = describe(group, name, factory)
    library = getattr(factory, "needs", None)
    extra = f" Needs the extra `{library[1]}`." if library else ""
    arguments = [
        f"  - `{argument}`{default(described.args, argument)}: {one_line(schema.get('description'))}"
        for argument, schema in described.args["properties"].items()
    ]
    return [f"- **{name}**: {one_line(described.summary)}{extra}", *arguments]


def default(args: dict[str, Any], name: str) -> str:
    return "" if name in args["required"] else f" = `{json.dumps(args['properties'][name].get('default'))}`"


OURS = frozenset({"logging_dir", "max_nan_steps", "keep_last", "keep_best", "save_in_background"})
"""Training arguments that Hugging Face does not have, or, like logging_dir, no longer has."""

OTHER_DEFAULTS = {
    "restore_callback_states_from_checkpoint": "a resume is the same run, so callbacks continue with their counters",
}
"""Training arguments whose default differs from Hugging Face's, with the reason."""


def parity_page() -> str:
    """Returns the parity page, from the tables of refused and mapped arguments. A test checks the tables."""
    meaning = {name: one_line(text) for name, text in meanings(TrainingArguments).items()}
    names = [field.name for field in dataclasses.fields(TrainingArguments)]  # type: ignore[arg-type]
    supported = [f"| `{name}` | {meaning.get(name, '')} |" for name in names if name not in OURS]
    declined = [f"| `{name}` | {one_line(entry.instead)} |" for name, entry in NOT_YET.items()]
    choices = [
        f"| `{field}` | {', '.join(f'`{value}`' for value in sorted(values) if values[value] == instead)} | {instead} |"
        for field, values in CHOICES_NOT_YET.items()
        for instead in dict.fromkeys(values.values())
    ]
    older = [
        f"| `{name}` | {'mapped' if isinstance(entry, RenamedArgument) else 'declined'} | {one_line(entry.instead)} |"
        for name, entry in sorted(LEGACY.items())
    ]
    methods = [f"| `{name}` | {one_line(instead)} |" for name, instead in NEVER_CALLED.items()]
    return "\n".join(
        [
            f"# Compared with `transformers.Trainer` {'.'.join(version('transformers').split('.')[:2])}",
            MADE,
            "A script changes its import, `from footplate import Trainer, TrainingArguments`, and sees its old curve:",
            "on one process, at the same seed, losses, norms, rates, metrics and weights are the same to the last bit",
            "(`tests/trainer/test_beside_transformers.py`). Whatever is not here is refused with what to use instead;",
            "nothing is accepted and ignored.",
            STEPS,
            "\n## Arguments that work\n",
            *("| name | meaning |", "|---|---|", *supported),
            "\n## Arguments that transformers does not have\n",
            *("| name | meaning |", "|---|---|", *(f"| `{name}` | {meaning[name]} |" for name in sorted(OURS))),
            "\n## Arguments whose default is another\n",
            *("| name | why |", "|---|---|", *(f"| `{name}` | {why} |" for name, why in OTHER_DEFAULTS.items())),
            "\n## Arguments that are refused unless they ask for what happens anyway\n",
            *("| name | instead |", "|---|---|", *declined),
            "\n## Choices that are refused\n",
            *("| argument | choices | instead |", "|---|---|---|", *choices),
            "\n## Older names\n",
            "A script and a job's spec take those that are mapped. Either is told so by a warning.\n",
            *("| name | | now |", "|---|---|---|", *older),
            DIFFERENT + "\n".join(f"| {theirs} | {ours} | {why} |" for theirs, ours, why in DIFFERENCES),
            "\n## Methods that are not here\n",
            "A subclass that overrides one of them is refused: it would never be called.\n",
            *("| name | instead |", "|---|---|", *methods),
            "",
        ]
    )


STEPS = """
## What a step computes

**Gradient accumulation.** Many models of transformers accept `num_items_in_batch` and ignore it: masked language
models, sequence and token classification, T5. Their loss is a mean over one micro-batch. transformers adds these
means up: with 4 accumulation steps the logged loss and the gradients are four times too large. Here a step does not
depend on how its samples are cut. Before the first step of `train()` the Trainer compares the model's loss of one
batch at two values of `num_items_in_batch`. Generators, buffers and gradients stay as they were. If the loss does not
change, each micro-batch's loss counts by its share of the step's labels, and one log line says so.
`loss_is_scaled_for_ga = True` on the Trainer, or on its class, switches this off: then the numbers are those of
transformers, to the last bit. With one micro-batch a step in one process both give the same. A `compute_loss` of your
own that does not call ours is treated as transformers treats it: set `loss_is_scaled_for_ga = False` if it returns a
mean over its micro-batch.

**Train mode and eval mode.** `evaluate()` and `predict()` leave the model in eval mode, as transformers does; the
next training step sets train mode. transformers also sets it before every micro-batch, for every part of the model.
Here a part that a callback puts into eval mode between two evaluations stays in eval mode.

**Labels.** `label_names` is what transformers has. Without label names an evaluation has a loss where
`can_return_loss`, or `return_loss` in the batch, says so. Beyond transformers, it also has one if the batch has
`labels`, or if only a `compute_loss` of your own can take the batch."""


DIFFERENT = """
## What is different on purpose

Hugging Face's own trainer tests and those of TRL, sentence-transformers and SetFit run on our Trainer under
`footplate.install()` ([figures](../developers/foreign-tests.md)).
These behaviours differ:

| theirs | ours | why |
|---|---|---|
"""
DIFFERENCES = (
    (
        "`auto_find_batch_size` trains again with a smaller batch, and its checkpoints store that size.",
        "It splits the batch and raises the accumulation.",
        "The effective batch, the curve and the place in the data stay the same.",
    ),
    (
        "`enable_jit_checkpoint` saves 3 seconds after SIGTERM, by a `JITCheckpointCallback`.",
        "It saves after the current step, by our own callback.",
        "Machines that are taken away give little time.",
    ),
    (
        "`save_total_limit=1` deletes the newest checkpoint if an older one is the best.",
        "It keeps both.",
        "A run must be able to continue from where it stopped.",
    ),
    (
        "`use_configured_state` without a state is refused by TrainingArguments.",
        "It is refused by the Trainer.",
        "Arguments make no state here. Libraries make some only to read defaults.",
    ),
    (
        "`hyperparameter_search` runs Optuna, Ray Tune and sweeps of Weights & Biases.",
        "It runs Optuna, in one process. The other backends are refused.",
        "The others run trials outside of the job, in Ray's processes or by a server of Weights & Biases.",
    ),
    (
        "A callback whose state is restored moves to the end of the list.",
        "It keeps its place.",
        "A resume must not change the order in which callbacks run.",
    ),
    (
        "Loading processes draw random numbers one after another, for the samples and for a collator with a `seed`.",
        "They draw them by seed, epoch and number of the batch. Without loading processes the numbers are theirs.",
        "A resumed run masks the same tokens.",
    ),
    (
        "During training, a push copies the checkpoint's files to `output_dir` and uploads that folder.",
        "It uploads the checkpoint's folder itself.",
        "The next save must not change files that are being uploaded.",
    ),
    (
        "Without a terminal, `ProgressCallback` writes its bar all the same.",
        "It writes plain lines. `disable_tqdm=False` brings the bar back.",
        "A bar fills a log file with control characters.",
    ),
    (
        "A resume reads a stream from its beginning, and drops the samples that were trained on.",
        "A stream with `state_dict` continues at its stored position. A shuffle buffer is filled again.",
        "Reading a long stream again takes hours.",
    ),
    (
        "A resume computes its position from full epochs, also if a callback ended epochs early.",
        "It continues at the stored position.",
        "No sample is trained on twice.",
    ),
    (
        "A resume from a checkpoint of an epoch's last step leaves out the evaluation at the end of that epoch.",
        "It makes up for it, with the event `on_epoch_end`.",
        "An evaluation draws random numbers, and may change the learning rate or stop the run.",
    ),
    (
        "A resume of a run that ended within an epoch trains a further step.",
        "It trains none.",
        "`max_steps` and `num_train_epochs` are limits.",
    ),
    (
        "`use_cache` does not reach the model that `model_init` makes for `train()`.",
        "It reaches every model.",
        "An argument that is accepted has an effect.",
    ),
    (
        "Weights of a checkpoint that the model lacks are left out with a warning, and the model's others keep their "
        "values. A best checkpoint without weights is a warning, too.",
        "Both are errors that name the weights. Only buffers may be missing.",
        "The run would go on, or end, with weights of another training.",
    ),
    (
        "`resume_from_checkpoint=True` takes the newest folder.",
        "It takes the newest one with a valid manifest. A checkpoint that transformers wrote is resumed by its path.",
        "An interrupted save leaves a folder from which no run can continue.",
    ),
    (
        "A smaller last window of a stream is not a step. Its gradients are added to the next step.",
        "It is a step.",
        "Each step then has the gradients of its own samples.",
    ),
    (
        "`dataloader_drop_last` has no effect on a stream.",
        "It drops the last batch if it is smaller.",
        "An argument that is accepted has an effect.",
    ),
    (
        "A resume takes the learning rate from the checkpoint.",
        "It takes the rate from the arguments, and the schedule's position from the checkpoint. A schedule of the "
        "script is restored whole.",
        "A changed argument has an effect.",
    ),
    (
        "An evaluation in several processes fills the last round with repeated samples, and these count in the loss.",
        "No sample is repeated.",
        "The loss equals that of one process.",
    ),
    (
        "A run of a schedule-free optimizer ends with the weights of its last step, unless it is evaluated there.",
        "It ends with the averaged weights.",
        "These are the result of training. A later evaluation would average the weights of a loaded best model again.",
    ),
    (
        "`max_steps=0` means no limit, as -1 does.",
        "It is refused.",
        "0 could also mean that nothing is to be trained.",
    ),
    (
        "`optim_args` has no effect on AdamW of torch and on Adafactor.",
        "It sets their options, such as `amsgrad=true`. Options that other arguments set are refused.",
        "An argument that is accepted has an effect.",
    ),
    (
        '`best_global_step` stays None with `save_strategy="no"`.',
        "It is the step of the best evaluation.",
        "The result of a job names this step.",
    ),
    (
        "With `disable_tqdm`, `total_flos` is missing from the metrics of `train()`, and printed numbers are rounded.",
        "It is among them, and numbers are printed in full.",
        "The way of printing logs does not change the result.",
    ),
    (
        "`on_save` of a callback receives the same keywords as other events.",
        "It also receives `checkpoint`, the saved folder with its step, size and hash.",
        "With `save_in_background`, it is not the checkpoint of the present step. A method without `**kwargs` needs "
        "the keyword.",
    ),
    (
        "With `group_by_length`, `predict` returns predictions in the order of batches of similar length.",
        "It returns them in the order of the data.",
        "Scripts join predictions with the rows of the data.",
    ),
    (
        "A model card names its metrics in `metrics`, and the configuration and split of its dataset.",
        "It has the values of the last evaluation in `model-index`, with the loss, and a text of our own.",
        "The card is made without transformers, which knows the hub's names of metrics and tasks.",
    ),
    (
        "With `dispatch_batches: false`, an evaluation of a stream counts a smaller last batch as a full one in "
        "`eval_loss`.",
        "It counts the batch by its samples.",
        "The loss is the mean over the samples, as with the other settings.",
    ),
    (
        "An evaluation logs `eval_loss`, and a checkpoint has the files of Hugging Face.",
        "It also logs `eval_loss_exact`. A checkpoint also has `manifest.json` and `training_args.json`.",
        "Nothing of theirs is missing, so both can continue from the other's checkpoints.",
    ),
)


def members(of: type[StrEnum]) -> list[str]:
    """`- **name**: its docstring`, in the order of the code."""
    body = ast.parse(inspect.getsource(of)).body[0]
    assert isinstance(body, ast.ClassDef)
    lines = []
    for statement, after in zip(body.body, [*body.body[1:], ast.Pass()], strict=True):
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            meaning = one_line(str(text))
            lines.append(f"- **{of[statement.targets[0].id].value}**" + (f": {meaning}" if meaning else ""))
    return lines


def one_line(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
