"""Artifacts in a bucket are served as from a folder. If the bucket is unreachable, answers say so."""

from __future__ import annotations

import asyncio
import io
import json
import sqlite3
import tarfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from footplate.contract import layout
from footplate.contract.bucket import RemoteStore
from footplate.contract.ids import JobId
from footplate.contract.lifecycle import JobState
from service.backup import back_up
from service.control.cleanup import write_probe
from service.jobs.prune import prune_deleted, prune_late
from service.jobs.remove_folders import Remover
from service.store import checkpoints
from service.store.row_types import CheckpointRow
from tests.service.api.conftest import Api, Serve
from tests.service.api.test_requests import is_problem
from tests.support.bundles import packed
from tests.support.s3_server import S3Server

FILES = {"model.safetensors": bytes(range(256)) * 1000, "deep/empty": b"", "trainer_state.json": b"{}"}


@pytest.fixture
async def api(serve: Serve, sqlite_url: str, s3: S3Server, request: pytest.FixtureRequest) -> Api:
    result = await serve(sqlite_url, artifacts=f"s3://shelf/{request.node.name}", code="on")
    await asyncio.to_thread(write_probe, result.services.settings.store)
    return result


@pytest.fixture
def store(api: Api) -> RemoteStore:
    result = api.services.settings.store
    assert isinstance(result, RemoteStore)
    return result


async def save(api: Api, store: RemoteStore, job: JobId, step: int, **changes: Any) -> CheckpointRow:
    """Uploads the files of a checkpoint as a node does, and records it as ingest does."""
    path = str(layout.checkpoint_folder(job, 1, step))
    reports = {name: {"bytes": len(content), "sha256": sha256(content).hexdigest()} for name, content in FILES.items()}
    manifest = json.dumps({"format": 1, "step": step, "files": reports}).encode()
    for name, content in {**FILES, layout.MANIFEST: manifest}.items():
        await asyncio.to_thread(store.write, content, f"{path}/{name}")
    digest = sha256(manifest).hexdigest()
    return await api.commit(job, step, **{"bytes": 1000, "files": 4, "manifest_sha256": digest, **changes})


async def names(store: RemoteStore, folder: str) -> list[str]:
    return [item.path for item in await asyncio.to_thread(store.files, folder)]


async def test_a_checkpoint_is_listed_and_downloaded_by_ranges_and_as_one_tar(api: Api, store: RemoteStore) -> None:
    job = await api.submit()
    row = await save(api, store, job, 5)
    address = f"/jobs/{job}/checkpoints/{row.id}"

    entries = (await api.client.get(f"{address}/files")).json()["data"]
    whole = await api.client.get(f"{address}/files/model.safetensors")
    part = await api.client.get(f"{address}/files/model.safetensors", headers={"Range": "bytes=100-199"})
    values = await api.client.get(
        f"{address}/files/model.safetensors", headers={"If-None-Match": whole.headers["etag"]}
    )
    tar = await api.client.get(f"{address}/archive")

    assert {entry["path"] for entry in entries} == {*FILES, layout.MANIFEST}
    assert whole.content == FILES["model.safetensors"]
    assert (part.status_code, part.content) == (206, FILES["model.safetensors"][100:200])
    assert part.headers["content-range"] == "bytes 100-199/256000"
    assert values.status_code == 304
    assert (await api.client.head(f"{address}/files/deep/empty")).headers["content-length"] == "0"
    with tarfile.open(fileobj=io.BytesIO(tar.content)) as unpacked:
        contents = {member.name: unpacked.extractfile(member).read() for member in unpacked if member.isfile()}  # type: ignore[union-attr]
    assert {f"checkpoint-5/{name}": content for name, content in FILES.items()}.items() <= contents.items()
    assert (await api.client.get(f"{address}/files/model.bin")).status_code == 404


