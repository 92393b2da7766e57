"""Tests curves, which are stored in buckets and equal what a reader of all events would draw."""

from __future__ import annotations

import json
import math
import random
from itertools import pairwise
from typing import Any

import pytest

from footplate.contract.events import Kind, json_safe
from footplate.contract.ids import JobId
from footplate.contract.resources.history import Series
from service.events.curves import FAN, MAX_NAMES
from service.events.series import Axis, Steps, series, summaries
from service.jobs.amend import delete
from service.jobs.resume import Resume
from service.store import checkpoints
from service.store.row_types import CheckpointRow
from service.store.tables import curve_buckets, curves
from service.store.times import text_of
from tests.conformance.acting import Stage, Worker
from tests.support.factories import WorkerEvent


def send_logs(worker: Worker, rows: list[dict[str, Any]], first_step: int = 1) -> None:
    """Sends one log event per row, in batches of very different sizes."""
    sizes = random.Random(len(rows))
    while rows:
        some, rows = rows[: (size := sizes.choice((1, 2, 31, 32, 33, 400)))], rows[size:]
        begin = len(worker.journal) + 1
        events = [
            WorkerEvent(
                seq=begin + n, kind=Kind.LOG, at=text_of(worker.stage.now + n), step=first_step + n,
                epoch=(first_step + n) / 100, data=json_safe(data),
            )
            for n, data in enumerate(some)
        ]  # fmt: skip
        worker.journal += events
        worker.send(*events)
        first_step += len(some)


def curves_of(stage: Stage, job: JobId, *names: str, points: int = 1000, everything: bool = False) -> list[Series]:
    return stage.read(lambda conn: series(conn, job, names, points, everything=everything))


def xy(curve: Series) -> tuple[list[Any], list[Any]]:
    return list(curve.x), ["NaN" if math.isnan(y) else y for y in curve.y]


def begins(curve: Series) -> list[tuple[int, int]]:
    """Returns each attempt with the index of its first point."""
    return [(begun.attempt, begun.first) for begun in curve.attempts]


def next_attempt(stage: Stage, job: JobId, worker: Worker, fails: str = "crashed") -> Worker:
    """Fails the attempt, and starts the next attempt on the same node."""
    worker.fails(fails)
    assert stage.place() == [job]
    later = stage.claim(job)
    later.says_running()
    return later


def test_a_curve_of_few_points_shows_every_point(stage: Stage) -> None:
    job, worker = stage.running()
    send_logs(worker, [{"loss": 1 / n, "lr": 5, "note": "words", "on": True} for n in range(1, 101)])

    loss, lr, nothing = curves_of(stage, job, "loss", "lr", "no_such")

    assert xy(loss) == (list(range(1, 101)), [1 / n for n in range(1, 101)])
    assert (loss.count, loss.exact, begins(loss)) == (100, True, [(1, 0)])
    assert xy(lr)[1] == [5] * 100
    assert (nothing.count, nothing.x) == (0, ())
    assert [summary.name for summary in stage.read(lambda conn: summaries(conn, job))] == ["loss", "lr"]


def test_a_spike_is_in_the_curve_however_few_points_are_requested(stage: Stage) -> None:
    job, worker = stage.running()
    values = [math.sin(n / 300) for n in range(5000)]
    high, low, nan = 17, 3071, 4999 - 2
    values[high], values[low] = 1e6, -1e6
    send_logs(worker, [{"loss": value if n != nan else math.nan} for n, value in enumerate(values)])

    for points in (10, 57, 500, 1000, 4999):
        (curve,) = curves_of(stage, job, "loss", points=points)
        xs, ys = xy(curve)

        assert points / 6 <= len(xs) <= points
        assert not curve.exact
        assert xs == sorted(xs)
        assert (xs[0], xs[-1]) == (1, 5000)
        assert (ys[xs.index(high + 1)], ys[xs.index(low + 1)], ys[xs.index(nan + 1)]) == (1e6, -1e6, "NaN")
        assert all(y == values[x - 1] for x, y in zip(xs, ys, strict=True) if y != "NaN"), "a point is made up"
    (summary,) = stage.read(lambda conn: summaries(conn, job))
    assert summary.min
    assert summary.max
    assert (summary.min.value, summary.min.step) == (-1e6, low + 1)
    assert (summary.max.value, summary.max.step) == (1e6, high + 1)
    assert (summary.count, summary.not_finite, summary.last.step) == (5000, 1, 5000)


