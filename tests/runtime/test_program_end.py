"""A program that was run inside of a training process ends as Python ends it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.processes import REPOSITORY

PROGRAM = """
import atexit, threading
from concurrent.futures import ThreadPoolExecutor

def write(name):
    with open(name, "w") as file:
        file.write("written")

def work():
    # This thread still runs when the program has ended.
    threading.main_thread().join()
    write("by a thread")

still_open = open("still open", "w")
still_open.write("written")
threading.Thread(target=work).start()
pool = ThreadPoolExecutor(1)
pool.submit(write, "by a pool")
atexit.register(write, "at exit")
atexit.register(lambda: 1 / 0)
"""
PROCESS = """
import os, runpy, sys
from footplate.runtime.program_end import end_program

runpy.run_path("program.py", run_name="__main__")
end_program(print)
os.write(2, b"ended")
os._exit(0)
"""


def test_threads_atexit_functions_and_open_files_of_a_program_lose_nothing(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)

    environment = {"PYTHONPATH": str(REPOSITORY)}
    ran = subprocess.run([sys.executable, "-c", PROCESS], cwd=tmp_path, env=environment, capture_output=True, text=True)

    for name in ("still open", "by a thread", "by a pool", "at exit"):
        assert (tmp_path / name).read_text() == "written", f"{name}: {ran.stderr}"
    assert "ZeroDivisionError" in ran.stderr
    assert ran.stderr.endswith("ended")
    assert ran.returncode == 0
