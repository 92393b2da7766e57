"""Tests the routes that return the lines that training printed."""

from __future__ import annotations

from typing import Any

import pytest

from footplate.contract.events import Kind
from footplate.contract.ids import JobId
from footplate.contract.resources.history import LineList
from service.store import log_lines
from tests.service.api.conftest import Api


def line(text: str, stream: str = "stdout") -> dict[str, Any]:
    return {"stream": stream, "text": text}


async def job_with_lines(api: Api) -> JobId:
    job = await api.submit()
    await api.append(job, line("one"), line("two", "stderr"), line("größe three"), kind=Kind.LINE)
    await api.append(job, {"loss": 1.0})
    await api.append(job, line("four"), kind=Kind.LINE)
    return job


async def texts(api: Api, job: str, query: str = "") -> list[str]:
    answer = await api.client.get(f"/jobs/{job}/logs?{query}")
    assert answer.status_code == 200, answer.text
    return [row.text for row in LineList.model_validate_json(answer.content).data]


async def test_lines_are_filtered_by_stream_rank_and_content(both: Api) -> None:
    job = await job_with_lines(both)

    assert await texts(both, job) == ["one", "two", "größe three", "four"]
    assert await texts(both, job, "stream=stderr") == ["two"]
    assert await texts(both, job, "rank=0&grep=größe") == ["größe three"]
    assert await texts(both, job, "rank=1") == []
    assert await texts(both, job, "grep=o.e") == [], "the text must be matched literally, not as a pattern"


@pytest.mark.own_statement
async def test_lines_are_paged_by_number_up_to_the_end(both: Api) -> None:
    job = await job_with_lines(both)

    first = (await both.client.get(f"/jobs/{job}/logs?limit=3")).json()
    second = (await both.client.get(f"/jobs/{job}/logs?limit=3&after={first['next_cursor']}")).json()

    assert [row["no"] for row in first["data"] + second["data"]] == [2, 3, 4, 6]
    assert (first["next_cursor"], second["next_cursor"], second["last"]) == ("4", None, 6)


async def test_a_page_of_lines_searches_a_limited_range_and_returns_a_cursor(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lines, "STRIDE", 2)
    monkeypatch.setattr(log_lines, "REACH", 4)
    job = await job_with_lines(api)

    empty = (await api.client.get(f"/jobs/{job}/logs?grep=four")).json()
    body = (await api.client.get(f"/jobs/{job}/logs?grep=four&after={empty['next_cursor']}")).json()

    assert (empty["data"], empty["next_cursor"]) == ([], "4")
    assert ([row["text"] for row in body["data"]], body["next_cursor"]) == (["four"], None)


async def test_plain_text_logs_have_one_line_each_and_no_control_characters(api: Api) -> None:
    job = await job_with_lines(api)
    await api.append(job, line("\x1b[2Jgone\tand back"), kind=Kind.LINE)

    whole = await api.client.get(f"/jobs/{job}/logs", headers={"Accept": "text/plain"})
    part = await api.client.get(f"/jobs/{job}/logs?limit=1&stream=stdout", headers={"Accept": "text/plain"})

    assert whole.headers["content-type"] == "text/plain; charset=utf-8"
    assert whole.text == "one\ntwo\ngröße three\nfour\n\ufffd[2Jgone\tand back\n"
    assert (whole.headers["footplate-last"], whole.headers.get("link")) == ("7", None)
    assert part.text == "one\n"
    assert part.headers["link"] == f'</jobs/{job}/logs?limit=1&stream=stdout&after=2>; rel="next"'


async def test_a_lone_surrogate_in_a_line_is_replaced_in_both_formats(both: Api) -> None:
    job = await both.submit()
    await both.append(job, line("half \ud800 of one"), kind=Kind.LINE)

    plain = await both.client.get(f"/jobs/{job}/logs", headers={"Accept": "text/plain"})

    assert await texts(both, job) == ["half ? of one"]
    assert plain.text == "half ? of one\n"


@pytest.mark.parametrize(
    ("query", "pointer"), [("stream=out", "/query/stream"), ("rank=-1", "/query/rank"), ("grep=", "/query/grep")]
)
async def test_wrong_filters_of_lines_are_refused_by_name(api: Api, query: str, pointer: str) -> None:
    job = await api.submit()

    answer = await api.client.get(f"/jobs/{job}/logs?{query}")

    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)
