"""Tests jobs in a notebook: lookups by name, lists, tables, data frames, plots and live output."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, Iterable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from footplate import Client
from footplate.errors import ApiError, InvalidRequest, NotFound, Unreachable
from footplate.sdk import notebook
from footplate.sdk.checkpoints import AsyncCheckpoints
from footplate.sdk.jobs import AsyncJobs
from footplate.sdk.lists import Listing
from footplate.sdk.notebook import PackageMissing, optional
from footplate.sdk.settings import http_arguments
from tests.client.fake_wire import FakeWire
from tests.client.test_asking import JOB, a_job, answer
from tests.support.processes import REPOSITORY
from tests.support.system import System

EXAMPLE = REPOSITORY / "examples/notebook/first_job.ipynb"


def page(*jobs: dict[str, Any]) -> Any:
    return answer(200, {"data": jobs, "next_cursor": None})


def named(name: str | None, number: int = 0) -> dict[str, Any]:
    return {**JOB, "name": name, "id": f"job_{number:032x}"}


def sent_fields(wire: FakeWire) -> Any:
    return json.loads(wire.requests[-1].content)


async def test_a_job_is_created_from_a_file_a_dict_and_keywords(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text('{"model": "toy/mlp", "data": "toy/regression"}')
    wire = FakeWire(answer(201), answer(201), answer(201))
    jobs = AsyncJobs(wire, 0.0)

    await jobs.create(path)
    from_file = sent_fields(wire)
    await jobs.create(str(path), name="mine")
    with_name = sent_fields(wire)
    await jobs.create(model="toy/mlp", data="toy/regression")

    assert sent_fields(wire) == from_file == {"model": "toy/mlp", "data": "toy/regression"}
    assert with_name == {**from_file, "name": "mine"}


@pytest.mark.parametrize("text", [None, "{", "[]"])
async def test_a_file_without_a_spec_is_refused_by_its_name(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "job.json").write_text(text)

    with pytest.raises(InvalidRequest, match=r"job\.json"):
        await AsyncJobs(FakeWire(), 0.0).create(tmp_path / "job.json")


async def test_an_ambiguous_or_unknown_name_of_a_job_is_refused_with_a_hint() -> None:
    ambiguous_jobs = AsyncJobs(FakeWire(page(named("mine"), named("mine", 1))), 0.0)
    other_jobs = AsyncJobs(FakeWire(page(), page(named("my-bert"), named(None, 1))), 0.0)
    no_jobs = AsyncJobs(FakeWire(page(), page()), 0.0)

    with pytest.raises(InvalidRequest, match="2 jobs") as refused:
        await ambiguous_jobs.get("mine")
    assert "@last" in (refused.value.hint or "")
    with pytest.raises(NotFound, match=r"'my-bart'.*'my-bert'"):
        await other_jobs.get("my-bart")
    with pytest.raises(NotFound):
        await no_jobs.get("first")


async def test_last_is_the_newest_job() -> None:
    wire = FakeWire(page(named("mine")), page())

    assert (await AsyncJobs(wire, 0.0).get("@last")).name == "mine"
    with pytest.raises(NotFound, match="no job yet"):
        await AsyncJobs(wire, 0.0).get("@last")
    assert wire.requests[0].url.params["limit"] == "1"


async def aiter_of(items: Iterable[int]) -> AsyncGenerator[int, None]:
    for item in items:
        yield item


def test_a_list_loads_only_the_pages_that_are_needed() -> None:
    numbers = count()
    listing = Listing(aiter_of(next(numbers) for _ in range(10)), html=str)

    assert (next(listing), listing[2], listing[1:3], bool(listing)) == (0, 2, [1, 2], True)
    assert next(numbers) == 3
    assert (listing[-1], len(listing), list(listing)[3], next(listing)) == (10, 10, 4, 1)
    with pytest.raises(IndexError):
        listing[10]


async def test_a_list_whose_loading_failed_does_not_look_complete() -> None:
    more = answer(200, {"data": [named("a")], "next_cursor": "further"})
    refusal = answer(403, {"code": "forbidden", "detail": "the key was changed"})
    jobs = AsyncJobs(FakeWire(more, refusal), 0.0)
    listing, numbers = jobs.list(), Listing(aiter_of(1 // number for number in (1, 0, 1)), html=str)

    with pytest.raises(ApiError):
        await listing
    with pytest.raises(ZeroDivisionError):
        len(numbers)

    with pytest.raises(Unreachable, match="only 1 items of this list were loaded"):
        await listing
    with pytest.raises(Unreachable, match="only 1 items"):
        list(numbers)
    assert numbers[0] == 1


def test_a_loop_over_a_list_raises_the_index_error_of_a_request() -> None:
    async def items() -> AsyncGenerator[int, None]:
        yield 1
        raise IndexError

    with pytest.raises(IndexError):
        list(Listing(items(), html=str))


def test_a_slice_of_a_list_may_go_backwards() -> None:
    assert Listing(aiter_of(range(10)), html=str)[5:2:-1] == [5, 4, 3]


async def test_await_loads_all_jobs_of_an_asynchronous_list() -> None:
    jobs = AsyncJobs(FakeWire(page(named("a"), named("b", 1))), 0.0)

    assert [job.name for job in await jobs.list()] == ["a", "b"]


async def test_each_loop_over_an_asynchronous_list_begins_with_its_first_job() -> None:
    wire = FakeWire(page(named("a"), named("b", 1)))
    jobs = AsyncJobs(wire, 0.0).list()

    assert (await anext(jobs)).name == "a"
    async for job in jobs:
        assert job.name == "a"
        break
    for _ in range(2):
        assert [job.name async for job in jobs] == ["a", "b"]
        assert [job.name for job in await jobs] == ["a", "b"]
    assert (await anext(jobs)).name == "b"
    assert len(wire.requests) == 1


async def test_tables_in_notebooks_escape_text_of_users() -> None:
    jobs = AsyncJobs(FakeWire(page(named("<b>bold</b>"))), 0.0)
    failed = a_job(FakeWire())
    failed.info.metrics["<i>"] = 0.123456789

    table = (await jobs.list())._repr_html_()
    card = failed._repr_html_()

    assert "&lt;b&gt;bold&lt;/b&gt;" in table
    assert "<b>" not in table
    assert "&lt;i&gt;" in card
    assert "0.12346" in card
    assert "<table>" in (await AsyncCheckpoints(FakeWire(page()), "/jobs/1").list())._repr_html_()  # type: ignore[attr-defined]


def test_an_address_needs_no_scheme_and_missing_packages_are_named() -> None:
    assert http_arguments("localhost:8080", None, 1.0)["base_url"] == "http://localhost:8080"
    with pytest.raises(PackageMissing, match=r"to_polars\(\).*polars_of_nobody"):
        optional("polars_of_nobody", "to_polars()")


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a test import pandas and matplotlib, whose folder is not on the environment's import path."""
    folder = Path(sys.prefix, "libraries")
    assert folder.is_dir(), "the libraries are not installed: run make .venv/.dev"
    # The folder comes last, so that all other packages have the environment's versions.
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])


