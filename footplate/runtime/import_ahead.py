"""Imports libraries into the warm parent, so that later training processes start with them.

Importing transformers takes two seconds in each training process that needs the library. The warm parent imports it
beside the first such job, for all later jobs. So a serving session that follows a short training starts with the
training's libraries already imported.

A child tries the import first. If the import starts a thread or opens a GPU, every process that is forked afterwards
would hang or fail. The child has a low priority, because the first job starts at the same time.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module

from footplate.contract.import_speed import without_collecting

MODULES = {
    "transformers": (
        "transformers", "transformers.modeling_utils", "transformers.generation.utils",
        "transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto",
    ),
    "peft": ("peft",),
}  # fmt: skip
"""The modules of each library that every model needs. The warm parent answers requests between two of them."""

NICENESS = 10
"""The priority of the child that tries an import. Training has 0."""

log = logging.getLogger("footplate.warm")


class ImportAhead:
    """The libraries that jobs have needed, and the modules of them that are not imported yet."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._untried: list[str] = []
        self._modules: list[str] = []
        """The modules to import next. A child has tried them."""

    def want(self, libraries: Iterable[str]) -> None:
        """Adds the libraries of a training process that starts now, so that later ones start with them imported."""
        for library in libraries:
            if library in MODULES and library not in self._seen:
                self._seen.add(library)
                self._untried += MODULES[library]

    @property
    def is_due(self) -> bool:
        """True if a module is still to be tried or imported."""
        return bool(self._untried or self._modules)

    def take_untried(self) -> list[str]:
        """Returns the modules that a child must try to import now, each only once."""
        untried, self._untried = self._untried, []
        return untried

    def tried(self, modules: Sequence[str], code: int) -> None:
        """Records the exit code of the child that tried these modules. Code 0 lets the warm parent import them."""
        if code:
            log.warning("%s cannot be imported ahead (%s), so each job imports it", modules[0], code)
        else:
            self._modules += modules

    def import_next(self) -> None:
        module = self._modules.pop(0)
        with without_collecting():
            try:
                import_module(module)
            except Exception:
                log.warning("%s cannot be imported ahead, so each job imports it", module, exc_info=True)
                self._modules = []
            if not self._modules:
                gc.collect()
                gc.freeze()
                log.info("imported %s for later jobs", ", ".join(sorted(self._seen)))


def try_imports(modules: Sequence[str]) -> int:
    """Imports the modules in a child of the warm parent. Returns 0 if they may be imported before a fork."""
    os.nice(NICENESS)
    for module in modules:
        import_module(module)
    threads = len(os.listdir("/proc/self/task"))
    gpus = [name for name in map(_opened, os.listdir("/proc/self/fd")) if name.startswith("/dev/nvidia")]
    if threads > 1 or gpus:
        opened = ", ".join(gpus) or "no GPU"
        text = "%s is not imported ahead, because it started %d threads and opened %s"
        log.warning(text, modules[0], threads - 1, opened)
        return 1
    return 0


def _opened(fd: str) -> str:
    with suppress(OSError):
        return os.readlink(f"/proc/self/fd/{fd}")
    return ""
