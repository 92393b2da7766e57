"""Builds of torch.utils.cpp_extension by a bundle: one at a time, once for each node, without a time limit of ours.

    watch(tick, note, …)           from here on, builds of this process take turns and report that they are under way

What is built lies beside the files, in TORCH_EXTENSIONS_DIR: footplate/contract/host/environment.py.
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
"""How long a build may keep a job from being stalled: a compiler hangs too, now and then."""


class Baton:
    """In the place of torch's, which is a file: one that a killed build has left made every later one wait for ever.

    Whoever asks waits and then has it, so that each looks for itself at what ninja still has to do: nothing, where the
    one before it has built the same; all of it, where that one was killed.
    """

    def __init__(self, lock_file_path: str, *_: Any, **__: Any) -> None:
        self._path = Path(lock_file_path)
        self._lock: int | None = None
        self._telling: Telling | None = None

    def try_acquire(self) -> bool:
        self._telling = self.told_of()
        self._lock = lock(self._path)
        return True

    def told_of(self) -> Telling | None:
        """Nobody."""

    def release(self) -> None:
        # While it is ours. Whoever knows only torch's baton takes a file that lies there for somebody's.
        self._path.unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._telling is not None:
            self._telling.end()


class Telling:
    """Says every now and then that a build is under way: nothing else of its process can."""

    def __init__(self, tick: Callable[[], None], note: Callable[[str], None], every: float) -> None:
        self._tick, self._note, self._every = tick, note, every
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="building", daemon=True)
        self._thread.start()

    def _tell(self) -> None:
        until = time.monotonic() + BUILD_SECONDS
        if not self._is_over.wait(self._every):
            self._note(f"builds an extension; that counts for no stall limit, for {BUILD_SECONDS / 60:.0f} minutes")
        while not self._is_over.wait(self._every) and time.monotonic() < until:
            self._tick()

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()


def watch(tick: Callable[[], None], note: Callable[[str], None], stall_seconds: float) -> None:
    """Torch's builds, before it is imported who starts them: that alone costs a quarter of a second."""
    from torch.utils import file_baton

    ours = os.getpid()

    class Told(Baton):
        def told_of(self) -> Telling | None:
            # What another thread builds keeps nobody from saying how training goes; and one at a time may speak.
            if os.getpid() != ours or threading.current_thread() is not threading.main_thread():
                return None
            return Telling(tick, note, min(1.0, stall_seconds / 4))

    for module in (file_baton, sys.modules.get("torch.utils.cpp_extension")):
        if module is not None:
            setattr(module, "FileBaton", Told)  # noqa: B010
