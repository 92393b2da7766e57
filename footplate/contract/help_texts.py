"""Reads the docstrings below fields of classes from their source, for forms, the help of options and docs."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Iterator
from itertools import pairwise


def meanings(kind: type) -> dict[str, str]:
    """Returns the docstrings of a class's fields by name, with those of inherited fields."""
    texts: dict[str, str] = {}
    for cls in reversed(kind.__mro__):
        texts |= _by_class(cls.__module__).get(cls.__qualname__, {})
    return texts


@functools.cache
def _by_class(module: str) -> dict[str, dict[str, str]]:
    try:
        source = inspect.getsource(sys.modules[module])
    except (KeyError, OSError, TypeError):
        return {}
    body = ast.parse(source).body
    return {node.name: dict(_under_fields(node)) for node in body if isinstance(node, ast.ClassDef)}


def _under_fields(definition: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, statement in pairwise(definition.body):
        match field, statement:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)
