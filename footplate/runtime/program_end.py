"""Ends a user's program as Python ends one, and writes the buffers of a training process before its end."""

from __future__ import annotations

import atexit
import ctypes
import gc
import io
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress

_FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def end_program(note: Callable[[str], None]) -> None:
    """Waits for the program's threads, calls its `atexit` functions, and writes what its open files have in buffers.

    This is for a program that has returned or called sys.exit. If it raised an exception, only the buffers are written,
    because the job's error must not wait for a thread that may never end.
    """
    if names := [
        thread.name for thread in threading.enumerate() if not (thread.daemon or thread is threading.main_thread())
    ]:
        note(f"the program has ended, and waits for its threads: {', '.join(names[:10])}")
    # Also ends the threads of concurrent.futures, which wait for more work.
    threading._shutdown()  # type: ignore[attr-defined]
    try:
        atexit._run_exitfuncs()
    except BaseException:
        # Python prints such an error as well, and the program's exit code stays.
        traceback.print_exc()
    write_buffers()


def write_buffers(within: float | None = None) -> None:
    """Writes what all open files have in buffers, and C's stdout. Gives up after `within` seconds.

    The training process ends by os._exit, which does not. It would lose the last lines of a file that users' code did
    not close. A pipe that nobody reads would block for ever.
    """
    writer = threading.Thread(target=_write_buffers, daemon=True)
    writer.start()
    writer.join(within)


def _write_buffers() -> None:
    # The collector does not list these two, because the warm parent made and froze them.
    for file in (*gc.get_objects(), sys.__stdout__, sys.__stderr__):
        if issubclass(type(file), _FILES):
            # A file may write into an object of users' code, which can raise any error.
            with suppress(Exception):
                file.flush()
    ctypes.CDLL(None).fflush(None)
