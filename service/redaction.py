"""Removes keys from logs and problem documents: our own keys, and whatever a client sent in place of a key."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

MARK = "fpk"
"""The first letters of our keys."""
_SECRETS = re.compile(rf"(?i)({MARK}_[0-9a-f]{{8}}_|\bbearer\s+|\bfootplate\.key\.|\bticket=)[^\s'\",&]+")
_KEYS = re.compile(rf"({MARK}_[0-9a-f]{{8}}_)[0-9a-f]+")


def without_keys(text: str) -> str:
    """Returns the text with each key cut to its prefix, for answers that quote what the client sent."""
    return _KEYS.sub(r"\1…", text)


class Redacting(logging.Formatter):
    """A formatter that removes keys from the whole text of a record, its arguments and traceback included."""

    def __init__(self, format: str, secrets: Sequence[str]) -> None:
        super().__init__(format)
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return _SECRETS.sub(r"\1…", text)
