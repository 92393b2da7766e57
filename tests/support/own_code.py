"""Removes a bundle from a test process. A training process keeps its bundle until it ends."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from footplate.runtime import own_code


def close_bundle() -> None:
    bundle, own_code._opened = own_code._opened, None
    if bundle is None:
        return
    with suppress(ValueError):
        sys.path.remove(str(bundle.folder))
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, own_code._UsersPackages)]
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(bundle.folder):
            del sys.modules[name]
