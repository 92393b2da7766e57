"""Ends a user's program as Python ends one, before its outputs are collected."""

from __future__ import annotations

import atexit
import gc
import io
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress

_FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def end_program(note: Callable[[str], None]) -> None:
    """Waits for the program's threads, calls its `atexit` functions, and writes what its open files have in buffers.

    The training process itself ends by os._exit, which does none of this. It would lose the last lines of a file that
    the program did not close, and the work of its threads.
    """
    if names := [thread.name for thread in threading.enumerate() if _is_awaited(thread)]:
        note(f"the program has ended, and waits for its threads: {', '.join(names[:10])}")
    # Also ends the threads of concurrent.futures, which wait for more work.
    threading._shutdown()  # type: ignore[attr-defined]
    try:
        atexit._run_exitfuncs()
    except BaseException:
        # Python prints such an error as well, and the program's exit code stays.
        traceback.print_exc()
    for file in gc.get_objects():
        if issubclass(type(file), _FILES):
            with suppress(OSError, ValueError):
                file.flush()


def _is_awaited(thread: threading.Thread) -> bool:
    return not thread.daemon and thread is not threading.main_thread()
