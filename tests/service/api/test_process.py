"""Tests `python -m service …` as an operator starts it: settings, schema, output and its end."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from websockets.asyncio.client import connect

from service import program
from service.store import schema
from tests.service.api.conftest import PATIENCE, SPEC, rest
from tests.support.processes import Processes, clean_environment, until_async
from tests.support.redis_server import RedisServer


def environment(folder: Path, **more: Any) -> dict[str, Any]:
    return {"FOOTPLATE_HOME": folder, "FOOTPLATE_PORT": 0, "FOOTPLATE_URL_FILE": folder / "url", **more}


def start(processes: Processes, role: str, **more: Any) -> tuple[Any, str]:
    env = environment(processes.folder, **more)
    assert processes.start("-m", "service", "migrate", env=env).wait(60) == 0
    process = processes.start("-m", "service", role, env=env)
    process.until((processes.folder / "url").exists, within=30, what="the service listens")
    return process, (processes.folder / "url").read_text().strip()


class Ended(NamedTuple):
    code: int
    output: str


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Returns a function that runs `python -m service ROLE` in this process. An unexpected exception is raised."""

    def run(role: str, **settings: Any) -> Ended:
        for name, value in environment(tmp_path, **settings).items():
            monkeypatch.setenv(name, str(value))
        # Otherwise the service would replace the log handlers of pytest.
        monkeypatch.setattr(program, "_log_plainly", lambda *_: None)
        try:
            code = program.main([role])
        except SystemExit as end:
            code = int(end.code or 0)
        return Ended(code, "".join(capfd.readouterr()))

    return run


def test_importing_the_service_imports_neither_torch_nor_an_exporter_of_traces() -> None:
    unwanted = {"torch", "numpy", "opentelemetry.exporter", "service.spans"}
    code = f"import sys, service.__main__, service.app; print({unwanted} & {{*sys.modules}})"

    assert subprocess.check_output([sys.executable, "-c", code], env=clean_environment(), text=True) == "set()\n"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"FOOTPLATE_PORT": "many"}, "FOOTPLATE_PORT='many'"),
        ({"FOOTPLATE_HOST": "0.0.0.0"}, "FOOTPLATE_API_KEY"),
        ({"FOOTPLATE_DATABASE": "mysql://x"}, "sqlite:///path"),
        ({"FOOTPLATE_REDIS": "http://x"}, "FOOTPLATE_REDIS='http://x'"),
        ({"FOOTPLATE_REDIS": "redis://h:port"}, "FOOTPLATE_REDIS='redis://h:port'"),
    ],
)
def test_a_setting_that_cannot_work_stops_the_start_with_one_sentence(
    run: Callable[..., Ended], settings: dict[str, str], sentence: str
) -> None:
    code, output = run("api", **settings)

    assert code == 2
    assert sentence in output


def test_the_refusal_of_a_setting_shows_no_secrets(processes: Processes) -> None:
    settings = {
        "FOOTPLATE_DATABASE": "postgresql+psycopg://u:sekret@127.0.0.1:1/x",
        "FOOTPLATE_REDIS": "http://:sekret@h",
        "FOOTPLATE_API_KEY": "sekret",
        "FOOTPLATE_HOST": "0.0.0.0",
    }
    for wrong in (settings, settings | {"FOOTPLATE_REDIS": ""}):
        process = processes.start("-m", "service", "api", env=environment(processes.folder, **wrong))

        assert process.wait(30) == 2
        assert "FOOTPLATE_" in process.output
        assert "sekret" not in process.output


@pytest.mark.parametrize("role", ["api", "migrate"])
def test_an_unreachable_database_stops_the_start_with_one_sentence(run: Callable[..., Ended], role: str) -> None:
    code, output = run(role, FOOTPLATE_DATABASE="postgresql+psycopg://u:sekret@127.0.0.1:1/x")

    assert code == 1
    assert "Traceback" not in output
    assert "connection failed" in output
    assert "sekret" not in output


@pytest.mark.parametrize("role", ["api", "control", "all"])
def test_a_database_without_its_schema_is_refused_with_the_command_that_makes_it(
    run: Callable[..., Ended], role: str
) -> None:
    code, output = run(role)

    assert code == 2
    assert "python -m service migrate" in output


def test_migrate_logs_the_version_that_the_database_has_afterwards(
    run: Callable[..., Ended], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="footplate"):
        code, _ = run("migrate")

    assert code == 0
    assert f"the database is at version {schema.newest()}" in caplog.text


def test_an_unknown_role_is_refused_with_the_known_roles(run: Callable[..., Ended]) -> None:
    code, output = run("apo")

    assert code == 2
    assert all(role in output for role in ("api", "control", "all", "migrate"))


def test_an_address_in_use_stops_the_start_with_one_sentence(run: Callable[..., Ended], sqlite_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code, output = run("api", FOOTPLATE_PORT=listener.getsockname()[1], FOOTPLATE_DATABASE=sqlite_url)

    assert code == 2
    assert "FOOTPLATE_PORT=0 takes any free port" in output


async def test_sigterm_closes_sockets_and_ends_in_three_seconds(processes: Processes) -> None:
    process, url = await asyncio.to_thread(start, processes, "api")
    async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        job = (await client.post("/jobs", json=SPEC)).json()["id"]
        async with connect(f"{url.replace('http', 'ws')}/jobs/{job}/stream") as stream:
            await stream.recv()

            process.signal(signal.SIGTERM)
            ending = asyncio.create_task(rest(stream))
            await until_async(lambda: not process.is_running, within=3.5, what="the service ends within three seconds")
            _, code, _ = await ending

    assert (process.popen.returncode, code) == (0, 1012)
    assert not (processes.folder / "url").exists()


async def test_a_stream_of_one_api_process_shows_a_cancel_sent_to_another(
    processes: Processes, redis: RedisServer
) -> None:
    _, first = await asyncio.to_thread(start, processes, "api", FOOTPLATE_REDIS=redis.url)
    (processes.folder / "url").unlink()
    _, second = await asyncio.to_thread(start, processes, "api", FOOTPLATE_REDIS=redis.url)
    async with httpx2.AsyncClient(timeout=PATIENCE) as client:
        job = (await client.post(f"{first}/jobs", json=SPEC)).json()["id"]
        async with connect(f"{first.replace('http', 'ws')}/jobs/{job}/stream") as stream:
            while "caught_up" not in json.loads(await stream.recv()):
                pass

            await client.post(f"{second}/jobs/{job}/cancel")

            frames, code, _ = await rest(stream)
    assert (frames[-1]["end"], code) == ("cancelled", 1000)
