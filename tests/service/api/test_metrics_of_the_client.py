"""Tests the client's methods and commands that read metrics, logs and the queue, with the real routes."""

from __future__ import annotations

import asyncio
import math
import sys

import pytest

from footplate import AsyncClient
from footplate.contract.events import Kind
from service.store.times import now_ms
from tests.conformance.acting import Stage, place_waiting
from tests.conformance.test_curves import send_logs
from tests.service.api.conftest import PATIENCE, Api, Command


async def test_the_client_reads_curves_of_one_and_of_several_jobs(api: Api) -> None:
    job, worker = Stage(api.db).running()
    send_logs(worker, [{"loss": 1.0}, {"loss": math.nan}, {"loss": -math.inf, "f1": 3}])
    other = await api.submit()

    async with AsyncClient(api.url) as client:
        mine = await client.jobs.get(job)
        summary = await mine.metrics.summary()
        loss = (await mine.metrics.series("loss"))["loss"]
        every = await mine.metrics.series(x="epoch", points=10, everything=True)
        both = await client.jobs.series([mine, other], "f1")

    assert (summary["loss"].last.value, summary["loss"].not_finite, summary["f1"].max) == (
        -math.inf,
        2,
        summary["f1"].last,
    )
    assert loss.x == (1, 2, 3)
    assert (loss.y[0], math.isnan(loss.y[1]), loss.y[2]) == (1.0, True, -math.inf)
    assert set(every) == {"loss", "f1"}
    assert [(side.job, side.y) for side in both] == [(job, (3.0,)), (other, ())]


async def test_footplate_metrics_redraws_its_curves_in_place_on_a_terminal(
    api: Api, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, worker = Stage(api.db).running()
    send_logs(worker, [{"loss": 3.0, "lr": 1.0}, {"loss": 1.0}, {"loss": 2.0}])
    worker.finishes()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    code, out, _ = await command("metrics", job, "--follow", "--names", "loss")

    assert code == 0
    first, again = out.split("\033[2A\033[J")
    assert first.startswith("\033[?7l")
    assert again.endswith("\033[?7h")
    assert again.splitlines()[1].split() == ["loss", "2", "1", "2", "3", "1", "3", "█▁▅"]


async def test_the_client_reads_stored_lines_and_follows_new_ones(api: Api) -> None:
    job = await api.submit()
    for n in range(3):
        await api.append(
            job, {"stream": "stdout", "text": f"early {n}"}, {"stream": "stderr", "text": "no"}, kind=Kind.LINE
        )

    async with AsyncClient(api.url) as client:
        mine = await client.jobs.get(job)
        early = [line.text async for line in mine.logs(grep="early")]
        live = mine.logs(stream="stdout", follow=True)
        texts = [(await anext(live)).text for _ in range(3)]
        next_line = asyncio.ensure_future(anext(live))
        await api.append(job, {"stream": "stderr", "text": "no"}, {"stream": "stdout", "text": "late"}, kind=Kind.LINE)
        texts.append((await asyncio.wait_for(next_line, PATIENCE)).text)
        await api.end(job)
        texts += [line.text async for line in live]

    assert early == ["early 0", "early 1", "early 2"]
    assert texts == [*early, "late"]


async def test_the_client_lists_the_queue_and_the_place_of_a_job(api: Api) -> None:
    first, second = await api.submit(), await api.submit(name="patient")
    await api.db.write(lambda conn: place_waiting(conn, now_ms()))

    async with AsyncClient(api.url) as client:
        every, (place,) = await client.queue(), await client.queue(second)

    assert [waiting.job for waiting in every] == [first, second]
    assert (place.place, place.name, place.reason) == (2, "patient", "no_such_shape")
    assert place.ahead is not None
    assert (place.ahead.yours, place.ahead.others) == (1, 0)
