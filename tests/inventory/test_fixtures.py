"""Tests the helpers that start processes and wait for them in other tests."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

from tests.support.processes import Processes, children, free_port, is_alive, processes_using, until
from tests.support.template import Forked


def test_leftover_processes_include_a_grandchild_that_left_its_process_group(
    processes: Processes, tmp_path: Path
) -> None:
    escape = "import subprocess, sys; subprocess.Popen(['sleep', '60'], start_new_session=True, env={}).wait()"
    parent = processes.start("-c", escape, name="parent")
    (grandchild,) = until(lambda: children(parent.pid), what="the grandchild is forked")
    # A process that has just been forked is a copy of its parent, and closes its files one by one.
    runs_sleep = Path(f"/proc/{grandchild}/cmdline").read_bytes
    until(lambda: runs_sleep().startswith(b"sleep"), what="the grandchild runs its own program")

    parent.kill_group()

    assert grandchild in processes_using(tmp_path)
    os.kill(grandchild, signal.SIGKILL)
    until(lambda: not is_alive(grandchild), what="the grandchild is gone")


def test_a_program_forked_from_the_template_behaves_like_a_started_program(
    processes: Processes, tmp_path: Path
) -> None:
    """Each program waits for a database that does not answer, while the test reads the program's /proc entries."""
    port, programs, descriptions = free_port(), [], []
    setting = {"FOOTPLATE_DATABASE": f"postgresql+psycopg://user@127.0.0.1:{port}/none", "FOOTPLATE_HOME": tmp_path}
    for environ in (setting, {**setting, "PYTHONHASHSEED": "1"}):
        with socket.create_server(("127.0.0.1", port)) as database:
            database.settimeout(300)
            process = processes.start("-m", "service", "all", env=environ)
            connection, _ = database.accept()
        with connection:
            about = Path(f"/proc/{process.pid}")
            environment = {line for line in (about / "environ").read_bytes().split(b"\0") if line[:10] != b"PYTHONHASH"}
            words = (about / "cmdline").read_bytes().rstrip(b"\0")
            links = [os.readlink(about / name) for name in ("cwd", "fd/0")]
        programs.append(process)
        descriptions.append((os.getsid(process.pid) - process.pid, words, links, environment, process.wait(60)))

    forked, fresh = programs
    assert isinstance(forked.popen, Forked)
    assert not isinstance(fresh.popen, Forked), "a variable that imports read must have its effect"
    assert descriptions[0] == descriptions[1]
    assert forked.output == fresh.output
