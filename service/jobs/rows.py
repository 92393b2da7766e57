"""Checks the first rows of uploaded files at POST, against the forms that the job's trainer has announced.

The node checks every row before it trains. Here only the beginning of a file is read, because a request waits for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from footplate.contract import layout
from footplate.contract.body import pointer_to
from footplate.contract.components import Catalogue
from footplate.contract.errors import Problem
from footplate.contract.ids import is_file
from footplate.contract.rows import RowForms
from footplate.contract.short_forms import places
from footplate.contract.spec import JobSpec
from footplate.contract.spec_parts import Component
from service.artifact_files import Store, open_below

HEAD_BYTES = 64 * 1024
"""The bytes of all files of a spec together. Their check takes up to 50 ms of CPU (2026-11-23, a busy machine)."""
MOST_PROBLEMS = 5


def wrong_rows(spec: JobSpec, catalogue: Catalogue, store: Store) -> list[Problem]:
    """Returns the problems of the first rows of uploaded JSON lines. Rows that a map changes are not looked at."""
    trainer = spec.library_trainer
    described = None if trainer is None else catalogue.get("trainers", trainer.use)
    if described is None or not described.rows or spec.data.map:
        return []
    datasets = [
        (path, _uploaded(dataset.args))
        for path, group, dataset in places(spec)
        if group == "data" and isinstance(dataset, Component) and dataset.use == "files/jsonl"
    ]
    share = HEAD_BYTES // max(1, sum(len(names) for _, names in datasets))
    problems: list[Problem] = []
    for path, names in datasets:
        forms = RowForms(described.rows)
        for index, name in enumerate(names):
            pointer = pointer_to(*path, "args", "paths", index)
            problems += islice(_wrong_lines(_lines(store, name, share), pointer, forms), MOST_PROBLEMS)
    return problems


def _uploaded(args: dict[str, Any]) -> list[str]:
    """Returns the uploaded files of a dataset, or none if some of its rows are left out."""
    names = args.get("paths")
    if not isinstance(names, list) or args.get("offset") or args.get("limit"):
        return []
    return names if all(isinstance(name, str) and is_file(name) for name in names) else []


def _wrong_lines(lines: list[bytes], pointer: str, forms: RowForms) -> Iterator[Problem]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield Problem(pointer, "wrong_row", f"line {number} is not JSON: {str(error)[:120]}")
            continue
        if not isinstance(row, dict):
            yield Problem(pointer, "wrong_row", f"line {number} is not an object, as rows are")
        elif problem := forms.problem(row):
            yield Problem(pointer, problem.code, f"line {number}: {problem.detail}", problem.hint)


def _lines(store: Store, name: str, most_bytes: int) -> list[bytes]:
    """Returns the whole lines at the beginning of an uploaded file."""
    file = open_below(store, str(layout.UPLOADS / name))
    if file is None:
        return []
    with file:
        head = b""
        while len(head) <= most_bytes and (piece := file.read(most_bytes + 1)):
            head += piece
    lines = head.split(b"\n")
    return lines[:-1] if len(head) > most_bytes else lines
