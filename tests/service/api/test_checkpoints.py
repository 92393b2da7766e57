"""Tests checkpoints over HTTP: lists, downloads, pins and deletes."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from footplate import AsyncClient
from footplate.contract.ids import JobId, new_checkpoint_id
from footplate.contract.layout import checkpoint_folder, pinned_folder
from footplate.contract.lifecycle import JobState
from footplate.contract.resources.artifacts import Checkpoint, CheckpointFileList, DeletedCheckpoint
from footplate.errors import Conflict, DownloadFailed
from service.jobs import pins
from service.jobs.prune import rotate
from service.store import checkpoints, events
from service.store.row_types import CheckpointRow
from service.store.tables import checkpoints as checkpoint_rows
from tests.service.api.conftest import Api
from tests.service.api.test_requests import is_problem

FILES = {"model.safetensors": bytes(range(256)) * 1000, "deep/empty": b"", "trainer_state.json": b"{}"}


async def save(api: Api, job: JobId, step: int, attempt: int = 1, **changes: Any) -> CheckpointRow:
    """Writes the files of a checkpoint as training does, and records it as ingest does."""
    path = str(checkpoint_folder(job, attempt, step))
    folder = api.services.settings.artifacts_path / path
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    reports = {name: {"bytes": len(content), "sha256": sha256(content).hexdigest()} for name, content in FILES.items()}
    manifest = json.dumps({"format": 1, "step": step, "files": reports}).encode()
    (folder / "manifest.json").write_bytes(manifest)
    digest = sha256(manifest).hexdigest()
    return await api.commit(job, step, attempt, **{"bytes": 1000, "files": 4, "manifest_sha256": digest, **changes})


@pytest.fixture
def artifacts(api: Api) -> Path:
    return api.services.settings.artifacts_path


async def status_of(api: Api, row: CheckpointRow) -> str:
    result: str = (await api.client.get(f"/jobs/{row.job_id}/checkpoints/{row.id}")).json()["status"]
    return result


async def test_a_checkpoint_can_be_named_by_id_as_latest_or_as_best(api: Api) -> None:
    job = await api.submit()
    first, second = await save(api, job, 5, is_best=True), await save(api, job, 10)
    await save(api, job, 15, status="corrupt")

    for name, row in (("latest", second), ("best", first), (first.id, first)):
        answer = await api.client.get(f"/jobs/{job}/checkpoints/{name}")
        assert Checkpoint.model_validate(answer.json()).id == row.id
    for name in ("newest", "ckpt_" + "0" * 32, "%00", "..%2f.."):
        assert is_problem(await api.client.get(f"/jobs/{job}/checkpoints/{name}"), 404, "not_found")
    other = await api.submit()
    for name in ("latest", "best", first.id):
        assert is_problem(await api.client.get(f"/jobs/{other}/checkpoints/{name}/files"), 404, "not_found")


async def test_files_of_a_checkpoint_are_listed_with_hashes_and_downloaded_by_ranges(api: Api) -> None:
    job = await api.submit()
    row = await save(api, job, 5)
    address = f"/jobs/{job}/checkpoints/latest/files"

    report = CheckpointFileList.model_validate((await api.client.get(address)).json())
    sums = {item.path: (item.bytes, item.sha256) for item in report.data}
    whole = await api.client.get(f"{address}/model.safetensors")
    etag = f'"{sums["model.safetensors"][1]}"'
    part = await api.client.get(f"{address}/model.safetensors", headers={"Range": "bytes=255999-", "If-Range": etag})
    head = await api.client.head(f"{address}/deep/empty")

    assert report.checkpoint == row.id
    assert sums["manifest.json"][1] == row.manifest_sha256
    assert {name: sums[name] for name in FILES} == {
        name: (len(content), sha256(content).hexdigest()) for name, content in FILES.items()
    }
    assert (whole.status_code, whole.content, whole.headers["etag"]) == (200, FILES["model.safetensors"], etag)
    assert (part.status_code, part.content) == (206, b"\xff")
    assert (head.status_code, head.headers["content-length"]) == (200, "0")
    missing = await api.client.get(f"{address}/model.bin")
    assert is_problem(missing, 404, "not_found")
    assert "model.safetensors" in missing.json()["hint"]


async def commit_named(api: Api, names: int, unit: str = '"f{0:06}":{{"bytes":0,"sha256":"{1}"}}') -> CheckpointRow:
    """Stores a checkpoint whose manifest names this number of files."""
    row = await save(api, await api.submit(), 5)
    text = ",".join(unit.format(n, "0" * 64) for n in range(names))
    manifest = f'{{"format":1,"step":5,"files":{{{text}}}}}'.encode()
    (api.services.settings.artifacts_path / row.path / "manifest.json").write_bytes(manifest)
    path, digest = row.path, sha256(manifest).hexdigest()
    await api.db.write(
        lambda conn: conn.execute(
            checkpoint_rows.update().where(checkpoint_rows.c.path == path).values(manifest_sha256=digest)
        )
    )
    return row


async def test_files_of_a_checkpoint_are_listed_page_by_page(api: Api) -> None:
    row = await commit_named(api, 2_500)
    address = f"/jobs/{row.job_id}/checkpoints/{row.id}/files"

    first = (await api.client.get(address)).json()
    last = (await api.client.get(f"{address}?cursor=2000&limit=1000")).json()

    assert (len(first["data"]), first["next_cursor"]) == (1000, "1000")
    assert (len(last["data"]), last["next_cursor"]) == (501, None)
    async with AsyncClient(api.url) as client:
        job = await client.jobs.get(row.job_id)
        assert len(await (await job.checkpoints.get(row.id)).contents()) == 2_501
    assert is_problem(await api.client.get(f"{address}?cursor=x"), 422, "invalid_query")


@pytest.mark.parametrize(
    ("names", "unit"), [(600_000, '"{0:x}":0'), (20_000, '"{0:x}":{{"bytes":0}}'), (10, "x" * 300_000)]
)
async def test_a_manifest_that_is_too_large_is_not_read(api: Api, names: int, unit: str) -> None:
    row = await commit_named(api, names, unit)

    answer = await api.client.get(f"/jobs/{row.job_id}/checkpoints/{row.id}/files")

    assert is_problem(answer, 409, "checkpoint_damaged")


async def test_the_archive_is_a_tar_of_the_announced_length(api: Api) -> None:
    job = await api.submit()
    await save(api, job, 5)
    address = f"/jobs/{job}/checkpoints/latest/archive"

    head, answer = await api.client.head(address), await api.client.get(address)

    assert head.headers["content-length"] == answer.headers["content-length"] == str(len(answer.content))
    assert answer.headers["content-disposition"] == f'attachment; filename="{job}-checkpoint-5.tar"'
    assert (await api.client.get(address)).content == answer.content
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as tar:
        for name, content in FILES.items():
            file = tar.extractfile(f"checkpoint-5/{name}")
            assert file is not None
            assert file.read() == content


def climbing(folder: Path) -> None:
    manifest = {"files": {"../../../../secret": {"bytes": 6, "sha256": "0" * 64}}}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def linked(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(folder / "trainer_state.json")


def all_linked(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(folder.with_name("elsewhere"))


def shorter(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"short")


@pytest.mark.parametrize("harm", [climbing, linked, all_linked, shorter])
async def test_a_changed_checkpoint_is_not_served(api: Api, artifacts: Path, harm: Callable[[Path], None]) -> None:
    """Training runs users' own code, which may change any file below its own folder."""
    job = await api.submit()
    row = await save(api, job, 5, **({"manifest_sha256": ""} if harm is climbing else {}))
    harm(artifacts / row.path)
    (artifacts / "secret").write_text("secret")
    address = f"/jobs/{job}/checkpoints/{row.id}"

    for answer in (
        await api.client.get(f"{address}/files/model.safetensors"),
        await api.client.get(f"{address}/archive"),
        await api.client.patch(address, json={"pinned": True}),
    ):
        assert is_problem(answer, 409, "checkpoint_damaged")
    assert not (artifacts / pinned_folder(job, row.id, 5)).exists()
    refusal = await api.client.get(f"{address}/files/..%2f..%2f..%2f..%2f..%2fsecret")
    assert refusal.status_code in (404, 409)