def test_every_bucket_shows_its_minimum_and_maximum(stage: Stage) -> None:
    job, worker = stage.running()
    chance = random.Random(0)
    values = [chance.gauss(0, 1) for _ in range(FAN**2 * 2 + FAN * 3 + 5)]
    send_logs(worker, [{"loss": value} for value in values])

    xs, ys = xy(curves_of(stage, job, "loss", points=200)[0])

    # No dip or peak is lost: values between two shown points lie within the range of the shown points nearby.
    share = len(values) / 99 + FAN
    for first in range(0, len(values) - int(3 * share), int(share)):
        near = [y for x, y in zip(xs, ys, strict=True) if first - share <= x <= first + 3 * share]
        assert max(near) >= max(values[first : first + int(share)])
        assert min(near) <= min(values[first : first + int(share)])


def test_a_range_of_steps_shows_points_that_the_whole_curve_leaves_out(stage: Stage) -> None:
    job, worker = stage.running(retry={"max_attempts": 5})
    chance = random.Random(1)
    values = [chance.gauss(0, 1) for _ in range(FAN**2 + FAN * 7 + 9)]
    send_logs(worker, [{"loss": value} for value in values])
    send_logs(next_attempt(stage, job, worker), [{"loss": 9.0}] * 5, first_step=4501)

    def part(first: int | None, last: int | None, points: int) -> Series:
        return stage.read(lambda conn: series(conn, job, ["loss"], points, steps=Steps(first, last)))[0]

    few = part(1001, 1100, 100)
    assert xy(few) == (list(range(1001, 1101)), values[1000:1100])
    assert (few.exact, few.count, few.left_out) == (True, len(values) + 5, len(values) - 4500)
    assert xy(part(4499, None, 10)) == ([4499, 4500, 4501, 4502, 4503, 4504, 4505], [*values[4498:4500], *[9.0] * 5])
    assert xy(part(5000, None, 10)) == xy(part(None, 0, 10)) == ([], [])
    for first, last in ((100, 4400), (65, 4160), (500, 1700), (1, 4500)):
        xs, ys = xy(part(first, last, 200))
        assert (xs[0], xs[-1], len(xs) <= 200) == (first, last, True)
        inside = values[first - 1 : last]
        assert (min(ys), max(ys)) == (min(inside), max(inside))
        assert all(y == values[x - 1] for x, y in zip(xs, ys, strict=True)), "a point is made up"


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, "NaN", "-Infinity"])
def test_nan_and_infinity_are_points_but_no_minimum_or_maximum(stage: Stage, odd: Any) -> None:
    job, worker = stage.running()
    send_logs(worker, [{"loss": odd}, {"loss": 2}, {"loss": 10**400}, {"loss": 1e308}])

    (curve,) = curves_of(stage, job, "loss")
    (summary,) = stage.read(lambda conn: summaries(conn, job))

    assert len(curve.y) == 4
    assert not math.isfinite(curve.y[0])
    assert summary.not_finite == 2
    assert summary.min
    assert summary.max
    assert (summary.min.value, summary.max.value) == (2, 1e308)


def test_repeated_steps_show_the_values_of_the_later_attempt(stage: Stage) -> None:
    job, worker = stage.running(retry={"max_attempts": 5})
    send_logs(worker, [{"loss": 1.0, **({"eval": 1.0} if n % 50 == 0 else {})} for n in range(1, 3001)])
    later = next_attempt(stage, job, worker)
    send_logs(later, [{"loss": 2.0} for _ in range(10)], first_step=2501)
    (before,) = curves_of(stage, job, "eval", points=5000)
    send_logs(later, [{"loss": 2.0, "eval": 2.0} for _ in range(790)], first_step=2511)

    loss, evals = curves_of(stage, job, "loss", "eval", points=5000)

    assert [x for x, _ in zip(*xy(before), strict=True)] == list(range(50, 2501, 50))
    assert xy(loss) == (list(range(1, 3301)), [1.0] * 2500 + [2.0] * 800)
    assert (loss.count, loss.left_out, begins(loss)) == (3800, 500, [(1, 0), (2, 2500)])
    assert xy(evals)[0] == [*range(50, 2501, 50), *range(2511, 3301)]
    for points in (10, 100, 1000):
        xs, ys = xy(curves_of(stage, job, "loss", points=points)[0])
        assert len(xs) <= points
        assert all(y == (1.0 if x <= 2500 else 2.0) for x, y in zip(xs, ys, strict=True))
    (everything,) = curves_of(stage, job, "loss", points=5000, everything=True)
    assert (len(everything.x), everything.left_out, begins(everything)) == (3800, 0, [(1, 0), (2, 3000)])


