"""Measures the Charts view in Chromium with 20 jobs of 30 metrics of 100,000 points each, while somebody uses the page.

The points are written to the database of a service, and the code of ingest writes their buckets. A simulated node
reports further points. Chromium's own trace gives the length of each task of the page's main thread: a task of 100 ms
is a page that stands still. "CPU" is the time that the thread itself used, without what other processes took.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from threading import Event
from typing import Any

import httpx2
from playwright.sync_api import Browser, Page, sync_playwright
from pydantic_core import to_json
from sqlalchemy import Connection, insert, literal, select

from bench import report
from bench.post import cpu_seconds, serve
from bench.readers import SimulatedNode
from bench.system import beside
from footplate.contract.events import Kind
from footplate.contract.ids import JobId
from service.events.curves import Column, Curve, bucket_rows
from service.store import curves, events, jobs, tables
from service.store.database import Database
from service.store.row_types import BucketRow, CurveRow, EventRow
from service.store.times import text_of
from tests.support.browser import INSTALL, chromium
from tests.support.processes import Process, Processes, until
from tests.support.redis_server import RedisServer

JOBS, METRICS, POINTS = 20, 30, 100_000
DISTINCT = 4
"""The number of jobs with values of their own. The other jobs have copies, because making values takes long."""
NAMES = (
    "loss", "grad_norm", "learning_rate", "accuracy", "tokens_per_second",
    *(f"layer_{number}/norm" for number in range(10)), *(f"eval_loss_{number}" for number in range(10)),
    *(f"reward/part_{number}" for number in range(5)),
)  # fmt: skip
PRESELECTED = 10
LIVE_SECONDS, LIVE_PER_SECOND = 6.0, 10.0
CHUNK = 10_000
FIRST_NO = 100
"""The highest number that an event of a job may have before its history."""
STARTED = 1_790_000_000_000
BAR_TASK, BAR_FRAME, BAR_LIVEZ = "≤ 100", "≤ 20", "≤ 50"


def run(folder: Path, *, quick: bool = False) -> list[report.Row]:
    program = chromium()
    assert program, f"needs Chromium: {INSTALL}"
    with filled_service(folder, POINTS // 10 if quick else POINTS) as service, sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=program, args=flags)
        rows = [*answers(service), *used(browser, service)]
        browser.close()
    return rows


@dataclass(frozen=True)
class Service:
    process: Process
    url: str
    played: list[SimulatedNode]
    points: int

    @property
    def ids(self) -> list[str]:
        return [node.job for node in self.played]


@contextmanager
def filled_service(folder: Path, points: int) -> Iterator[Service]:
    """Yields a service with jobs that run on simulated nodes, and that have logged this many points before."""
    folder.mkdir(exist_ok=True, parents=True)
    processes, redis = Processes(folder), RedisServer().start()
    database = f"sqlite:///{folder / 'dashboard.db'}"
    try:
        env = {"FOOTPLATE_REDIS": redis.url, "FOOTPLATE_LEASE_SECONDS": 3600}
        process, port = serve(processes, folder, database, role="all", **env)
        url = f"http://127.0.0.1:{port}"
        played = [SimulatedNode(url, redis.url) for _ in range(JOBS)]
        db = Database(database)
        fill(db, [JobId(node.job) for node in played], points)
        db.close()
        for node in played:
            node.emit([point_at(points)])
        client = played[0].client
        until(
            lambda: all("loss" in client.get(f"/jobs/{node.job}").json()["metrics"] for node in played),
            within=60, what="the first live points are stored",
        )  # fmt: skip
        yield Service(process, url, played, points)
    finally:
        processes.stop_all()
        redis.close()


def fill(db: Database, ids: list[JobId], points: int) -> None:
    for place, job in enumerate(ids):
        if place < DISTINCT:
            write_history(db, job, points, random.Random(place))
        else:
            db.write_now(partial(copy_history, source=ids[place % DISTINCT], job=job))
        db.write_now(partial(jobs.record, job_id=job, last_no=FIRST_NO + points))


def write_history(db: Database, job: JobId, points: int, rng: random.Random) -> None:
    """Writes the events of one job and the buckets of its curves."""
    pyramid = {name: Curve() for name in NAMES}
    for first_step in range(0, points, CHUNK):
        steps = list(range(first_step, min(first_step + CHUNK, points)))
        ats = [text_of(STARTED + 500 * step) for step in steps]
        epochs = [step / 1000 for step in steps]
        nos = [FIRST_NO + 1 + step for step in steps]
        data = [values_at(step, rng) for step in steps]
        rows = [
            EventRow(job, no, 1, 1, step, 0, Kind.LOG, at, step, epoch, to_json(values).decode())
            for no, step, at, epoch, values in zip(nos, steps, ats, epochs, data, strict=True)
        ]
        full: list[BucketRow] = []
        for name, curve in pyramid.items():
            column = Column(nos, ats, list(steps), list(epochs), [values[name] for values in data])
            full += bucket_rows(job, 1, name, curve.feed(column))
        db.write_now(partial(_write, events_=rows, buckets=full))
    db.write_now(
        partial(curves.save, rows=[CurveRow(job, 1, name, curve.written()) for name, curve in pyramid.items()])
    )


def _write(conn: Connection, events_: list[EventRow], buckets: list[BucketRow]) -> None:
    events.insert_many(conn, events_)
    curves.add(conn, buckets)


def copy_history(conn: Connection, source: JobId, job: JobId) -> None:
    for table in (tables.events, tables.curves, tables.curve_buckets):
        columns = [literal(job) if column.name == "job_id" else column for column in table.c]
        history = select(*columns).where(table.c.job_id == source)
        if table is tables.events:
            history = history.where(table.c.no > FIRST_NO)
        conn.execute(insert(table).from_select([column.name for column in table.c], history))


def values_at(step: int, rng: random.Random) -> dict[str, float]:
    """Returns the values of all metrics at one step. They fall over time, with noise and now and then a spike."""
    fall = math.exp(-step / 30_000)
    spike = 5.0 if rng.random() < 0.0005 else 1.0
    return {
        name: round((0.2 + fall) * (1 + 0.3 * rng.random()) * spike * (1 + place % 7), 5)
        for place, name in enumerate(NAMES)
    }


def point_at(step: int) -> dict[str, Any]:
    return {"kind": "log", "step": step, "epoch": step / 1000, "data": values_at(step, random.Random(step))}


def live(service: Service) -> AbstractContextManager[None]:
    """Reports further points of every job until the end of the block."""

    def work(is_over: Event) -> None:
        began = time.monotonic()
        for turn in count(1):
            for node in service.played:
                node.emit([point_at(service.points + turn)])
            if is_over.wait(max(0.0, began + turn / LIVE_PER_SECOND - time.monotonic())):
                return

    return beside(work)


# The server --------------------------------------------------------------------------------------------------------


def answers(service: Service) -> list[report.Row]:
    """Returns what the server's answers for the page cost, asked one after the other."""
    client = service.played[0].client
    milliseconds, sizes = [], []
    cpu = cpu_seconds(service.process.pid)
    for job in service.ids:
        began = time.perf_counter()
        answer = client.get(f"/jobs/{job}/metrics/series?x=step&points=1000")
        milliseconds.append(1000 * (time.perf_counter() - began))
        curves_ = answer.json()["data"]
        assert len(curves_) == METRICS, [curve["name"] for curve in curves_]
        assert all(curve["count"] > service.points for curve in curves_)
        sizes.append(len(answer.content) / 1e6)
    cpu = cpu_seconds(service.process.pid) - cpu
    return [
        report.Row(f"one job's {METRICS} curves: time", milliseconds, "ms"),
        report.Row("one job's curves: size", [median(sizes)], "MB"),
        report.Row("one job's curves: the service's CPU time", [1000 * cpu / len(milliseconds)], "ms"),
    ]


