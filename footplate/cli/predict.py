"""The verb `predict`: runs a checkpoint of a job on texts or rows, and prints a result for each."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from footplate.cli.context import Given, UsageError, Verbs, add_job, add_verb, client_of, find
from footplate.cli.submit import put
from footplate.cli.text import say_json

ROWS_AT_ONCE = 64
"""The number of rows in one request."""


def add_verbs(verbs: Verbs) -> None:
    predict = add_verb(verbs, "predict", run_predict, "try a checkpoint of a job on texts or rows")
    add_job(predict)
    predict.add_argument("inputs", metavar="INPUT", nargs="*", help="a text, or a row as JSON; else lines of stdin")
    predict.add_argument("--file", metavar="F", help="read rows from this file of JSON lines instead")
    predict.add_argument("--checkpoint", metavar="C", help="latest, best, or an id; else the job's final model")
    predict.add_argument(
        "--set",
        dest="parameters",
        action="append",
        default=[],
        metavar="a=v",
        help="set max_tokens, temperature, top_p, stop or seed of a language model; may be repeated",
    )


def run_predict(given: Given) -> int:
    if given.inputs and given.file:
        raise UsageError("inputs and --file are both given", hint="leave one of them out")
    parameters: dict[str, Any] = {}
    for parameter in given.parameters:
        put(parameters, parameter)
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
