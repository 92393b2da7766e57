"""Writes names of metrics as one text with commas, and reads them back.

A name may contain a comma itself, as `f1@0.5,0.9` does. In the text, a backslash precedes such a comma, and each
backslash of a name. A backslash before any other character stands for itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_NAME = re.compile(r"((?:\\[\\,]|[^,])*)(?:,|\Z)")
_ESCAPED = re.compile(r"\\([\\,])")
_SPECIAL = re.compile(r"[\\,]")


def join_names(names: Iterable[str]) -> str:
    return ",".join(_SPECIAL.sub(r"\\\g<0>", name) for name in names)


def split_names(text: str) -> list[str]:
    """Returns the different names in the text, in order. Empty ones are left out."""
    return list(dict.fromkeys(_ESCAPED.sub(r"\1", name) for name in _NAME.findall(text) if name))
