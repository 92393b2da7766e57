"""A program that was run inside of a training process ends as Python ends it, and a failed one loses no buffer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from footplate.contract.host.launch import Order
from footplate.contract.ids import ClaimId, Fence, new_job_id
from footplate.contract.spec import JobSpec
from tests.support.bundles import store_bundle
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
    run = subprocess.run([sys.executable, "-c", PROCESS], cwd=tmp_path, env=environment, capture_output=True, text=True)

    for name in ("still open", "by a thread", "by a pool", "at exit"):
        assert (tmp_path / name).read_text() == "written", f"{name}: {run.stderr}"
    assert "ZeroDivisionError" in run.stderr
    assert run.stderr.endswith("ended")
    assert run.returncode == 0


FAILING = """
import ctypes, io, sys

class Broken(io.RawIOBase):
    def writable(self):
        return True

    def write(self, data):
        raise RuntimeError("no such table")

sys.broken = io.BufferedWriter(Broken())
sys.broken.write(b"a row")
rows = sys.kept = open("rows.txt", "w")
rows.write("the last row")
sys.__stdout__.write("printed")
ctypes.CDLL(None).printf(b" by C")
raise ValueError("the script fails")
"""
TRAINING = """
import os, socket, sys, time
from footplate.runtime import run

events, _others = socket.socketpair()
stop = os.memfd_create("stop")
os.ftruncate(stop, 4096)
os._exit(run.main(os.open("order.json", os.O_RDONLY), events.detach(), stop, time.monotonic()))
"""


def test_a_script_that_raises_loses_no_data_of_open_files_and_stdout(tmp_path: Path) -> None:
    spec = {"loop": {"script": "train.py"}, "code": {"bundle": store_bundle(tmp_path, {"train.py": FAILING})}}
    order = Order(
        job=new_job_id(), attempt=1, fence=Fence(1), claim=ClaimId("claim"), spec=JobSpec.parse(spec).as_json(),
        gpus=[], checkpoints=[], artifacts=tmp_path, data=tmp_path, models=tmp_path, threads=1,
    )  # fmt: skip
    (tmp_path / "order.json").write_text(order.model_dump_json())

    environment = {"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", TRAINING], cwd=tmp_path, env=environment, capture_output=True, text=True
    )

    assert (order.files.folder / "rows.txt").read_text() == "the last row", run.stderr
    assert "printed" in run.stdout
    assert "by C" in run.stdout


FULL_PIPE = """
import os
from footplate.runtime.program_end import write_buffers

_unread, end = os.pipe()
file = open(end, "wb", buffering=1 << 20)
file.write(bytes(1 << 19))
write_buffers(within=0.1)
os._exit(0)
"""


def test_a_pipe_that_nobody_reads_does_not_block_the_end() -> None:
    run = subprocess.run([sys.executable, "-c", FULL_PIPE], cwd=REPOSITORY, timeout=60)

    assert run.returncode == 0
