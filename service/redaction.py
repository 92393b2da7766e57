"""What is said in logs and in problems carries no key: not one of ours, and not what somebody sent as one."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

MARK = "fpk"
"""Our keys begin with it."""
_SECRETS = re.compile(rf"(?i)({MARK}_[0-9a-f]{{8}}_|\bbearer\s+|\bfootplate\.key\.|\bticket=)[^\s'\",&]+")
_KEYS = re.compile(rf"({MARK}_[0-9a-f]{{8}}_)[0-9a-f]+")


def without_keys(text: str) -> str:
    """Each key by its prefix alone: for what tells somebody of what they sent."""
    return _KEYS.sub(r"\1…", text)


class Redacting(logging.Formatter):
    """Over the finished text: message, arguments, traceback and all."""

    def __init__(self, format: str, secrets: Sequence[str] = ()) -> None:
        super().__init__(format)
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return _SECRETS.sub(r"\1…", text)