class Cell:
    """Records the output of a notebook's cell, like IPython's display handle."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        self.shown.append(data["text/html"])


def test_the_example_notebook_runs_from_its_first_cell_to_its_last(
    standing: System, monkeypatch: pytest.MonkeyPatch, libraries: None
) -> None:
    monkeypatch.setenv("FOOTPLATE_URL", standing.url.removeprefix("http://"))
    monkeypatch.setenv("MPLBACKEND", "Agg")
    cell = Cell()
    monkeypatch.setattr(notebook, "_notebook_cell", lambda: cell)
    names: dict[str, Any] = {}

    for source in (
        entry["source"] for entry in json.loads(EXAMPLE.read_text())["cells"] if entry["cell_type"] == "code"
    ):
        exec("".join(source), names)

    assert ">succeeded<" in cell.shown[-1]
    assert 'max="60" value="60"' in cell.shown[-1]
    assert names["frame"]["step"].max() == 60
    axes = names["client"].compare(["slow", names["fast"]], "loss", x="time")
    assert [line.get_label() for line in axes.get_lines()] == ["slow loss", "fast loss"]
    assert [job.name for job in names["jobs"][:2]] == ["fast", "slow"]
    assert "<table>" in names["fast"].checkpoints.list()._repr_html_()


def test_a_watched_job_is_printed_line_by_line_outside_of_notebooks(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    job = client.jobs.create(model="toy/mlp", data="toy/regression", training={"max_steps": 4, "logging_steps": 2})

    job.watch()

    output = capsys.readouterr().out.splitlines()
    assert output[-1] == "succeeded"
    assert any(line.startswith("step 4  loss ") for line in output)
