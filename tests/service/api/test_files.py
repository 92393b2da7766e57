"""Rows are uploaded as files.

They are stored by their content, named in specs by their ids, and refused if unusable.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from footplate import AsyncClient
from footplate.contract.components import HUB_ON, HUBS, Catalogue, Described
from footplate.contract.lifecycle import JobState
from footplate.contract.messages import BOOT_ID, FileRoot, FileRoots
from footplate.contract.resources.artifacts import File
from footplate.errors import InvalidRequest
from service import row_reports
from service.jobs.file_kinds import check_content
from tests.service.api.conftest import SPEC, Api, Serve, each_case
from tests.service.api.test_requests import is_problem

ROWS = b'{"x": 1, "y": 2}\n{"x": 3, "y": 4}\n'
ID = f"file_{sha256(ROWS).hexdigest()}.jsonl"


async def post(api: Api, body: Any = ROWS, name: str = "rows.jsonl", **headers: str) -> Any:
    return await api.client.post("/files", content=body, params={"name": name}, headers=headers)


def stored_files(tmp_path: Path) -> list[str]:
    folder = tmp_path / "artifacts" / "files"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


async def test_an_uploaded_file_is_named_by_its_content_and_returned_unchanged(both: Api, tmp_path: Path) -> None:
    first, again, form = (
        await post(both),
        await post(both, name="others.ndjson"),
        await both.client.post("/files", files={"file": ("C:\\my\\rows ä.jsonl", ROWS, "text/plain")}),
    )

    assert (first.status_code, again.status_code, form.status_code) == (201, 200, 200)
    assert first.json() == again.json() == form.json()
    report = File.model_validate(first.json())
    assert (report.id, report.name, report.bytes) == (ID, "rows.jsonl", len(ROWS))
    assert first.headers["location"] == f"/files/{ID}"
    assert (await both.client.get(f"/files/{ID}")).json() == first.json()
    part = await both.client.get(f"/files/{ID}/content", headers={"Range": "bytes=1-3"})
    assert (part.status_code, part.content, part.headers["etag"]) == (206, ROWS[1:4], f'"{report.sha256}"')
    assert part.headers["content-disposition"] == 'attachment; filename="rows.jsonl"'
    assert stored_files(tmp_path) == [ID]


@pytest.mark.own_statement
async def test_an_upload_answers_with_a_report_of_its_rows(both: Api) -> None:
    file = (await post(both, b"text,label\ngood,1\nbad,x\none,two,three\n", "rows.csv")).json()

    label = file["report"]["columns"][1]
    assert (file["rows"], file["bad_rows"]) == (2, 1)
    assert [(count["type"], count["first"]) for count in label["types"]] == [("integer", 2), ("string", 3)]
    assert [bad["number"] for bad in file["report"]["first_bad"]] == [4]
    assert (await both.client.get(f"/files/{file['id']}")).json() == file
    assert (await both.client.get("/files")).json()["data"] == [{**file, "report": None}]


async def test_rows_of_text_and_parquet_files_are_counted(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The process of the check has a low priority, so it needs long to import pyarrow on a busy machine.
    monkeypatch.setattr(row_reports, "KILLED_AFTER_SECONDS", 600.0)
    monkeypatch.setattr(row_reports, "WAITED_SECONDS", 600.0)
    table = pyarrow.table({"text": ["a", None], "label": [1, 2]})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")

    text = (await post(api, b"one\n\ntwo\n", "rows.txt")).json()
    rows = (await post(api, (tmp_path / "rows.parquet").read_bytes(), "rows.parquet")).json()

    assert (text["kind"], text["rows"]) == ("txt", 2)
    assert await api.submit(data=text["id"])
    assert (rows["rows"], [column["name"] for column in rows["report"]["columns"]]) == (2, ["text", "label"])


async def test_tokens_are_counted_with_a_tokenizer_of_the_nodes_for_stored_files_too(api: Api, tmp_path: Path) -> None:
    words = tmp_path / "models/words"
    words.mkdir(parents=True)
    tokenizer = Tokenizer(WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(words / "tokenizer.json"))
    root = FileRoot.at(tmp_path / "models")
    await api.services.catalogues.close()
    api.services.catalogues.roots = [FileRoots(machine=BOOT_ID.read_text().strip(), data=root, models=root)]
    source = tmp_path / "rows.txt"
    source.write_text("a b c\na\n")
    await post(api, source.read_bytes(), source.name)

    async with AsyncClient(api.url) as client:
        file = await client.files.upload(source, tokenizer="models://words")

    assert file.report is not None
    lengths = file.report.columns[0].tokens
    assert lengths is not None
    assert (lengths.least, lengths.most, lengths.total) == (1, 3, 4)
    for name in ("models://wrods", "models://../models/words", "words"):
        answer = await api.client.post("/files", content=b"a", params={"name": "a.txt", "tokenizer": name})
        assert is_problem(answer, 422, "invalid_query")


async def test_a_file_that_the_artifact_store_cannot_delete_stays_and_the_answer_is_503(
    api: Api, tmp_path: Path
) -> None:
    await post(api)
    content = tmp_path / "artifacts" / "files" / ID
    content.unlink()
    content.mkdir()

    answer = await api.client.delete(f"/files/{ID}")

    assert is_problem(answer, 503, "store_unwritable")
    assert (await api.client.get(f"/files/{ID}")).status_code == 200


async def test_rows_that_could_not_be_checked_are_checked_when_the_file_is_uploaded_again(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = row_reports.KILLED_AFTER_SECONDS
    monkeypatch.setattr(row_reports, "KILLED_AFTER_SECONDS", 0.0)
    unchecked = (await post(api)).json()
    monkeypatch.setattr(row_reports, "KILLED_AFTER_SECONDS", 40 * limit)
    monkeypatch.setattr(row_reports, "WAITED_SECONDS", 40 * limit)

    checked = (await post(api)).json()

    assert (unchecked["rows"], unchecked["report"]["is_complete"]) == (0, False)
    assert (checked["rows"], checked["report"]["is_complete"]) == (2, True)
    assert (await api.client.get(f"/files/{ID}")).json() == checked
    monkeypatch.setattr(row_reports, "KILLED_AFTER_SECONDS", 0.0)
    assert (await post(api)).json() == checked


async def test_a_check_of_rows_that_hangs_or_dies_is_named_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "endless")

    dead = await row_reports.row_report(str(tmp_path / "missing"), "jsonl")
    monkeypatch.setattr(row_reports, "KILLED_AFTER_SECONDS", 0.2)
    late = await row_reports.row_report(str(tmp_path / "endless"), "jsonl")

    assert (late["is_complete"], dead["is_complete"]) == (False, False)
    assert "0.2 s" in late["notes"][0]
    assert "missing" in dead["notes"][0]


async def test_files_are_listed_newest_first_page_by_page(api: Api) -> None:
    uploaded_ids = [(await post(api, b"a,b\n%d,2\n" % number, "rows.csv")).json()["id"] for number in range(3)]

    ids = [row["id"] for row in await api.pages("/files", limit=2)]

    assert sorted(ids) == sorted(uploaded_ids)
    assert is_problem(await api.client.get("/files?cursor=nonsense"), 422, "invalid_query")


@each_case(
    ("name", "body", "code"),
    [
        ("rows.jsonl", b"", "empty_file"),
        ("rows.jsonl", b" \n\n", "empty_file"),
        ("rows.jsonl", b'[{"x": 1}]', "not_jsonl"),
        ("rows.jsonl", b"x,y\n1,2\n", "not_jsonl"),
        ("rows.csv", b"x\xff\n", "not_utf8"),
        ("rows.csv", b"x\0\n", "not_text"),
        ("rows.csv", b"\x1f\x8b\x08 packed", "packed"),
        ("rows.parquet", b"PAR1 cut off", "not_parquet"),
        ("rows.xlsx", ROWS, "unknown_kind"),
        ("rows", ROWS, "unknown_kind"),
        ("a\nb.csv", ROWS, "bad_name"),
        ("..", ROWS, "unknown_kind"),
    ],
)
async def test_a_file_of_the_wrong_kind_is_refused_and_not_stored(
    api: Api, tmp_path: Path, name: str, body: bytes, code: str
) -> None:
    answer = await post(api, body, name)

    assert is_problem(answer, 422, "invalid_file")
    assert [error["code"] for error in answer.json()["errors"]] == [code]
    assert stored_files(tmp_path) == []


async def test_a_parquet_file_needs_its_magic_bytes_at_both_ends(api: Api) -> None:
    answer = await post(api, b"PAR1" + bytes(3_000_000) + b"PAR1", "../up/rows.parquet")

    assert (answer.status_code, answer.json()["kind"], answer.json()["name"]) == (201, "parquet", "rows.parquet")


async def test_a_form_that_cannot_be_read_is_refused_and_its_file_is_not_stored(api: Api, tmp_path: Path) -> None:
    two = [("file", ("a.csv", b"a\n1\n")), ("file", ("b.csv", b"b\n1\n"))]
    header = {"Content-Type": "multipart/form-data; boundary=x"}
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\n\r\na\n1\n'

    for answer in (
        await api.client.post("/files", files=two),
        await api.client.post("/files", files={"file": (None, b"a\n1\n")}),
        await api.client.post("/files", content=head, headers=header),
        await api.client.post("/files", content=b"no form", headers=header),
        await api.client.post("/files", content=b"", headers=header),
        await api.client.post("/files", content=head, headers={"Content-Type": "multipart/form-data"}),
    ):
        assert is_problem(answer, 422, "invalid_form")
    assert is_problem(await api.client.post("/files", content=ROWS), 422, "invalid_spec")
    assert stored_files(tmp_path) == []


async def test_an_upload_that_is_too_large_is_refused_before_it_has_arrived(
    serve: Serve, sqlite_url: str, tmp_path: Path
) -> None:
    api = await serve(sqlite_url, upload_max_mb=1)
    sent_bytes = 0

    async def body() -> Any:
        nonlocal sent_bytes
        while sent_bytes < 64 << 20:
            sent_bytes += 1 << 20
            yield bytes(1 << 20)

    try:
        answer = await post(api, body())
    except Exception:
        assert sent_bytes < 64 << 20
    else:
        assert is_problem(answer, 413, "body_too_large")
        assert "FOOTPLATE_UPLOAD_MAX_MB" in answer.json()["hint"]
    assert stored_files(tmp_path) == []


async def test_a_spec_may_name_a_file_by_its_id_in_place_of_a_path(both: Api) -> None:
    await post(both)
    short = {**SPEC, "data": {"train": ID, "eval": {"use": "files/jsonl", "args": {"paths": [ID]}}}}

    answer = await both.client.post("/jobs", json=short)

    assert answer.status_code == 201, answer.text
    spec = (await both.client.get(f"/jobs/{answer.json()['id']}/spec")).json()
    assert spec["data"]["train"] == {"use": "files/jsonl", "args": {"paths": [ID]}}
    other = f"file_{'0' * 64}.csv"
    for body, pointer in (
        ({**SPEC, "data": other}, "/data"),
        ({**SPEC, "data": {"train": {"use": "files/csv", "args": {"paths": [ID, other]}}}}, "/data/train/args/paths/1"),
    ):
        for address in ("/jobs", "/jobs/validate"):
            refusal = await both.client.post(address, json=body)
            assert [(error["pointer"], error["code"]) for error in refusal.json()["errors"]] == [
                (pointer, "unknown_file")
            ]


@pytest.mark.own_statement
async def test_a_file_can_be_deleted_once_no_unfinished_job_names_it(both: Api, tmp_path: Path) -> None:
    await post(both)
    job = await both.submit(data=ID)

    refusal = await both.client.delete(f"/files/{ID}")
    await both.end(job, JobState.FAILED)
    deletion = await both.client.delete(f"/files/{ID}")

    assert is_problem(refusal, 409, "file_in_use")
    assert job in refusal.json()["detail"]
    assert deletion.status_code == 204
    assert is_problem(await both.client.get(f"/files/{ID}/content"), 404, "not_found")
    assert stored_files(tmp_path) == []
    assert [answer.status_code for answer in await asyncio.gather(*(post(both) for _ in range(4)))].count(201) == 1


async def test_a_file_of_another_project_is_answered_like_an_unknown_file(serve: Serve, sqlite_url: str) -> None:
    key = "a-key-of-22-characters-or-more"
    api = await serve(sqlite_url, api_key=key)
    await api.client.post("/files", content=ROWS, params={"name": "rows.jsonl", "project": "vision"})

    assert is_problem(await api.client.get(f"/files/{ID}"), 404, "not_found")
    assert (await api.client.get(f"/files/{ID}?project=vision")).status_code == 200
    answer = await api.client.post("/jobs", json={**SPEC, "data": ID})
    assert answer.json()["errors"][0]["code"] == "unknown_file"


async def test_the_client_uploads_only_new_files_and_downloads_them(api: Api, tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_bytes(ROWS * 20_000)
    async with AsyncClient(api.url) as client:
        file = await client.files.upload(source)
        again = await client.files.upload(source, name="others.jsonl")

        assert file == again
        assert [entry.id async for entry in client.files.list()] == [file.id]
        assert (await client.files.download(file.id, tmp_path / "out")).read_bytes() == source.read_bytes()
        await client.files.delete(file.id)
        with pytest.raises(InvalidRequest, match="jsonl"):
            await client.files.upload(source.rename(tmp_path / "rows.xlsx"))


ON_HUB = {"use": "toy/mlp", "args": {"path": "hub://me/tiny"}}
OFF, ON = Catalogue.of([]), Catalogue.of([Described(name=HUB_ON, group=HUBS)])


@pytest.mark.parametrize(("setting", "catalogues"), [("off", []), ("off", [ON]), ("on", [OFF])])
async def test_a_hub_name_is_refused_with_the_setting_if_no_node_fetches(
    serve: Serve, sqlite_url: str, setting: str, catalogues: list[Catalogue]
) -> None:
    api = await serve(sqlite_url, hub=setting)
    api.services.catalogues.announced = catalogues

    answers = [await api.client.post(path, json={**SPEC, "model": ON_HUB}) for path in ("/jobs", "/jobs/validate")]

    for answer in answers:
        assert answer.status_code == 422
        (problem,) = answer.json()["errors"]
        assert (problem["pointer"], problem["code"]) == ("/model/args/path", "hub_is_off")
        assert "FOOTPLATE_HUB=on" in problem["hint"]


@pytest.mark.parametrize("catalogues", [[], [OFF, ON]])
async def test_a_hub_name_is_accepted_if_a_node_fetches(
    serve: Serve, sqlite_url: str, catalogues: list[Catalogue]
) -> None:
    api = await serve(sqlite_url, hub="on")
    api.services.catalogues.announced = catalogues

    assert await api.submit(model=ON_HUB)


BY_URL = {"use": "files/jsonl", "args": {"paths": ["https://data.example.org/rows.jsonl?key=hidden"]}}


@pytest.mark.parametrize("hosts", ["", "example.org", "10.0.0.0/8"])
async def test_an_unlisted_host_is_refused_with_the_setting(serve: Serve, sqlite_url: str, hosts: str) -> None:
    api = await serve(sqlite_url, stores_allow=hosts)

    answers = [await api.client.post(path, json={**SPEC, "data": BY_URL}) for path in ("/jobs", "/jobs/validate")]

    for answer in answers:
        assert answer.status_code == 422
        (problem,) = answer.json()["errors"]
        assert (problem["pointer"], problem["code"]) == ("/data/args/paths/0", "store_not_allowed")
        assert "FOOTPLATE_STORES_ALLOW=data.example.org" in problem["hint"]
        assert "hidden" not in str(problem)


async def test_a_listed_host_is_accepted(serve: Serve, sqlite_url: str) -> None:
    api = await serve(sqlite_url, stores_allow="data.example.org, 10.1.0.0/16")

    assert await api.submit(data=BY_URL)
    assert await api.submit(data={"use": "files/jsonl", "args": {"paths": ["http://10.1.2.3:9000/rows.jsonl"]}})


async def test_rows_that_a_library_trainer_cannot_use_are_named_by_line(api: Api) -> None:
    form = {"title": "text", "type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
    about = {"lib/sft": Described(name="lib/sft", group="trainers", rows=[form])}
    others = [Described(name=name, group=group) for name, group in (("toy/mlp", "models"), ("pad", "maps"))]
    paths = {"type": "object", "properties": {"paths": {"type": "array"}}}
    reader = Described(name="files/jsonl", group="data", args=paths)
    api.services.catalogues.current = Catalogue.of([*others, reader, *about.values()])
    rows = b'{"text": "a"}\n\n{"txt": "b"}\n{"text": 7}\n[]\nno JSON\n'
    good, wrong = [(await post(api, body)).json()["id"] for body in (b'{"text": "a"}', rows)]
    spec = {**SPEC, "trainer": "lib/sft"}

    answer = await api.client.post("/jobs", json={**spec, "data": {"train": good, "eval": {"dev": wrong}}})

    assert is_problem(answer, 422, "invalid_spec")
    errors = answer.json()["errors"][:3]
    assert [(error["pointer"], error["code"]) for error in errors] == [("/data/eval/dev", "wrong_row")] * 3
    assert [f"line {number}" in error["detail"] for number, error in enumerate(errors, 3)] == [True] * 3
    mapped = {"train": wrong, "map": ["pad"]}
    for data in ({"train": good}, mapped):
        assert (await api.client.post("/jobs", json={**spec, "data": data})).status_code == 201


@pytest.mark.parametrize(
    ("selected", "maps", "wrong"),
    [
        ({}, [], [("0", 3), ("0", 4), ("1", 1)]),
        ({"offset": 1, "limit": 1}, [], [("0", 3)]),
        ({"offset": 3, "limit": 1}, [], [("1", 1)]),
        ({"limit": 1}, [], []),
        ({"offset": 1}, [{"use": "rename", "args": {"columns": {"txt": "text"}}}], [("0", 4)]),
        ({"limit": 1}, [{"use": "drop", "args": {"columns": ["text"]}}], [("0", 1)]),
        ({"limit": 1}, [{"use": "keep", "args": {"columns": ["text"]}}], []),
    ],
)
async def test_rows_are_checked_as_offset_limit_and_maps_leave_them(
    api: Api, selected: dict[str, int], maps: list[dict[str, object]], wrong: list[tuple[str, int]]
) -> None:
    form = {"title": "text", "type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
    args = {"type": "object", "properties": {"paths": {}, "offset": {}, "limit": {}, "columns": {}}}
    names = (("toy/mlp", "models"), ("files/jsonl", "data"), ("rename", "maps"), ("keep", "maps"), ("drop", "maps"))
    others = [Described(name=name, group=group, args=args) for name, group in names]
    api.services.catalogues.current = Catalogue.of([*others, Described(name="lib/sft", group="trainers", rows=[form])])
    first = b'{"text": "a"}\n\n{"txt": "b"}\n{"text": 7}\n'
    paths = [(await post(api, body)).json()["id"] for body in (first, b'{"txt": "c"}\n')]
    data = {"train": {"use": "files/jsonl", "args": {"paths": paths, **selected}}, "map": maps}

    answer = await api.client.post("/jobs", json={**SPEC, "trainer": "lib/sft", "data": data})

    rows = [problem for problem in answer.json().get("errors", []) if problem["code"] == "wrong_row"]
    assert [(row["pointer"][-1], int(row["detail"].split()[1].strip(":"))) for row in rows] == wrong


@pytest.mark.parametrize(
    ("maps", "code"),
    [
        ([], 422),
        ([{"use": "rename", "args": {"columns": {"txt": "text"}}}], 201),
        ([{"use": "pad", "args": {}}], 201),
    ],
)
async def test_columns_of_a_csv_that_a_library_trainer_cannot_use_are_refused(
    api: Api, maps: list[dict[str, object]], code: int
) -> None:
    form = {"title": "text", "type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
    args = {"type": "object", "properties": {"paths": {}, "columns": {}}}
    names = (("toy/mlp", "models"), ("files/csv", "data"), ("rename", "maps"), ("pad", "maps"))
    others = [Described(name=name, group=group, args=args) for name, group in names]
    api.services.catalogues.current = Catalogue.of([*others, Described(name="lib/sft", group="trainers", rows=[form])])
    file = (await post(api, b"id,txt\n1,hello\n", "rows.csv")).json()["id"]
    data = {"train": {"use": "files/csv", "args": {"paths": [file]}}, "map": maps}

    answer = await api.client.post("/jobs", json={**SPEC, "trainer": "lib/sft", "data": data})

    assert answer.status_code == code
    if code == 422:
        (problem,) = answer.json()["errors"]
        assert (problem["pointer"], problem["code"]) == ("/data/train/args/paths", "wrong_row")
        assert "there is no column 'text', only: id, txt" in problem["detail"]


async def test_a_split_that_leaves_no_row_to_train_on_is_refused_with_the_number_of_rows(api: Api) -> None:
    lines, table = [(await post(api, ROWS * 2)).json()["id"], (await post(api, b"x,y\n1,2\n", "rows.csv")).json()["id"]]
    with_a_bad_one = (await post(api, ROWS + b"no JSON\n")).json()["id"]

    async def answer(file: str, args: dict[str, Any], test_size: float) -> Any:
        train = {"use": "files/csv" if file == table else "files/jsonl", "args": {"paths": [file], **args}}
        return await api.client.post(
            "/jobs", json={**SPEC, "data": {"train": train, "split": {"test_size": test_size}}}
        )

    for file, args, most in (
        (lines, {}, 4),
        (lines, {"offset": 1, "limit": 2}, 2),
        (table, {"columns": ["x", "y"]}, 2),
    ):
        for test_size in (most, 0.999):
            (problem,) = (await answer(file, args, test_size)).json()["errors"]
            assert (problem["pointer"], problem["code"]) == ("/data/split/test_size", "no_row_left")
            assert f"{most} of {most} rows" in problem["detail"]
        assert (await answer(file, args, most - 1)).status_code == 201
    for file, args in ((with_a_bad_one, {}), (table, {"delimiter": ";"}), (lines, {"offset": 9})):
        assert (await answer(file, args, 100)).status_code == 201, "unknown numbers of rows must be accepted"


async def test_a_map_that_names_a_column_which_the_upload_lacks_is_refused(api: Api) -> None:
    file = (await post(api, b"review,verdict\nfine,good\n", "rows.csv")).json()["id"]

    async def answer(name: str, **args: Any) -> Any:
        data = {
            "train": {"use": "files/csv", "args": {"paths": [file], **args}},
            "map": [{"use": "drop", "args": {"columns": [name]}}],
        }
        return await api.client.post("/jobs", json={**SPEC, "data": data})

    (problem,) = (await answer("verdit")).json()["errors"]
    assert (problem["pointer"], problem["code"]) == ("/data/map/0/args/columns/0", "no_column")
    assert "their columns: review, verdict" in problem["detail"]
    assert "verdict" in problem["hint"]
    assert (await answer("verdict")).status_code == 201
    assert (await answer("b", columns=["a", "b"])).status_code == 201, "unknown columns must be accepted"


def test_parsing_a_long_first_line_delays_no_request() -> None:
    line = b"{" + b",".join(b'"%d":{}' % number for number in range(90_000)) + b"}"

    def seconds(work: Callable[[], object]) -> float:
        began = time.thread_time()
        work()
        return time.thread_time() - began

    # The minimum of several runs, because other processes that share the caches slow down single runs.
    checked = min(seconds(lambda: check_content(io.BytesIO(line), "jsonl", len(line))) for _ in range(3))
    parsed = min(seconds(lambda: json.loads(line)) for _ in range(3))

    assert checked < parsed / 2
