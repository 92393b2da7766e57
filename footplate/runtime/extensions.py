"""Makes builds of torch extensions on a node wait for each other, and suspends the stall limit while they run.

The built files are beside the bundle's files, in TORCH_EXTENSIONS_DIR. footplate/contract/host/environment.py sets it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from footplate.contract.host.bundle_files import lock

BUILD_SECONDS = 3600.0
"""The longest time for which a build suspends the stall limit, because a compiler may hang."""


class BuildLock:
    """Replaces torch's FileBaton by a lock that the kernel releases when a build is killed.

    A killed build leaves FileBaton's file, and later builds wait for it for ever. With this lock, a second build waits
    for the first, and then runs ninja, which builds only what is missing.
    """

    def __init__(
        self, lock_file_path: str, *_: Any, report: Callable[[], BuildReporter | None] = lambda: None, **__: Any
    ) -> None:
        """Takes the path that torch's FileBaton takes, and a function that starts to report a build."""
        self._path, self._report = Path(lock_file_path), report
        self._lock: int | None = None
        self._reporter: BuildReporter | None = None

    def try_acquire(self) -> bool:
        self._reporter = self._report()
        self._lock = lock(self._path)
        return True

    def release(self) -> None:
        # The file is removed while the lock is held, because torch's own FileBaton would wait for it.
        self._path.unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._reporter is not None:
            self._reporter.end()


class BuildReporter:
    """Reports in a thread of its own that a build is running, because the process's main thread waits for the build."""

    def __init__(self, tick: Callable[[], None], note: Callable[[str], None], every: float) -> None:
        self._tick, self._note, self._every = tick, note, every
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._report, name="building", daemon=True)
        self._thread.start()

    def _report(self) -> None:
        until = time.monotonic() + BUILD_SECONDS
        if not self._is_over.wait(self._every):
            minutes = f"{BUILD_SECONDS / 60:.0f}"
            self._note(f"an extension is being built; the stall limit is suspended for up to {minutes} minutes")
        while not self._is_over.wait(self._every) and time.monotonic() < until:
            self._tick()

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()


def watch(tick: Callable[[], None], note: Callable[[str], None], stall_seconds: float) -> None:
    """Makes builds in this process use BuildLock, and report to the supervisor while they run.

    This does not import torch.utils.cpp_extension, because its import takes 0.25 s.
    """
    from torch.utils import file_baton

    pid = os.getpid()

    def report() -> BuildReporter | None:
        # A build in another thread needs no reporter, because the main thread reports progress meanwhile.
        if os.getpid() != pid or threading.current_thread() is not threading.main_thread():
            return None
        return BuildReporter(tick, note, min(1.0, stall_seconds / 4))

    for module in (file_baton, sys.modules.get("torch.utils.cpp_extension")):
        if module is not None:
            setattr(module, "FileBaton", partial(BuildLock, report=report))  # noqa: B010