async def test_the_client_downloads_exactly_the_committed_files(api: Api, artifacts: Path, tmp_path: Path) -> None:
    job = await api.submit()
    row = await save(api, job, 5)
    async with AsyncClient(api.url) as client:
        result = await (await client.jobs.get(job)).checkpoints.latest()
        assert result is not None
        model = tmp_path / "out" / "model.safetensors"
        model.parent.mkdir()
        sums = {content.path: content.sha256 for content in await result.contents()}
        # A killed download left this partial file.
        model.with_name(f".{model.name}.{sums[model.name][:16]}.part").write_bytes(FILES[model.name][:1000])

        paths = await result.download(model.parent)

        assert {str(path.relative_to(model.parent)) for path in paths} == {*FILES, "manifest.json"}
        assert model.read_bytes() == FILES[model.name]
        assert [path.name for path in model.parent.rglob("*.part")] == []
        (artifacts / row.path / model.name).write_bytes(bytes(len(FILES[model.name])))
        # All files were downloaded before, so nothing is requested.
        await result.download(model.parent)
        with pytest.raises(DownloadFailed, match="sha256"):
            await result.download(tmp_path / "again")
        assert not list((tmp_path / "again").rglob("*model*"))
        assert (await result.pin()).pinned
        with pytest.raises(Conflict, match="pinned"):
            await result.delete()
        assert not (await result.unpin()).pinned
        assert await (await client.jobs.get(job)).checkpoints.best() is None


