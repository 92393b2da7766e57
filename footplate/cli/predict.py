"""The verbs `predict` and `try`: run a checkpoint on rows, or chat with a language model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from footplate.cli.context import Given, UsageError, Verbs, add_changes, add_job, add_verb, client_of, find
from footplate.cli.submit import put
from footplate.cli.text import clean, say_json

if TYPE_CHECKING:
    from footplate import Job
    from footplate.sdk.texts import Prompt

Message = dict[str, str]
ROWS_AT_ONCE = 64
"""The number of rows in one request."""


def add_verbs(verbs: Verbs) -> None:
    predict = add_verb(verbs, "predict", run_predict, "try a checkpoint of a job on texts or rows")
    add_job(predict)
    predict.add_argument("inputs", metavar="INPUT", nargs="*", help="a text, or a row as JSON; else lines of stdin")
    predict.add_argument("--file", metavar="F", help="read rows from this file of JSON lines instead")
    trial = add_verb(verbs, "try", run_try, "chat with a language model that a job has trained")
    add_job(trial)
    trial.add_argument("text", metavar="TEXT", nargs="*", help="what to say; else lines of stdin, one conversation")
    trial.add_argument("--complete", action="store_true", help="continue the text instead of answering it")
    for verb in (predict, trial):
        verb.add_argument("--checkpoint", metavar="C", help="latest, best, or an id; else the job's final model")
        add_changes(verb, "set max_tokens, temperature, top_p, stop or seed of a language model", metavar="a=v")


def run_try(given: Given) -> int:
    parameters = _parameters(given)
    job = find(client_of(given), given.job)
    conversation: list[Message] = []
    for text in [" ".join(given.text)] if given.text else _lines():
        said: list[Message] = [*conversation, {"role": "user", "content": text}]
        answer = _answer(job, text if given.complete else said, given, parameters)
        conversation = [*said, {"role": "assistant", "content": answer}]
    return 0


def _answer(job: Job, prompt: Prompt, given: Given, parameters: dict[str, Any]) -> str:
    """Prints the answer while it is made, and returns it. With --json, prints each part as a JSON text in one line."""
    parts = []
    for part in job.generate(prompt, checkpoint=given.checkpoint, **parameters):
        parts.append(part)
        say_json(part) if given.json else print(clean(part), end="", flush=True)
    if not given.json:
        print()
    return "".join(parts)


def _lines() -> Iterator[str]:
    """Yields what is typed until the end of the input. A terminal gets a sign that it is one's turn."""
    while True:
        if sys.stdin.isatty():
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if text := line.strip():
            yield text


def _parameters(given: Given) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    for parameter in given.changes:
        put(parameters, parameter, "max_tokens=50")
    return parameters


def run_predict(given: Given) -> int:
    if given.inputs and given.file:
        raise UsageError("inputs and --file are both given", hint="leave one of them out")
    parameters = _parameters(given)
    job = find(client_of(given), given.job)
    rows = list(_inputs(given))
    if not rows:
        raise UsageError("there is no input", hint="footplate predict JOB 'a text'")
    for first in range(0, len(rows), ROWS_AT_ONCE):
        for result in job.predict(rows[first : first + ROWS_AT_ONCE], checkpoint=given.checkpoint, **parameters):
            say_json(result)
    return 0


def _inputs(given: Given) -> Iterator[Any]:
    if given.inputs:
        yield from map(_parsed, given.inputs)
        return
    if given.file is None:
        yield from (_parsed(line) for line in map(str.strip, sys.stdin) if line)
        return
    with open(given.file, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise UsageError(f"{given.file}, line {number} is not JSON: {error}") from error


def _parsed(text: str) -> Any:
    """Returns an object if the text is one as JSON, else the text itself."""
    if not text.startswith("{"):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