@contextmanager
def pulse(url: str) -> Iterator[list[float]]:
    """Requests /livez every 20 ms until the end of the block, and yields the list of times in milliseconds."""
    milliseconds: list[float] = []

    def ask(is_over: Event) -> None:
        with httpx2.Client(base_url=url, timeout=30) as client:
            while not is_over.wait(0.02):
                began = time.perf_counter()
                client.get("/livez").raise_for_status()
                milliseconds.append(1000 * (time.perf_counter() - began))

    with beside(ask):
        yield milliseconds


# The page ----------------------------------------------------------------------------------------------------------


FRAMES = """() => {
  window.frames_ = []; let before = performance.now(); window.isMeasured_ = true;
  const turn = (now) => {
    window.frames_.push(now - before);
    before = now;
    if (window.isMeasured_) requestAnimationFrame(turn);
  };
  requestAnimationFrame(turn);
}"""


DRAWN = """count => document.querySelector("[data-metric=loss] canvas") !== null
  && document.querySelectorAll("[data-metric=loss] .legend li").length === count"""


@dataclass(frozen=True)
class Used:
    """The work of the page's main thread during one kind of use."""

    tasks: list[float]
    """Lengths of tasks in milliseconds."""
    cpu: list[float]
    frames: list[float]
    seconds: float


def used(browser: Browser, service: Service) -> list[report.Row]:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(120_000)
    sizes: list[float] = []
    page.on("requestfinished", lambda request: sizes.append(request.sizes()["responseBodySize"] / 1e6))
    rows = []
    with pulse(service.url) as milliseconds:
        address = f"{service.url}/#/jobs?sel={','.join(service.ids[:PRESELECTED])}"
        rows += figures(
            f"open with {PRESELECTED} jobs", measured(browser, page, lambda: open_view(page, address, PRESELECTED))
        )
        rows += figures("select all 20", measured(browser, page, lambda: select_all(page, service)))
    rows.append(report.Row("bytes for the view of 20 jobs", [sum(sizes)], "MB"))
    rows.append(report.Row("/livez meanwhile: median", [median(milliseconds)], "ms"))
    rows.append(report.Row("/livez meanwhile: slowest", [max(milliseconds)], "ms", BAR_LIVEZ))
    for name, act in USES.items():
        rows += figures(name, measured(browser, page, partial(act, page)))
    with live(service):
        rows += figures(
            f"live points, {LIVE_PER_SECOND:.0f}/s of each job",
            measured(browser, page, partial(page.wait_for_timeout, 1000 * LIVE_SECONDS)),
        )
        rows += figures("scroll while live points arrive", measured(browser, page, partial(scroll, page)))
        rows += figures("cursor while live points arrive", measured(browser, page, partial(move_cursor, page)))
    heap = page.evaluate("() => performance.memory.usedJSHeapSize / 1e6")
    rows.append(report.Row("the page's JavaScript heap", [heap], "MB"))
    page.close()
    return rows