async def test_deleting_a_checkpoint_reports_the_freed_bytes_and_the_caller(both: Api) -> None:
    job = await both.submit()
    first = await save(both, job, 5)
    await save(both, job, 10)

    answer = await both.client.delete(f"/jobs/{job}/checkpoints/{first.id}")
    again = await both.client.delete(f"/jobs/{job}/checkpoints/{first.id}")

    assert answer.status_code == again.status_code == 202
    deleted = DeletedCheckpoint.model_validate(answer.json())
    assert (deleted.status, deleted.frees_bytes, again.json()["frees_bytes"]) == ("deleting", 1000, 0)
    assert is_problem(await both.client.get(f"/jobs/{job}/checkpoints/{first.id}/files"), 404, "not_found")
    notes = await both.db.read(lambda conn: events.after(conn, job, 0, 100, ["note"]))
    assert json.loads(notes[-1].data)["checkpoint"] == first.id
    assert await both.db.read(checkpoints.deleting) == [(job, first.path)]


async def test_the_only_checkpoint_of_an_unfinished_job_cannot_be_deleted(api: Api) -> None:
    job = await api.submit()
    corrupt, only = await save(api, job, 5, status="corrupt"), await save(api, job, 10)

    refusal = await api.client.delete(f"/jobs/{job}/checkpoints/latest")
    allowed = await api.client.delete(f"/jobs/{job}/checkpoints/{corrupt.id}")
    await api.end(job, JobState.FAILED)

    assert is_problem(refusal, 409, "checkpoint_needed")
    assert allowed.status_code == 202
    assert (await api.client.delete(f"/jobs/{job}/checkpoints/{only.id}")).status_code == 202


async def test_the_only_checkpoint_of_a_job_stays_even_if_it_is_corrupt(api: Api) -> None:
    job = await api.submit()
    row = await save(api, job, 5, status="corrupt")

    assert is_problem(await api.client.delete(f"/jobs/{job}/checkpoints/{row.id}"), 409, "checkpoint_needed")


@pytest.mark.own_statement
async def test_a_pinned_checkpoint_stays_when_training_deletes_it(both: Api) -> None:
    """Training rotates checkpoints by itself, and reports a deleted folder afterwards."""
    artifacts = both.services.settings.artifacts_path
    job = await both.submit(training={"save_total_limit": 1})
    row = await save(both, job, 5)
    address = f"/jobs/{job}/checkpoints/{row.id}"

    pinned = await both.client.patch(address, json={"pinned": True})
    folder = artifacts / row.path
    same = (folder / "model.safetensors").stat().st_ino
    shutil.rmtree(folder)
    for status in ("deleting", "deleted"):
        await both.db.write(lambda conn, status=status: checkpoints.mark(conn, job, [row.path, _path(pinned)], status))

    assert (pinned.status_code, pinned.json()["pinned"], pinned.json()["status"]) == (200, True, "committed")
    assert (artifacts / _path(pinned) / "model.safetensors").stat().st_ino == same
    result = await both.client.get(f"{address}/files/model.safetensors")
    assert (await status_of(both, row), result.content) == ("committed", FILES["model.safetensors"])
    assert is_problem(await both.client.delete(address), 409, "checkpoint_pinned")


def _path(answer: Any) -> str:
    path: str = answer.json()["path"]
    return path