@pytest.mark.parametrize("points", [8, FAN**2 + FAN + 7])
def test_the_summary_of_a_metric_ignores_values_that_a_later_attempt_repeated(stage: Stage, points: int) -> None:
    job, worker = stage.running(retry={"max_attempts": 5})
    send_logs(worker, [{"loss": 10.0 - n, **({"f1": 0.5} if n == points - 1 else {})} for n in range(points)])
    later = next_attempt(stage, job, worker)
    send_logs(later, [{"loss": 20.0}], first_step=points - 3)

    (summary,) = stage.read(lambda conn: summaries(conn, job))

    assert summary.min
    assert summary.max
    assert (summary.min.value, summary.min.attempt) == (10.0 - (points - 5), 1)
    assert (summary.max.value, summary.max.attempt) == (20.0, 2)
    assert (summary.last.step, summary.last.attempt, summary.count) == (points - 3, 2, points + 1)


def continued_at(stage: Stage, job: JobId, worker: Worker, checkpoint: CheckpointRow) -> Worker:
    """Returns the next attempt, which has reported the checkpoint from which it continues and has logged nothing."""
    later = next_attempt(stage, job, worker)
    note = {"message": f"continues at step {checkpoint.step}", "checkpoint": checkpoint.path}
    later.send(later.write(Kind.NOTE, note, checkpoint.step))
    return later


def progress(worker: Worker, step: int) -> None:
    worker.send(worker.write(Kind.PROGRESS, {"step": step, "max_steps": 500, "epoch": step / 100}, step))


def test_a_curve_ends_at_the_checkpoint_from_which_the_next_attempt_continues(stage: Stage) -> None:
    job, worker = stage.running(retry={"max_attempts": 5})
    send_logs(worker, [{"loss": 100.0 - n, "grad": 1.0} for n in range(100)])
    worker.checkpoints(100, metrics={"loss": 1.0, "grad": 1.0})
    send_logs(worker, [{"loss": -50.0, "f1": 0.5} for _ in range(30)], first_step=101)
    progress(worker, 130)
    (checkpoint,) = stage.read(lambda conn: checkpoints.of_job(conn, job))

    later = continued_at(stage, job, worker, checkpoint)

    loss, f1 = curves_of(stage, job, "loss", "f1")
    assert (loss.x[-1], loss.y[-1], loss.count, loss.left_out, f1.x) == (100, 1.0, 130, 30, ())
    (everything,) = curves_of(stage, job, "loss", everything=True)
    assert len(everything.x) == 130
    names = {row.name: row for row in stage.read(lambda conn: summaries(conn, job))}
    assert set(names) == {"loss", "grad"}
    assert names["loss"].min
    assert (names["loss"].min.value, names["loss"].last.value) == (1.0, 1.0)
    row = stage.job(job)
    assert json.loads(row.metrics or "") == {"loss": 1.0, "grad": 1.0}
    assert json.loads(row.progress or "")["step"] == 100
    send_logs(later, [{"loss": 7.0}], first_step=101)
    assert json.loads(stage.job(job).metrics or "") == {"loss": 7.0, "grad": 1.0}
    assert (curves_of(stage, job, "loss")[0].x[-1], curves_of(stage, job, "loss")[0].y[-1]) == (101, 7.0)


def test_a_resume_from_an_older_checkpoint_removes_later_points_from_curves(stage: Stage) -> None:
    job, worker = stage.running()
    for step in (10, 20, 30):
        send_logs(worker, [{"loss": 40.0 - step + n} for n in range(10)], first_step=step - 9)
        progress(worker, step)
        worker.checkpoints(step, metrics={"loss": 49.0 - step})
    stage.pause(job)
    worker.ends("stopped", "pause", stop="pause")
    oldest = stage.read(lambda conn: checkpoints.of_job(conn, job))[-1]

    stage.resume(job, Resume(checkpoint=oldest.id))

    (loss,) = curves_of(stage, job, "loss")
    assert list(loss.x) == list(range(1, 11))
    (summary,) = stage.read(lambda conn: summaries(conn, job))
    assert summary.min
    assert (summary.min.value, summary.last.value) == (30.0, 39.0)
    assert json.loads(stage.job(job).metrics or "") == {"loss": 39.0}
    assert stage.events(job, ["state"])[-1].step == 10
    assert len(stage.events(job, ["log"])) == 30


