"""Makes a model's inputs from a request's rows: with the maps of the spec, but without the columns of labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from footplate.contract.spec import JobSpec
from footplate.contract.spec_parts import Component
from footplate.runtime.serving.loaded import CannotAnswer

LABEL_ARGUMENTS = {"tokenize": "target", "tokenize-words": "labels"}
"""The argument of a map that names a column with labels. The map works without this argument."""
LABEL_MAPS = ("labels", "answers")
"""The maps that read only a column of labels."""
NO_ANSWER: dict[str, list[Any]] = {"text": [], "answer_start": []}


def prepared(rows: Sequence[Any], spec: JobSpec) -> list[dict[str, Any]]:
    """Returns rows with named columns. A text alone becomes the column that the spec's first map of inputs reads."""
    texts = [
        component
        for component in spec.data.map
        if isinstance(component.args.get("column"), str) and component.use not in LABEL_MAPS
    ]
    column = str(texts[0].args["column"]) if texts else None
    named = []
    for number, row in enumerate(rows):
        if isinstance(row, str) and column is not None:
            named.append({column: row})
        elif isinstance(row, dict) and row:
            named.append(dict(row))
        else:
            example = f'{{"{column or "x"}": …}}'
            raise CannotAnswer(
                f"input {number} is not a row: a row is an object with the columns of the job's data",
                code="bad_input",
                hint=f"for example {example}" + (", or a text alone" if column else ""),
            )
    return named


def maps_for(rows: list[dict[str, Any]], spec: JobSpec) -> list[Component]:
    """Returns the spec's maps without the labels that the rows do not have."""
    columns = set(rows[0])
    chosen: list[Component] = []
    for component in spec.data.map:
        use, args = component.use, dict(component.args)
        if use == "chunk" or (use == "labels" and args.get("column", "label") not in columns):
            continue
        if use in LABEL_ARGUMENTS and args.get(LABEL_ARGUMENTS[use]) not in (None, *columns):
            del args[LABEL_ARGUMENTS[use]]
        if use == "answers":
            for row in rows:
                row.setdefault(str(args.get("column", "answers")), NO_ANSWER)
        if use == "rename":
            names = {old: new for old, new in _pairs(args.get("columns")) if old in columns}
            args["columns"] = dict(names)
            columns |= set(names.values())
        if use in ("keep", "drop"):
            listed = args.get("columns")
            args["columns"] = [name for name in listed if name in columns] if isinstance(listed, list) else listed
        chosen.append(Component(use=use, args=args))
    return chosen


def as_tensors(rows: list[dict[str, Any]], *, as_floats: bool = False) -> list[dict[str, Any]]:
    """Returns rows whose lists of numbers are tensors, as datasets without maps have them."""
    return [{name: _tensor(value, as_floats=as_floats) for name, value in row.items()} for row in rows]


def _tensor(value: Any, *, as_floats: bool) -> Any:
    if not isinstance(value, list):
        return value
    try:
        return torch.tensor(value, dtype=torch.float32 if as_floats else None)
    except (TypeError, ValueError):
        return value


def _pairs(columns: Any) -> list[tuple[str, str]]:
    return list(columns.items()) if isinstance(columns, dict) else []