async def test_limits_do_not_count_pinned_checkpoints_and_apply_again_once_unpinned(api: Api) -> None:
    job = await api.submit(training={"save_total_limit": 1})
    old, older = await save(api, job, 10), await save(api, job, 5)
    for row in (old, older):
        await api.client.patch(f"/jobs/{job}/checkpoints/{row.id}", json={"pinned": True})
    await save(api, job, 20, attempt=2)
    await save(api, job, 30, attempt=3)
    await api.db.write(lambda conn: rotate(conn, job))
    entries = (await api.client.get(f"/jobs/{job}/checkpoints?deleted=true")).json()["data"]
    first_page = (await api.client.get(f"/jobs/{job}/checkpoints")).json()["data"]

    free = await api.client.patch(f"/jobs/{job}/checkpoints/{older.id}", json={"pinned": False})

    assert [(entry["step"], entry["status"]) for entry in entries] == [
        (30, "committed"), (20, "deleting"), (10, "committed"), (5, "committed"),
    ]  # fmt: skip
    assert first_page == [entry for entry in entries if entry["status"] == "committed"]
    assert (free.json()["status"], free.json()["pinned"], free.json()["path"]) == ("deleting", False, older.path)


async def test_an_unpinned_checkpoint_returns_to_its_original_path(api: Api, artifacts: Path) -> None:
    job = await api.submit()
    row = await save(api, job, 5)
    address = f"/jobs/{job}/checkpoints/{row.id}"
    answers = await asyncio.gather(*(api.client.patch(address, json={"pinned": True}) for _ in range(4)))

    assert {answer.status_code for answer in answers} == {200}
    free = await api.client.patch(address, json={"pinned": False})

    assert _path(free) == row.path
    assert list((artifacts / "jobs" / job / "pinned").iterdir()) == []
    moved = await api.client.patch(address, json={"pinned": True})
    shutil.rmtree(artifacts / row.path)
    unpinned = await api.client.patch(address, json={"pinned": False})
    assert (_path(unpinned), unpinned.json()["status"]) == (_path(moved), "committed")
    assert (artifacts / _path(unpinned) / "manifest.json").exists()


async def test_a_checkpoint_that_is_pinned_while_it_is_unpinned_keeps_its_files(api: Api, artifacts: Path) -> None:
    for step in range(1, 6):
        job = await api.submit()
        row = await save(api, job, step)
        address = f"/jobs/{job}/checkpoints/{row.id}"
        await api.client.patch(address, json={"pinned": True})

        wishes = (False, True, False, True, True)
        answers = await asyncio.gather(*(api.client.patch(address, json={"pinned": wish}) for wish in wishes))

        assert {answer.status_code for answer in answers} == {200}
        checkpoint = (await api.client.get(address)).json()
        assert (artifacts / checkpoint["path"] / "manifest.json").exists()
        assert (await api.client.get(f"{address}/archive")).status_code == 200


async def test_links_deleted_while_a_checkpoint_is_pinned_are_made_again(
    api: Api, artifacts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await api.submit()
    row = await save(api, job, 5)
    link, is_first = os.link, iter([True])

    def delete_and_link(source: Path, target: Path, **options: bool) -> None:
        if next(is_first, False):
            pins.remove(artifacts, row)
        link(source, target, **options)

    monkeypatch.setattr(os, "link", delete_and_link)

    answer = await api.client.patch(f"/jobs/{job}/checkpoints/{row.id}", json={"pinned": True})

    assert answer.status_code == 200, answer.text
    assert (artifacts / answer.json()["path"] / "manifest.json").exists()


async def test_only_a_committed_checkpoint_can_be_pinned(api: Api) -> None:
    job = await api.submit()
    corrupt, deleted = await save(api, job, 5, status="corrupt"), await save(api, job, 10, status="deleted")

    for row in (corrupt, deleted):
        answer = await api.client.patch(f"/jobs/{job}/checkpoints/{row.id}", json={"pinned": True})
        assert is_problem(answer, 409, "checkpoint_gone")
    for body in ({}, {"pinned": 1}, {"pinned": True, "forever": True}):
        assert (await api.client.patch(f"/jobs/{job}/checkpoints/{corrupt.id}", json=body)).status_code == 422


async def test_folders_left_by_interrupted_pins_are_removed_after_a_day(
    api: Api, artifacts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await api.submit()
    leftover, used = await save(api, job, 5), await save(api, job, 10)
    pins.link_pinned(artifacts, leftover)
    await api.client.patch(f"/jobs/{job}/checkpoints/{used.id}", json={"pinned": True})
    unknown = artifacts / "jobs" / job / "pinned" / new_checkpoint_id()
    unknown.mkdir()

    def remaining() -> set[str]:
        pins.prune_pins(artifacts, lambda item: api.db.read_now(lambda conn: checkpoints.find(conn, item)))
        return {folder.name for folder in unknown.parent.iterdir()}

    assert remaining() == {leftover.id, used.id, unknown.name}
    monkeypatch.setattr(pins, "LEFT_SECONDS", -1.0)
    assert remaining() == {used.id, unknown.name}
