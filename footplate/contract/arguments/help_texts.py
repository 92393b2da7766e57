"""What stands under a field in its source, for forms, help and pages. Read when somebody asks, not at import."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Iterator
from itertools import pairwise


def meanings(kind: type) -> dict[str, str]:
    """Of all its fields, those that it inherits included. Nothing of classes whose source is not to be had."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        found |= _by_class(each.__module__).get(each.__qualname__, {})
    return found


@functools.cache
def _by_class(module: str) -> dict[str, dict[str, str]]:
    try:
        source = inspect.getsource(sys.modules[module])
    except (KeyError, OSError, TypeError):
        return {}
    body = ast.parse(source).body
    return {node.name: dict(_under_fields(node)) for node in body if isinstance(node, ast.ClassDef)}


def _under_fields(written: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, said in pairwise(written.body):
        match field, said:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)
