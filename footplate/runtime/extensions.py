"""Lets bundles build torch extensions: one build at a time on a node, and without the stall limit.

    watch(tick, note, …)           from here on, builds in this process take turns and report that they run

The results are beside the bundle's files, in TORCH_EXTENSIONS_DIR: see footplate/contract/host/environment.py.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from footplate.contract.host.bundle_files import lock

BUILD_SECONDS = 3600.0
"""The time for which a build suspends the stall limit. It is limited, because a compiler may hang."""


class Baton:
    """A lock in place of torch's FileBaton, which is a file. A killed build left that file, and later builds hung.

    A second build waits for the lock, and then runs ninja itself. If the first build has finished, there is nothing to
    do. If the first build was killed, the second one builds everything.
    """

    def __init__(self, lock_file_path: str, *_: Any, **__: Any) -> None:
        self._path = Path(lock_file_path)
        self._lock: int | None = None
        self._reporter: BuildReporter | None = None

    def try_acquire(self) -> bool:
        self._reporter = self.reporter()
        self._lock = lock(self._path)
        return True

    def reporter(self) -> BuildReporter | None:
        """Returns None: builds report no progress unless `watch()` installs a reporter."""
        return None

    def release(self) -> None:
        # The file is removed while the lock is held, because torch's own FileBaton would wait for it.
        self._path.unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._reporter is not None:
            self._reporter.end()


class BuildReporter:
    """Reports from a thread that a build runs, because the process's main thread waits for the build."""

    def __init__(self, tick: Callable[[], None], note: Callable[[str], None], every: float) -> None:
        self._tick, self._note, self._every = tick, note, every
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._report, name="building", daemon=True)
        self._thread.start()

    def _report(self) -> None:
        until = time.monotonic() + BUILD_SECONDS
        if not self._is_over.wait(self._every):
            minutes = f"{BUILD_SECONDS / 60:.0f}"
            self._note(f"builds an extension; the stall limit is suspended for up to {minutes} minutes")
        while not self._is_over.wait(self._every) and time.monotonic() < until:
            self._tick()

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()


def watch(tick: Callable[[], None], note: Callable[[str], None], stall_seconds: float) -> None:
    """Replaces torch's FileBaton. torch.utils.cpp_extension is not imported for that, because it takes 0.25 s."""
    from torch.utils import file_baton

    ours = os.getpid()

    class ReportingBaton(Baton):
        def reporter(self) -> BuildReporter | None:
            # A build in another thread needs no reporter, because the main thread reports progress meanwhile.
            if os.getpid() != ours or threading.current_thread() is not threading.main_thread():
                return None
            return BuildReporter(tick, note, min(1.0, stall_seconds / 4))

    for module in (file_baton, sys.modules.get("torch.utils.cpp_extension")):
        if module is not None:
            setattr(module, "FileBaton", ReportingBaton)  # noqa: B010