def test_an_attempt_from_step_0_replaces_the_whole_curve(stage: Stage) -> None:
    job, worker = stage.running(retry={"max_attempts": 5})
    send_logs(worker, [{"loss": 1.0} for _ in range(100)])
    later = next_attempt(stage, job, worker)
    send_logs(later, [{"loss": 2.0} for _ in range(3)])

    (curve,) = curves_of(stage, job, "loss")

    assert xy(curve) == ([1, 2, 3], [2.0] * 3)
    assert begins(curve) == [(2, 0)]


def test_a_repeated_event_adds_no_point(stage: Stage) -> None:
    job, worker = stage.running()
    send_logs(worker, [{"loss": 1.0} for _ in range(40)])

    worker.send()

    assert curves_of(stage, job, "loss")[0].count == 40


def test_invalid_metric_names_and_names_above_the_limit_get_no_curve(stage: Stage) -> None:
    job, worker = stage.running()
    send_logs(worker, [{f"n{n}": 1.0 for n in range(MAX_NAMES + 9)} | {"": 1, "a\0b": 1, "x" * 300: 1, "größe/ß": 1}])
    send_logs(worker, [{"größe/ß": 1, "n1": 2.0}])

    result = {summary.name: summary.count for summary in stage.read(lambda conn: summaries(conn, job))}

    assert len(result) == MAX_NAMES
    assert result["n1"] == 2
    assert set(result) == {f"n{n}" for n in range(MAX_NAMES)}


def test_the_curves_of_an_event_with_very_many_names_are_limited(stage: Stage) -> None:
    job, worker = stage.running()
    send_logs(worker, [{f"n{n}": 1.0 for n in range(20_000)}])

    assert len(stage.read(lambda conn: summaries(conn, job))) == MAX_NAMES
    assert len(stage.events(job, ["log"])) == 1


def test_a_lone_surrogate_beside_a_metric_breaks_no_curve(stage: Stage) -> None:
    job, worker = stage.running()
    entry = worker.entry(worker.write(Kind.LOG, {"loss": 1.0, "said": "HALF"}, 3)).replace(b"HALF", b"\\ud800")
    worker.send_entries([entry])

    assert xy(curves_of(stage, job, "loss")[0]) == ([3], [1.0])


def test_points_without_a_step_are_shown_over_time_only(stage: Stage) -> None:
    job, worker = stage.running()
    worker.send(worker.write(Kind.EVAL, {"score": 1.0}), worker.write(Kind.EVAL, {"score": 2.0}, 7))

    def on(axis: Axis) -> tuple[list[Any], list[Any]]:
        return xy(stage.read(lambda conn: series(conn, job, ["score"], 1000, axis=axis))[0])

    assert on("step") == ([7], [2.0])
    assert on("time") == ([text_of(stage.now)] * 2, [1.0, 2.0])
    assert on("epoch") == ([], [])


def test_a_deleted_job_leaves_no_curve(stage: Stage) -> None:
    job, worker = stage.running()
    send_logs(worker, [{"loss": 1.0} for _ in range(100)])
    worker.finishes()
    assert len(stage.read(lambda conn: conn.execute(curve_buckets.select()).all())) == 100 // FAN

    stage.write(lambda conn: delete(conn, "default", job, stage.now))

    for table in (curves, curve_buckets):
        assert stage.read(lambda conn: conn.execute(table.select()).all()) == []  # noqa: B023


def test_every_bucket_of_every_level_of_a_curve_is_stored_once(stage: Stage) -> None:
    _, worker = stage.running()
    send_logs(worker, [{"loss": float(n)} for n in range(FAN**2 + FAN)])

    rows = stage.read(lambda conn: conn.execute(curve_buckets.select().order_by("level", "place")).all())

    assert [(row.level, row.place) for row in rows] == [(1, place) for place in range(FAN + 1)] + [(2, 0)]
    assert all(a.reaches < b.reaches for a, b in pairwise(rows[: FAN + 1]))