async def test_a_damaged_checkpoint_in_a_bucket_is_refused_as_damaged(api: Api, store: RemoteStore) -> None:
    job = await api.submit()
    row = await save(api, store, job, 5)
    await asyncio.to_thread(store.write, b"half", f"{row.path}/model.safetensors")

    for what in ("files/model.safetensors", "archive"):
        answer = await api.client.get(f"/jobs/{job}/checkpoints/{row.id}/{what}")
        assert is_problem(answer, 409, "checkpoint_damaged")


async def test_a_pinned_checkpoint_in_a_bucket_stays_and_an_unpinned_one_is_deleted(
    api: Api, store: RemoteStore
) -> None:
    job = await api.submit(training={"save_total_limit": 1})
    rows = {step: await save(api, store, job, step) for step in (5, 10, 15)}
    pinned = await api.client.patch(f"/jobs/{job}/checkpoints/{rows[5].id}", json={"pinned": True})
    paths = [rows[5].path, rows[10].path]
    await api.db.write(lambda conn: checkpoints.mark(conn, job, paths, checkpoints.DELETING))

    deleting = await api.db.read(checkpoints.deleting)
    removed = await asyncio.to_thread(Remover().remove, store, deleting, 0.0)

    assert (pinned.json()["pinned"], pinned.json()["path"]) == (True, rows[5].path)
    assert removed == [(job, rows[10].path)]
    assert await names(store, rows[10].path) == []
    assert len(await names(store, rows[5].path)) == 4
    free = await api.client.patch(f"/jobs/{job}/checkpoints/{rows[5].id}", json={"pinned": False})
    assert (free.json()["pinned"], free.json()["path"], free.json()["status"]) == (False, rows[5].path, "committed")
    dropped = await api.client.delete(f"/jobs/{job}/checkpoints/{rows[5].id}")
    assert (dropped.status_code, dropped.json()["status"]) == (202, "deleting")


async def test_outputs_are_listed_and_downloaded(api: Api, store: RemoteStore) -> None:
    job = await api.submit()
    folder = str(layout.outputs_folder(job, 1))
    for name, content in FILES.items():
        await asyncio.to_thread(store.write, content, f"{folder}/{name}")
    await api.end(job)
    await api.db.write(lambda conn: _set_outputs(conn, job, folder))

    entries = (await api.client.get(f"/jobs/{job}/outputs")).json()["data"]
    part = await api.client.get(f"/jobs/{job}/outputs/model.safetensors", headers={"Range": "bytes=-3"})

    assert {entry["path"]: entry["bytes"] for entry in entries} == {
        name: len(content) for name, content in FILES.items()
    }
    assert (part.status_code, part.content) == (206, FILES["model.safetensors"][-3:])
    assert (await api.client.get(f"/jobs/{job}/outputs/../data.json")).status_code == 404
    assert (await api.client.delete(f"/jobs/{job}")).status_code == 204
    assert await names(store, f"jobs/{job}") == []


def _set_outputs(conn: Any, job: JobId, folder: str) -> None:
    from service.store import jobs

    jobs.record(conn, job, outputs=folder)


async def test_files_and_bundles_are_stored_read_and_deleted_in_a_bucket(api: Api, store: RemoteStore) -> None:
    rows, code = b'{"a": 1}\n{"a": 2}\n', packed({"mine.py": "x = 1"})
    file, again = [await api.client.post("/files?name=rows.jsonl", content=rows) for _ in range(2)]
    bundle = await api.client.post("/bundles", content=code, headers={"Content-Type": "application/zip"})

    assert (file.status_code, again.status_code, bundle.status_code) == (201, 200, 201)
    content = f"/files/{file.json()['id']}/content"
    assert (await api.client.get(content, headers={"Range": "bytes=0-7"})).content == rows[:8]
    assert (await api.client.get(f"/bundles/{bundle.json()['sha256']}/archive")).content == code
    assert await names(store, "files") == [file.json()["id"]]
    assert (await api.client.delete(f"/files/{file.json()['id']}")).status_code == 204
    assert (await api.client.delete(f"/bundles/{bundle.json()['sha256']}")).status_code == 204
    assert await names(store, "files") == await names(store, "bundles") == []