def open_view(page: Page, address: str, jobs_: int) -> None:
    page.goto(address)
    wait_for_curves(page, jobs_)


def select_all(page: Page, service: Service) -> None:
    page.evaluate("sel => { location.hash = `#/jobs?sel=${sel}` }", ",".join(service.ids))
    wait_for_curves(page, len(service.ids))


def wait_for_curves(page: Page, jobs_: int) -> None:
    """Waits until the first chart has the curves of all jobs.

    `expect()` is not used: while it waits, it reads the whole page in tasks that are longer than the page's own.
    """
    page.wait_for_function(DRAWN, arg=jobs_, polling=100, timeout=120_000)


def scroll(page: Page) -> None:
    page.mouse.move(640, 600)
    for by in (*[120] * 40, *[-120] * 40):
        page.mouse.wheel(0, by)
        page.wait_for_timeout(16)


def _over(page: Page) -> tuple[float, float, float, float]:
    """Returns the place of a chart, brought into view."""
    plot = page.locator("[data-metric=loss] .u-over")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box
    return box["x"], box["y"], box["width"], box["height"]


def move_cursor(page: Page) -> None:
    x, y, width, height = _over(page)
    for turn in range(100):
        page.mouse.move(x + 5 + turn * (width - 10) / 100, y + height / 2 + 20 * math.sin(turn / 5))
        page.wait_for_timeout(16)


def zoom(page: Page) -> None:
    x, y, width, height = _over(page)
    for share in (0.6, 0.5, 0.4):
        page.mouse.move(x + width * 0.1, y + height / 2)
        page.mouse.down()
        page.mouse.move(x + width * share, y + height / 2, steps=10)
        page.mouse.up()
        page.wait_for_timeout(200)
    page.mouse.dblclick(x + width / 2, y + height / 2)
    page.wait_for_timeout(200)


def smooth(page: Page) -> None:
    slider = page.get_by_role("slider")
    slider.focus()
    for key in ("ArrowRight", "ArrowLeft"):
        for _ in range(30):
            page.keyboard.press(key)
            page.wait_for_timeout(16)


def wait_at_rest(page: Page) -> None:
    page.wait_for_timeout(3000)


USES: dict[str, Callable[[Page], None]] = {
    "at rest": wait_at_rest, "scroll": scroll, "cursor": move_cursor, "zoom": zoom, "smoothing": smooth,
}  # fmt: skip


def measured(browser: Browser, page: Page, act: Callable[[], object]) -> Used:
    browser.start_tracing(
        page=page, categories=["toplevel", "disabled-by-default-devtools.timeline", "devtools.timeline"]
    )
    page.evaluate(FRAMES)
    began = time.monotonic()
    act()
    seconds = time.monotonic() - began
    frames = page.evaluate("() => { window.isMeasured_ = false; return window.frames_ ?? [] }")
    trace = json.loads(browser.stop_tracing())["traceEvents"]
    tasks, cpu = tasks_of(trace)
    return Used(tasks, cpu, frames[2:], seconds)


def tasks_of(trace: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Returns length and CPU time of each task of the busiest main thread of a page."""
    mains = {
        (event["pid"], event["tid"])
        for event in trace
        if event.get("name") == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    threads: dict[tuple[int, int], list[dict[str, Any]]] = {main: [] for main in mains}
    for event in trace:
        if event.get("name") == "ThreadControllerImpl::RunTask" and (thread := (event["pid"], event["tid"])) in mains:
            threads[thread].append(event)
    busiest = max(threads.values(), key=lambda tasks: sum(task.get("dur", 0) for task in tasks))
    return [task.get("dur", 0) / 1000 for task in busiest], [task.get("tdur", 0) / 1000 for task in busiest]


def figures(name: str, use: Used) -> list[report.Row]:
    frames = sorted(use.frames) or [0.0]
    return [
        report.Row(f"{name}: longest task", [max(use.tasks)], "ms", BAR_TASK),
        report.Row(f"{name}: longest task, CPU", [max(use.cpu)], "ms", BAR_TASK),
        report.Row(f"{name}: CPU of the main thread", [sum(use.cpu) / use.seconds / 10], "%"),
        report.Row(f"{name}: p95 between frames", [frames[int(len(frames) * 0.95)]], "ms", BAR_FRAME),
    ]
