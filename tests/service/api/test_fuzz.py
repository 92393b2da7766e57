"""Runs Schemathesis with all of its checks against every described route.

Every answer is described and is not a 5xx. Requests are accepted if the schema allows them, and refused if not.

New routes are included automatically. A failure prints the curl command that repeats it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.service.api import fuzzing
from tests.service.api.conftest import KEY, Api, Serve
from tests.service.api.test_system import a_node


async def test_a_fuzzer_finds_no_answer_outside_the_openapi_document(
    serve: Serve, sqlite_url: str, tmp_path: Path
) -> None:
    api = await served(serve, sqlite_url)

    await tried(api, tmp_path, examples=1, phases="examples,fuzzing")


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_an_hour_of_fuzzing_finds_no_answer_outside_the_document(
    serve: Serve, database_url: str, tmp_path: Path
) -> None:
    api = await served(serve, database_url)

    await tried(api, tmp_path, examples=100, phases="examples,coverage,fuzzing,stateful")


async def served(serve: Serve, database: str) -> Api:
    """Returns an API with some content."""
    api = await serve(database, api_key=KEY, rate_per_key=0, rate_per_address=0, code="on")
    await a_node(api)
    job = await api.submit(name="over", tags=["demo"])
    await api.append(job, *[{"loss": n} for n in range(3)])
    await api.end(job)
    await api.submit(name="waits")
    return api


async def tried(api: Api, folder: Path, *, examples: int, phases: str) -> None:
    document = (await api.client.get("/openapi.json")).json()
    config = folder / "schemathesis.toml"
    config.write_text(fuzzing.config(document, key=KEY, examples=examples))
    words = ["--config-file", str(config), "run", f"{api.url}/openapi.json", "--phases", phases, "--no-color"]
    fuzzer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", *words, "-H", f"Authorization: Bearer {KEY}"),
        env={**os.environ, "SCHEMATHESIS_HOOKS": "fuzzing", "PYTHONPATH": str(Path(fuzzing.__file__).parent)},
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await fuzzer.communicate()
    finally:
        if fuzzer.returncode is None:
            fuzzer.kill()
            await fuzzer.wait()
    assert fuzzer.returncode == 0, output.decode()
    assert b"generated" in output, output.decode()
