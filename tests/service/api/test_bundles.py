"""Users' code is uploaded as a zip. It is stored by its sha256, refused if it is unusable, and compared with specs."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from footplate.contract.bundles import MAX_BYTES
from footplate.contract.lifecycle import JobState
from footplate.contract.resources.artifacts import Bundle
from tests.service.api.conftest import SPEC, Api, Serve
from tests.support.bundles import packed

ZIP = {"Content-Type": "application/zip"}


def zipped(**files: str) -> bytes:
    return packed({f"{name}.py": text for name, text in files.items()})


CODE = zipped(my_code="class Net: ...", train="print(1)")
SHA = sha256(CODE).hexdigest()


@pytest.fixture
async def open_api(serve: Serve, sqlite_url: str) -> Api:
    return await serve(sqlite_url, code="on")


async def post(api: Api, body: Any = CODE, headers: dict[str, str] = ZIP) -> Any:
    return await api.client.post("/bundles", content=body, headers=headers)


def problems(answer: Any) -> list[tuple[str, str]]:
    return [(error["pointer"], error["code"]) for error in answer.json()["errors"]]


async def test_a_bundle_is_stored_and_downloaded_by_its_sha256(open_api: Api, tmp_path: Path) -> None:
    first, again = await post(open_api), await post(open_api)

    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert Bundle.model_validate(first.json()).sha256 == SHA
    assert [file["path"] for file in first.json()["files"]] == ["my_code.py", "train.py"]
    assert first.headers["location"] == f"/bundles/{SHA}"
    assert (await open_api.client.get(f"/bundles/{SHA}")).json() == first.json()
    assert (await open_api.client.get(f"/bundles/{SHA}/archive")).content == CODE
    folder = tmp_path / "artifacts" / "bundles"
    assert [path.name for path in folder.iterdir()] == [f"{SHA}.zip"]


async def test_a_file_that_is_not_a_bundle_is_refused_and_not_stored(open_api: Api, tmp_path: Path) -> None:
    wrong = await post(open_api, zipped(json="x = 1"))

    assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_bundle")
    assert problems(wrong) == [("/json.py", "name_taken")]
    assert (await post(open_api, b"")).json()["errors"][0]["code"] == "empty_bundle"
    assert (await post(open_api, headers={"Content-Type": "application/json"})).status_code == 415
    assert list((tmp_path / "artifacts" / "bundles").iterdir()) == []
    assert (await open_api.client.get("/bundles")).json()["data"] == []


@pytest.mark.parametrize("says", ["with Content-Length", "without Content-Length"])
async def test_an_upload_that_is_too_large_is_refused_before_it_has_arrived(
    open_api: Api, tmp_path: Path, says: str
) -> None:
    sent_bytes = 0

    async def body() -> Any:
        nonlocal sent_bytes
        while sent_bytes < 4 * MAX_BYTES:
            sent_bytes += 1 << 20
            yield bytes(1 << 20)

    headers = {**ZIP, "Content-Length": str(4 * MAX_BYTES)} if says == "with Content-Length" else ZIP
    try:
        answer = await post(open_api, body(), headers)
    except Exception:
        assert sent_bytes < 4 * MAX_BYTES
    else:
        assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert list((tmp_path / "artifacts" / "bundles").glob("*")) == []


async def test_a_bundle_can_be_deleted_once_no_unfinished_job_needs_it(open_api: Api, tmp_path: Path) -> None:
    await post(open_api)
    job = await open_api.submit(code={"bundle": SHA}, model="my_code:Net")

    refusal = await open_api.client.delete(f"/bundles/{SHA}")
    await open_api.end(job, JobState.FAILED)
    deletion = await open_api.client.delete(f"/bundles/{SHA}")

    assert (refusal.status_code, refusal.json()["code"]) == (409, "bundle_in_use")
    assert job in refusal.json()["detail"]
    assert deletion.status_code == 204
    assert (await open_api.client.get(f"/bundles/{SHA}")).status_code == 404
    assert list((tmp_path / "artifacts" / "bundles").iterdir()) == []
    assert (await post(open_api)).status_code == 201


@pytest.mark.parametrize("address", ["", "/archive"])
async def test_a_missing_bundle_is_a_404_whatever_its_id_looks_like(open_api: Api, address: str) -> None:
    for name in ("0" * 64, "latest", "..%2f..%2fetc"):
        assert (await open_api.client.get(f"/bundles/{name}{address}")).status_code == 404


async def test_names_in_a_spec_are_checked_against_its_bundle(open_api: Api) -> None:
    await post(open_api)
    wrong = {"code": {"bundle": SHA}, "model": "my_cod:Net", "data": {"train": "my_code:Data"}, "trainer": "other:T"}

    answer = await open_api.client.post("/jobs", json={**SPEC, **wrong})
    unknown = await open_api.client.post("/jobs", json={**SPEC, "code": {"bundle": "0" * 64}})

    assert problems(answer) == [("/model", "not_in_bundle"), ("/trainer", "not_in_bundle")]
    assert answer.json()["errors"][0]["hint"] == "did you mean 'my_code'?"
    assert problems(unknown) == [("/code/bundle", "unknown_bundle")]
    validated = await open_api.client.post("/jobs/validate", json={**SPEC, **wrong})
    assert problems(validated) == problems(answer)


async def test_bundles_are_refused_with_the_setting_if_code_is_off(api: Api) -> None:
    refusal = await post(api)
    spec = await api.client.post("/jobs", content=json.dumps({**SPEC, "code": {"bundle": SHA}}),
                                 headers={"Content-Type": "application/json"})  # fmt: skip

    assert (refusal.status_code, refusal.json()["code"]) == (403, "code_is_off")
    assert "FOOTPLATE_CODE" in refusal.json()["hint"]
    assert ("/code", "code_is_off") in problems(spec)
    assert "FOOTPLATE_CODE" in spec.json()["errors"][0]["hint"]
