"""Tests `/v1` with OpenAI's SDK for Node. `tests/openai_node/` has the SDK's version and the two programs."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from footplate.contract.ids import JobId
from tests.service.api.conftest import KEY, Api
from tests.service.api.test_openai import BASE, api, stored_checkpoint  # noqa: F401  # a fixture
from tests.support.processes import REPOSITORY

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(300)]


async def program(*words: str, folder: Path, **environment: str) -> str:
    """Runs a program in a folder, and returns what it printed."""
    process = await asyncio.create_subprocess_exec(
        *words, cwd=folder, env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, complaints = await process.communicate()
    assert process.returncode == 0, f"{words}: {complaints.decode()[-3000:]}"
    return output.decode()


@pytest.fixture
async def package(tmp_path: Path) -> Path:
    """Returns a folder with the two programs, in which npm has installed the SDK of the lock file."""
    if shutil.which("npm") is None:
        pytest.skip("needs Node 20: apt-get install nodejs npm")
    folder = tmp_path / "package"
    shutil.copytree(REPOSITORY / "tests/openai_node", folder, ignore=shutil.ignore_patterns("node_modules"))
    await program("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", folder=folder)
    return folder


async def test_openais_sdk_for_node_creates_lists_and_reads_jobs_and_models(api: Api, package: Path) -> None:  # noqa: F811
    async def sdk(*words: str) -> Any:
        access = {"OPENAI_BASE_URL": f"{api.url}/v1", "OPENAI_API_KEY": KEY}
        return json.loads(await program("node", *words, folder=package, **access))

    create_output = await sdk("create.mjs", BASE)

    assert create_output["file"] == ["file", "fine-tune", "processed", 10]
    assert create_output["listed"] == create_output["jobs"][::-1]
    assert create_output["statuses"] == ["queued", "paused", "queued", "cancelled"]
    assert create_output["metadata"] == {"team": "three"}
    assert create_output["refused"] == [True, 404, "model_not_found"]

    job = JobId(create_output["jobs"][2])
    for step in (10, 20):
        await stored_checkpoint(api, job, step)
    await api.end(job)
    read_output = await sdk("read.mjs", job)

    assert (read_output["status"], read_output["isListed"], read_output["steps"]) == ("succeeded", True, [20, 10])
    assert read_output["model"] == f"ft:{BASE}:default:three:{job.removeprefix('job_')}"
    assert read_output["messages"][0] == "The job has successfully completed"
    assert read_output["messages"][-1] == f"Created fine-tuning job: {job}"
    assert (read_output["deleted"], read_output["missing"]) == (True, [True, "model_not_found"])
