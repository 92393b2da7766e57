"""Makes a model's inputs from a request's rows: with the maps of the spec, but without the columns of labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from footplate.contract.spec import JobSpec
from footplate.contract.spec_parts import Component
from footplate.runtime.serving.loaded_model import CannotAnswer

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
    named_rows = []
    for number, row in enumerate(rows):
        if isinstance(row, str) and column is not None:
            named_rows.append({column: row})
        elif isinstance(row, dict) and row:
            named_rows.append(dict(row))
        else:
            example = f'{{"{column or "x"}": …}}'
            raise CannotAnswer(
                f"input {number} is not a row: a row is an object with the columns of the job's data",
                code="bad_input",
                hint=f"for example {example}" + (", or a text alone" if column else ""),
            )
    return named_rows


def maps_for(rows: list[dict[str, Any]], spec: JobSpec) -> list[Component]:
    """Returns the spec's maps without the labels that the rows do not have."""
    columns = set(rows[0])
    maps: list[Component] = []
    for component in spec.data.map:
        map_name, args = component.use, dict(component.args)
        if map_name == "chunk" or (map_name == "labels" and args.get("column", "label") not in columns):
            continue
        if map_name in LABEL_ARGUMENTS and args.get(LABEL_ARGUMENTS[map_name]) not in (None, *columns):
            del args[LABEL_ARGUMENTS[map_name]]
        if map_name == "answers":
            for row in rows:
                row.setdefault(str(args.get("column", "answers")), NO_ANSWER)
        if map_name == "rename":
            names = {old_name: new_name for old_name, new_name in _pairs(args.get("columns")) if old_name in columns}
            args["columns"] = dict(names)
            columns |= set(names.values())
        if map_name in ("keep", "drop"):
            listed_names = args.get("columns")
            args["columns"] = (
                [name for name in listed_names if name in columns] if isinstance(listed_names, list) else listed_names
            )
        maps.append(Component(use=map_name, args=args))
    return maps


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