async def test_an_unreachable_bucket_is_reported_and_jobs_are_still_accepted(
    api: Api, store: RemoteStore, s3: S3Server
) -> None:
    job = await api.submit()
    row = await save(api, store, job, 5)
    file = (await api.client.post("/files?name=rows.jsonl", content=b'{"a": 3}\n')).json()["id"]
    ready = (await api.client.get("/readyz")).json()
    with s3.away():
        for address in (f"/jobs/{job}/checkpoints/{row.id}/files", f"/files/{file}/content"):
            assert is_problem(await api.client.get(address), 503, "store_unreadable")
        for answer in (
            await api.client.post("/files?name=rows.jsonl", content=b'{"a": 4}\n'),
            await api.client.delete(f"/files/{file}"),
        ):
            assert is_problem(answer, 503, "store_unwritable")
        away = (await api.client.get("/readyz")).json()
        removed = await asyncio.to_thread(Remover().remove, store, [(job, row.path)], 0.0)
        await api.submit()

    assert "artifacts" not in ready["degraded"]
    assert "artifacts" in away["degraded"]
    assert "s3://shelf/" in away["details"]["artifacts"]
    assert removed == [], "nothing must be removed while the store is unreachable"
    assert (await api.client.get(f"/files/{file}/content")).content == b'{"a": 3}\n'


async def test_half_uploaded_checkpoints_and_files_of_deleted_jobs_are_removed(api: Api, store: RemoteStore) -> None:
    job = await api.submit()
    values = await save(api, store, job, 5)
    half = str(layout.checkpoint_folder(job, 1, 10))
    await asyncio.to_thread(store.write, b"...", f"{half}/model.safetensors")

    paths = await asyncio.to_thread(prune_late, store, {(job, 1): {values.path}})

    assert [str(path) for path in paths] == [half]
    assert await names(store, half) == []
    assert len(await names(store, values.path)) == 4
    await api.end(job, JobState.FAILED)
    assert await asyncio.to_thread(prune_deleted, store, [job]) == {}
    assert await names(store, f"jobs/{job}") == []


async def test_a_backup_contains_the_database_and_no_file_of_the_bucket(api: Api, tmp_path: Path) -> None:
    job = await api.submit()
    await asyncio.to_thread(back_up, api.services.settings, tmp_path / "backup")

    assert [path.name for path in (tmp_path / "backup").iterdir()] == ["footplate.db"]
    with sqlite3.connect(tmp_path / "backup" / "footplate.db") as copy:
        assert copy.execute("SELECT id FROM jobs").fetchall() == [(job,)]


async def test_a_refused_completion_of_an_upload_leaves_no_file_in_the_bucket(api: Api, store: RemoteStore) -> None:
    rows = [json.dumps({"prompt": text, "completion": "b"}).encode() + b"\n" for text in ("a", "c")]
    body = {"bytes": len(b"".join(rows)), "filename": "a.jsonl", "mime_type": "text/jsonl", "purpose": "fine-tune"}
    upload = (await api.client.post("/v1/uploads", json=body)).json()["id"]
    parts = [
        (await api.client.post(f"/v1/uploads/{upload}/parts", files={"data": row})).json()["id"] for row in rows
    ]  # fmt: skip

    whole = await api.client.post(f"/v1/uploads/{upload}/complete", json={"part_ids": parts})
    other = await api.client.post(f"/v1/uploads/{upload}/complete", json={"part_ids": parts[::-1]})

    assert (whole.status_code, other.status_code) == (200, 409)
    file = whole.json()["file"]["id"]
    assert await names(store, str(layout.UPLOADS)) == [file]
