"""The verbs `predict` and `try`: run a checkpoint on rows, or chat with a language model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from footplate.cli.context import Options, UsageError, Verbs, add_changes, add_job, add_verb, client_of, not_empty
from footplate.cli.submit import parsed_or_text, set_values
from footplate.cli.text import clean, print_json

if TYPE_CHECKING:
    from footplate import Job
    from footplate.sdk.texts import Prompt

Message = dict[str, str]
EXAMPLE = "max_tokens=50"
ROWS_AT_ONCE = 64
"""The number of rows in one request."""


def add_verbs(verbs: Verbs) -> None:
    predict = add_verb(verbs, "predict", run_predict, "run a checkpoint of a job on texts or rows")
    add_job(predict)
    predict.add_argument(
        "inputs", metavar="INPUT", nargs="*", help="a text, or a row as JSON (default: lines of stdin)"
    )
    predict.add_argument("--file", metavar="F", type=not_empty, help="read rows from this file of JSON lines instead")
    try_verb = add_verb(verbs, "try", run_try, "chat with a language model that a job has trained")
    add_job(try_verb)
    try_verb.add_argument("text", metavar="TEXT", nargs="*", help="a message to the model (default: lines of stdin)")
    try_verb.add_argument("--complete", action="store_true", help="continue the text instead of answering it")
    for verb in (predict, try_verb):
        verb.add_argument(
            "--checkpoint", metavar="C", type=not_empty, help="latest, best or an id (default: the job's final model)"
        )
        add_changes(verb, "set max_tokens, temperature, top_p, stop or seed of a language model", metavar="a=v")


def run_try(options: Options) -> int:
    parameters = set_values({}, options.changes, EXAMPLE)
    job = client_of(options).jobs.get(options.job)
    conversation: list[Message] = []
    for text in [" ".join(options.text)] if options.text else _stdin_lines():
        messages: list[Message] = [*conversation, {"role": "user", "content": text}]
        answer = _answer(job, text if options.complete else messages, options, parameters)
        conversation = [*messages, {"role": "assistant", "content": answer}]
    return 0


def _answer(job: Job, prompt: Prompt, options: Options, parameters: dict[str, Any]) -> str:
    """Prints the model's answer while it is generated, and returns it. With --json, each chunk is a line of JSON."""
    chunks = []
    for chunk in job.generate(prompt, checkpoint=options.checkpoint, **parameters):
        chunks.append(chunk)
        print_json(chunk) if options.json else print(clean(chunk), end="", flush=True)
    if not options.json:
        print()
    return "".join(chunks)


def _stdin_lines() -> Iterator[str]:
    """Yields the lines of standard input that are not empty. On a terminal, prints a prompt before each line."""
    while True:
        if sys.stdin.isatty():
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if text := line.strip():
            yield text


def run_predict(options: Options) -> int:
    if options.inputs and options.file:
        raise UsageError("the command has both inputs and --file", hint="leave one of them out")
    parameters = set_values({}, options.changes, EXAMPLE)
    job = client_of(options).jobs.get(options.job)
    rows = list(inputs(options))
    if not rows:
        raise UsageError("there is no input", hint="footplate predict JOB 'a text'")
    for start in range(0, len(rows), ROWS_AT_ONCE):
        for result in job.predict(rows[start : start + ROWS_AT_ONCE], checkpoint=options.checkpoint, **parameters):
            print_json(result)
    return 0


def inputs(options: Options) -> Iterator[Any]:
    if options.inputs:
        yield from map(_input, options.inputs)
        return
    if options.file is None:
        yield from (_input(line) for line in map(str.strip, sys.stdin) if line)
        return
    with open(options.file, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    # Given bytes, `json.loads` skips a byte order mark, and raises ValueError for other encodings.
                    yield json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise UsageError(f"{options.file}, line {number} is not JSON: {error}") from error


def _input(text: str) -> Any:
    """Returns the row if the text is a JSON object, else the text itself."""
    return parsed_or_text(text) if text.startswith("{") else text
