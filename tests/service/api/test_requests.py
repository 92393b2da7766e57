"""Tests who may send a request, from where and in what form. Every failure is a problem document."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from footplate.contract.errors import Unavailable
from service.api import dashboard
from service.store import database, job_list, schema
from service.store import jobs as store
from tests.service.api.conftest import SPEC, Api

SECURITY = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'self'",
}


def is_problem(answer: Any, status: int, code: str) -> bool:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    body = answer.json()
    assert set(body) >= {"type", "title", "status", "detail", "instance", "code", "request_id", "errors"}
    assert body["request_id"] == answer.headers["x-request-id"]
    assert (answer.status_code, body["status"], body["code"]) == (status, status, code), answer.text
    return True


async def test_every_failure_is_a_problem_document(api: Api) -> None:
    client = api.client

    assert is_problem(await client.get("/nix"), 404, "not_found")
    assert is_problem(await client.get("/jobs/"), 404, "not_found")
    not_allowed = await client.put("/jobs")
    assert is_problem(not_allowed, 405, "method_not_allowed")
    assert not_allowed.headers["allow"] == "GET, POST"
    assert is_problem(
        await client.post("/jobs", content=b"{", headers={"Content-Type": "application/json"}), 422, "invalid_spec"
    )
    assert is_problem(await client.post("/jobs", json=[1]), 422, "invalid_spec")
    assert is_problem(await client.post("/jobs"), 422, "invalid_spec")
    assert is_problem(await client.get("/livez?verbose=1"), 422, "invalid_query")


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("application/json", 201),
        ("Application/JSON; charset=utf-8", 201),
        ("", 415),
    ],
)
async def test_a_body_without_a_json_content_type_is_refused(api: Api, content_type: str, status: int) -> None:
    headers = {"Content-Type": content_type} if content_type else {}

    answer = await api.client.post("/jobs", content=json.dumps(SPEC).encode(), headers=headers)

    assert answer.status_code == status
    assert status == 201 or is_problem(answer, 415, "unsupported_media_type")


async def test_the_size_limit_of_a_body_is_checked_while_it_streams(api: Api) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 100_000

    headers = {"Content-Type": "application/json"}
    announced = await api.client.post("/jobs", content=b" " * (1024 * 1024 + 1), headers=headers)
    streamed = await api.client.post("/jobs", content=endless(), headers=headers)

    assert is_problem(announced, 413, "body_too_large")
    assert is_problem(streamed, 413, "body_too_large")


async def test_details_of_an_unexpected_error_are_only_in_the_log_with_the_request_id(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("a secret of ours")

    monkeypatch.setattr(store, "get", broken)
    monkeypatch.setattr(job_list, "page", broken)
    quick = await api.client.get(f"/jobs/{await api.submit()}")
    routed = await api.client.get("/jobs")

    for answer in (quick, routed):
        assert is_problem(answer, 500, "internal")
        assert "secret" not in answer.text
        messages = [line for line in caplog.messages if line.endswith(f"request_id={answer.headers['x-request-id']}")]
        assert messages == [f"GET {answer.request.url.path!r} failed, request_id={answer.headers['x-request-id']}"]
    assert "RuntimeError: a secret of ours" in caplog.text


async def test_an_unreachable_database_is_a_503_with_retry_after(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*args: object, **kwargs: object) -> None:
        raise Unavailable("the database cannot serve this right now")

    monkeypatch.setattr(database, "insert_rows", away)
    monkeypatch.setattr(schema, "require_current", away)
    answer = await api.client.post("/jobs", json=SPEC)

    assert is_problem(answer, 503, "unavailable")
    why = f"the database cannot serve this right now, request_id={answer.headers['x-request-id']}"
    assert [line for line in caplog.messages if line.endswith(why)] == [f"POST '/jobs' got 503: {why}"]
    assert int(answer.headers["retry-after"]) > 0
    not_ready = await api.client.get("/readyz")
    assert (not_ready.status_code, not_ready.json()["status"]) == (503, "unavailable")
    assert (await api.client.get("/livez")).status_code == 200


async def test_every_answer_carries_security_headers_and_a_request_id(api: Api) -> None:
    job = await api.submit()
    for path in ("/", "/jobs", f"/jobs/{job}", "/nix", "/openapi.json", f"/jobs/{job}/outputs/x"):
        answer = await api.client.get(path, headers={"X-Request-Id": "mine-1"})
        assert answer.headers["x-request-id"] == "mine-1"
        for name, value in SECURITY.items():
            assert answer.headers[name].startswith(value)
    strange = await api.client.get("/livez", headers={"X-Request-Id": "a b"})
    assert strange.headers["x-request-id"].startswith("req_")


async def test_without_an_api_key_only_host_names_of_this_machine_are_accepted(api: Api) -> None:
    port = api.url.rpartition(":")[2]
    for host, status in (
        (f"localhost:{port}", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("evil.example", 421),
        ("", 421),
    ):
        answer = await api.client.get("/jobs", headers={"Host": host})
        assert answer.status_code == status, host
    assert is_problem(await api.client.get("/livez", headers={"Host": "evil.example"}), 421, "host_not_allowed")


async def test_a_page_of_another_site_cannot_send_requests_for_its_visitor(api: Api) -> None:
    job = await api.submit()
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "http://[", "http://[::1", "//", "\xb2"):
        answer = await api.client.post(f"/jobs/{job}/cancel", headers={"Origin": origin.encode("latin-1")})
        assert is_problem(answer, 403, "forbidden")
    assert (await api.client.post(f"/jobs/{job}/cancel", headers={"Origin": api.url})).status_code == 202


MALFORMED = (
    "http://[",
    "[",
    "\xb2",
    "\xff" * 200,
    "9" * 5000,
    "-1",
    ";=;",
    '"',
    "bytes=\xb2-",
    "a=" * 2000,
    "%00%ff",
)
HEADERS: tuple[tuple[str, ...], ...] = (
    ("Host",), ("Origin",), ("Content-Type",), ("Content-Encoding",),
    ("Authorization", "X-Request-Id", "If-Match", "If-None-Match", "If-Range", "Range", "Last-Event-ID", "Traceparent",
     "Idempotency-Key", "Cookie", "Accept", "Expect"),
)  # fmt: skip
"""Requests with several faults. Each of the first four is refused before the others are looked at."""


async def test_an_unreadable_header_is_answered_400_and_not_500(api: Api, artifacts: Path) -> None:
    job = await api.submit()
    file = artifacts / "jobs" / job / "attempts" / "1" / "outputs" / "a"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"a")
    await api.db.write(lambda conn: store.record(conn, job, outputs=f"jobs/{job}/attempts/1/outputs"))
    await api.end(job)
    routes = (
        ("PATCH", f"/jobs/{job}"),
        ("GET", f"/jobs/{job}/outputs/a"),
        ("POST", "/files"),
        ("POST", "/jobs/validate"),
    )

    *read_before_the_route, read_by_the_route = HEADERS
    asks = [(*routes[-1], names) for names in read_before_the_route]
    asks += [(*route, read_by_the_route) for route in (*routes, ("GET", f"/jobs/{job}/stream"))]

    for (method, path, names), value in product(asks, MALFORMED):
        headers = {"Content-Type": "application/json", **dict.fromkeys(names, value.encode("latin-1"))}
        answer = await api.client.request(method, path, headers=headers, content=b"{}" * (method != "GET"))

        assert answer.status_code < 500, f"{method} {path} {names}: {value[:40]!r}: {answer.text}"


async def test_the_dashboard_and_the_docs_load_nothing_from_other_servers(api: Api) -> None:
    for path in ("/", "/docs", *(f"/dashboard/{name}" for name in sorted(dashboard.files()))):
        answer = await api.client.get(path)
        assert answer.status_code == 200
        assert "http://" not in answer.text.replace("http://www.w3.org", "")
        assert "https://" not in answer.text
    assert (await api.client.get("/dashboard/../app.py")).status_code == 404
    assert (await api.client.get("/dashboard/%2e%2e%2fapp.py")).status_code == 404


@pytest.fixture
def artifacts(api: Api) -> Path:
    return api.services.settings.artifacts_path


async def test_outputs_are_served_as_attachments_from_their_folder_only(api: Api, artifacts: Path) -> None:
    job = await api.submit()
    folder = artifacts / "jobs" / job / "attempts" / "1" / "outputs"
    (folder / "deep").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(bytes(range(100)))
    (folder / "deep" / "page.html").write_text("<script>")
    (artifacts / "secret").write_text("secret")
    (folder / "link").symlink_to(artifacts / "secret")
    (folder / "inner").symlink_to(folder / "model.safetensors")
    (folder / "out").symlink_to(artifacts)

    await api.db.write(lambda conn: store.record(conn, job, outputs=f"jobs/{job}/attempts/1/outputs"))
    entries = (await api.client.get(f"/jobs/{job}/outputs")).json()["data"]
    page = await api.client.get(f"/jobs/{job}/outputs/deep/page.html")
    part = await api.client.get(f"/jobs/{job}/outputs/model.safetensors", headers={"Range": "bytes=10-19"})

    assert [entry["path"] for entry in entries] == ["model.safetensors", "deep/page.html"]
    assert page.headers["content-disposition"].startswith("attachment")
    assert page.headers["content-type"] == "application/octet-stream"
    assert (part.status_code, part.content) == (206, bytes(range(10, 20)))
    assert part.headers["content-range"] == "bytes 10-19/100"
    for wrong in ("bytes=200-", "bytes=5-1", "bytes=-0", "bytes=abc", "bytes=-"):
        answer = await api.client.get(f"/jobs/{job}/outputs/model.safetensors", headers={"Range": wrong})
        assert is_problem(answer, 416, "range_not_satisfiable")
        assert answer.headers["content-range"] == "bytes */100"
    for path in (
        "link",
        "inner",
        "out/secret",
        "../outputs/../../../../../secret",
        "..%2f..%2fsecret",
        "deep",
        "no",
        "a%00b",
        "x" * 5000,
    ):
        assert is_problem(await api.client.get(f"/jobs/{job}/outputs/{path}"), 404, "not_found"), path


async def test_every_listed_output_can_be_downloaded_whatever_its_name(api: Api, artifacts: Path) -> None:
    job = await api.submit()
    folder = artifacts / "jobs" / job / "attempts" / "1" / "outputs"
    (folder / "deep\r\n").mkdir(parents=True)
    names = ["a\nb", "deep\r\n/\u2028 ?#%0A", "ends\n"]
    for name in names:
        (folder / name).write_text(name)
    (folder / "bad\udcff").write_text("bad")
    await api.db.write(lambda conn: store.record(conn, job, outputs=f"jobs/{job}/attempts/1/outputs"))

    page = (await api.client.get(f"/jobs/{job}/outputs")).json()

    assert (sorted(row["path"] for row in page["data"]), page["left_out"]) == (names, 1)
    for name in names:
        answer = await api.client.get(f"/jobs/{job}/outputs/{quote(name)}")
        assert (answer.status_code, answer.content) == (200, name.encode()), answer.text
    assert is_problem(await api.client.get(f"/jobs/{job}/outputs/bad%FF"), 404, "not_found")


async def test_a_download_is_resumed_only_if_the_file_is_unchanged(api: Api, artifacts: Path) -> None:
    job = await api.submit()
    file = artifacts / "jobs" / job / "attempts" / "1" / "outputs" / "weights ä.bin"
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(range(100)))
    await api.db.write(lambda conn: store.record(conn, job, outputs=f"jobs/{job}/attempts/1/outputs"))
    address = f"/jobs/{job}/outputs/weights%20%C3%A4.bin"

    head = await api.client.head(address, headers={"Range": "bytes=0-1"})
    etag, changed = head.headers["etag"], head.headers["last-modified"]

    assert (head.status_code, head.headers["content-length"], head.content) == (200, "100", b"")
    assert head.headers["content-disposition"] == "attachment; filename*=utf-8''weights%20%C3%A4.bin"
    for if_range, status in ((etag, 206), (changed, 206), ('"another"', 200), (f"W/{etag}", 200)):
        answer = await api.client.get(address, headers={"Range": "bytes=-10", "If-Range": if_range})
        assert (answer.status_code, answer.content) == (status, bytes(range(90 if status == 206 else 0, 100)))
    for ignored in ("lines=1-2", "bytes=0-1,5-6"):
        assert (await api.client.get(address, headers={"Range": ignored})).status_code == 200
    assert (await api.client.get(address, headers={"If-None-Match": etag})).status_code == 304
    file.write_bytes(bytes(50))
    assert (await api.client.head(address)).headers["etag"] != etag
