"""The command and the SDK handle many jobs and users' own code, against a service on a socket."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from pathlib import Path

import pytest

from footplate import Client
from footplate.errors import InvalidRequest
from footplate.sdk.bundles import packed
from service.store import nodes
from tests.service.api.conftest import Api, Command, Serve
from tests.service.api.test_system import a_node


@pytest.fixture
async def api(serve: Serve, sqlite_url: str) -> Api:
    return await serve(sqlite_url, code="on")


async def states(api: Api) -> dict[str, str]:
    return {row["id"]: row["state"] for row in (await api.client.get("/jobs")).json()["data"]}


async def test_many_jobs_are_cancelled_resumed_and_deleted_by_filters(api: Api, command: Command) -> None:
    mine, too, other = await api.submit(tags=["sweep"]), await api.submit(tags=["sweep"]), await api.submit()

    code, output, _ = await command("cancel", "--tag", "sweep", "--mode", "kill")

    assert (code, set(output.splitlines())) == (0, {f"{mine} cancelled", f"{too} cancelled"})
    assert await states(api) == {mine: "cancelled", too: "cancelled", other: "queued"}
    assert (await command("resume", "--tag", "sweep"))[0] == 0
    assert (await command("pause", "--tag", "sweep", "--state", "queued"))[0] == 0
    assert await states(api) == {mine: "paused", too: "paused", other: "queued"}
    code, output, report = await command("rm", "--tag", "sweep")
    assert (code, output, "no job matches" in report) == (0, "", True)
    await command("cancel", "--tag", "sweep")
    assert (await command("rm", "--state", "cancelled", "--created-before", "2020-01-01T00:00:00Z"))[1] == ""
    code, output, _ = await command("rm", "--state", "cancelled", "--created-after", "2020-01-01T00:00:00Z", "--json")
    assert {json.loads(line)["job"] for line in output.splitlines()} == {mine, too}
    assert await states(api) == {other: "queued"}


async def test_a_job_is_resumed_from_an_older_checkpoint_by_command(api: Api, command: Command) -> None:
    job = await api.submit()
    older, _ = await api.commit(job, 10), await api.commit(job, 20)
    assert (await command("pause", job))[0] == 0

    code, output, report = await command("resume", job, "--checkpoint", older.id)

    assert (code, output.startswith(f"{job} queued")) == (0, True), report
    checkpoint = (await api.client.get(f"/jobs/{job}/checkpoints/latest")).json()
    assert checkpoint["id"] == older.id


async def test_a_resume_changes_the_limits_and_the_pool_of_a_job(api: Api, command: Command) -> None:
    job = await api.submit(resources={"time_limit": "1h"})
    await command("pause", job)
    limits = ["--time-limit", "8h", "--num-train-epochs", "9", "--pool", "slow"]

    code, _, report = await command("resume", job, *limits)

    spec = (await api.client.get(f"/jobs/{job}/spec")).json()
    assert (code, report) == (0, "")
    assert (spec["resources"]["time_limit"], spec["resources"]["pool"]) == (8 * 3600, "slow")
    assert spec["training"]["num_train_epochs"] == 9


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["cancel"], "no job is named"),
        (["rm", "@last", "--tag", "a"], "both jobs and filters"),
        (["resume", "--tag", "a", "--checkpoint", "best"], "--checkpoint cannot be combined with filters"),
        (["pause", "--state", "runing"], "did you mean 'running'?"),
    ],
)
async def test_a_command_line_with_unclear_jobs_is_refused(command: Command, words: list[str], sentence: str) -> None:
    code, out, err = await command(*words)

    assert (code, out, sentence in err) == (2, "", True), err


async def test_a_bulk_request_of_the_client_with_ids_and_filters_changes_no_job(api: Api) -> None:
    job = await api.submit()

    with pytest.raises(InvalidRequest):
        await asyncio.to_thread(lambda: Client(api.url).jobs.bulk("cancel", ids=[job], name="other"))

    assert await states(api) == {job: "queued"}


async def test_a_node_is_drained_by_its_name(api: Api, command: Command) -> None:
    await a_node(api)

    code, output, err = await command("nodes", "--drain", "one")

    assert (code, "one" in output) == (0, True), err
    (node,) = (await api.client.get("/nodes")).json()["data"]
    assert (node["takes_work"], node["state"]) == (False, "draining")
    assert (await command("nodes", "--undrain", node["id"]))[0] == 0
    assert (await api.client.get("/nodes")).json()["data"][0]["state"] != "draining"
    code, _, err = await command("nodes", "--drain", "node-2")
    assert (code, "'node-2'" in err and "known: one" in err) == (3, True)


async def test_a_lost_node_is_removed_by_its_name(api: Api, command: Command) -> None:
    node = await a_node(api)
    code, _, err = await command("nodes", "--remove", "one")
    assert (code, "sends heartbeats" in err) == (2, True), err
    await api.db.write(lambda conn: nodes.change(conn, node, lost=True))

    code, output, err = await command("nodes", "--remove", "one")

    assert (code, "one deleted" in output) == (0, True), err
    assert (await api.client.get("/nodes")).json()["data"] == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    result = tmp_path / "mine"
    (result / "parts").mkdir(parents=True)
    (result / "my_code.py").write_text("def net(): ...\n")
    (result / "parts" / "more.py").write_text("")
    for left_out in (".git/config", "__pycache__/my_code.pyc", "venv/lib.py", ".env"):
        (result / left_out).parent.mkdir(exist_ok=True)
        (result / left_out).write_text("secret")
    return result


async def test_a_folder_of_code_is_sent_once_and_named_by_the_spec(
    api: Api, command: Command, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = '{"model": "my_code:net", "data": "toy/regression", "code": {"requires": []}}'

    with caplog.at_level(logging.INFO, "footplate.audit"):
        code, job, err = await command("submit", spec, "--code", str(folder))
        assert (await command("validate", spec, "--code", str(folder)))[0] == 0

    assert code == 0, err
    (bundle,) = (await api.client.get("/bundles")).json()["data"]
    assert [file["path"] for file in bundle["files"]] == ["my_code.py", "parts/more.py"]
    assert (await api.client.get(f"/jobs/{job.strip()}/spec")).json()["code"]["bundle"] == bundle["sha256"]
    audited = [record.getMessage() for record in caplog.records if "bundle" in record.getMessage()]
    assert audited == [f"bundle {bundle['sha256']} of project default stored by None"]
    placeholder = spec.replace('requires": []', 'bundle": "<the sha256 that POST /bundles returned>"')
    code, _, err = await command("validate", placeholder, "--code", str(folder))
    assert code == 0, err


async def test_bundles_are_uploaded_and_listed_from_python(
    api: Api, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def blocking() -> None:
        with Client(api.url) as client:
            bundle = client.bundles.upload(folder)
            assert client.bundles.upload(folder) == bundle == client.bundles.get(bundle.sha256)
            item = client.bundles.upload(folder / "my_code.py")
            assert [file.path for file in item.files] == ["my_code.py"]
            assert {entry.sha256 for entry in client.bundles.list()} == {bundle.sha256, item.sha256}
            client.bundles.delete(item.sha256)
            assert [entry.sha256 for entry in client.bundles.list()] == [bundle.sha256]
            (folder / "torch.py").write_text("")
            with pytest.raises(InvalidRequest, match="torch") as hides:
                client.bundles.upload(folder)
            assert [problem.code for problem in hides.value.problems] == ["name_taken"]

    with caplog.at_level(logging.INFO, "footplate.audit"):
        await asyncio.to_thread(blocking)

    assert [record.getMessage().split(" of ")[1] for record in caplog.records if "deleted" in record.getMessage()] == [
        "project default deleted by None"
    ]


def test_the_same_files_are_the_same_bundle_whenever_they_were_written(folder: Path) -> None:
    before = packed(folder)
    os.utime(folder / "my_code.py", (1, 1))
    (folder / "my_code.py").chmod(0o600)

    assert packed(folder) == before
    (folder / "my_code.py").chmod(0o700)
    assert packed(folder) != before, "a program stays one"
    (folder / "my_code.py").write_text("def net(): return 1\n")
    assert packed(folder) != before
    (folder / ".git" / "hooks").mkdir()
    with pytest.raises(InvalidRequest, match=re.escape(".git/hooks")):
        packed(folder / ".git" / "hooks")
