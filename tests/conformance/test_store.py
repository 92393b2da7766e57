"""Tests SQL statements: lists, events, keys, checkpoints, nodes, and the guarded change of state."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest
from sqlalchemy import Connection, select, text
from sqlalchemy.event import listen

from footplate.contract.errors import IdempotencyMismatch, InvalidSpec, NotFound, PreconditionFailed, SettingsError
from footplate.contract.events import Kind
from footplate.contract.ids import FileId, JobId
from footplate.contract.lifecycle import MOVES, JobState, Reason, StopMode
from footplate.contract.messages import PROTOCOL, Gpu
from footplate.contract.spec_parts import Component
from service.jobs.amend import amend, delete
from service.jobs.mapped_columns import uploads_of
from service.jobs.prune import DAY_MS, prune
from service.store import attempts, checkpoints, events, job_list, jobs, nodes
from service.store.content import FILES
from service.store.database import Database
from service.store.job_list import JobFilter, Sort
from service.store.row_types import FileRow
from service.store.schema import migrate
from service.store.tables import dead_events
from tests.conformance.acting import Stage
from tests.support.many_jobs import copy_job
from tests.support.postgres import PostgresServer
from tests.support.system import bring_to_schema


def test_the_same_idempotency_key_and_body_get_the_same_answer(stage: Stage) -> None:
    first = stage.submitted("key")
    again = stage.submitted("key")

    assert (first.replayed, again.replayed) == (False, True)
    assert again.job.id == first.job.id
    assert again.response == first.response == f"made {first.job.id}"


def test_an_idempotency_key_with_another_body_is_refused(stage: Stage) -> None:
    stage.submitted("key", "body")

    with pytest.raises(IdempotencyMismatch):
        stage.submitted("key", "another")
    assert stage.read(jobs.state_counts) == {"queued": 1}


def test_idempotency_keys_belong_to_a_project(stage: Stage) -> None:
    mine, theirs = stage.submitted("key"), stage.submitted("key", project="theirs")

    assert not theirs.replayed
    assert mine.job.id != theirs.job.id


def test_idempotency_keys_are_deleted_after_a_week_and_jobs_are_not(stage: Stage) -> None:
    first = stage.submitted("key")
    stage.later(8 * 24 * 3600)
    stage.write(lambda conn: prune(conn, stage.now))

    assert not stage.submitted("key").replayed
    assert stage.job(first.job.id).state is JobState.QUEUED


def test_a_state_changes_only_as_the_table_allows(stage: Stage) -> None:
    for state, to in product(JobState, JobState):
        job = stage.submit()
        stage.write(lambda conn: jobs.record(conn, job, state=state))  # noqa: B023
        before = stage.job(job)
        move = partial(jobs.move, job_id=job, to=to, expect=[state], reason=Reason.SUBMITTED, now=stage.now)

        if to in MOVES[state]:
            assert stage.write(move), (state, to)
            after = stage.job(job)
            assert (after.state, after.version, after.last_no) == (to, before.version + 1, before.last_no + 1)
            assert stage.states(job)[-1] == to
        else:
            with pytest.raises(ValueError, match=f"from {state} to {to}"):
                stage.write(move)
            assert stage.job(job) == before, (state, to)


@pytest.mark.parametrize("guard", [{"attempt": 7}, {"fence": 7}, {"expect": [JobState.PAUSED]}])
def test_a_state_change_that_comes_too_late_changes_nothing(stage: Stage, guard: dict[str, object]) -> None:
    job = stage.submit()
    before = stage.job(job)
    settings = {"to": JobState.CANCELLED, "expect": [JobState.QUEUED], "reason": Reason.CANCEL, "now": 1, **guard}

    assert not stage.write(lambda conn: jobs.move(conn, job, **settings))  # type: ignore[arg-type]
    assert stage.job(job) == before


def _listed(stage: Stage, limit: int, sort: Sort = "-created", **filters: object) -> list[JobId]:
    result: list[JobId] = []
    cursor = None
    while True:
        page = stage.read(
            lambda conn: job_list.page(conn, JobFilter("default", **filters), sort, cursor, limit)  # type: ignore[arg-type]
        )
        assert len(page.rows) <= limit
        result += [row.id for row in page.rows]
        if (cursor := page.next_cursor) is None:
            return result


def test_the_pages_of_every_order_make_the_whole_list(stage: Stage) -> None:
    job_ids = []
    for number in range(9):
        stage.later(1)
        names = {"name": f"n{number % 3}"} if number % 4 else {}
        job_ids.append(stage.submit(priority=number % 3, **names))
    stage.submit(project="theirs")
    for job in job_ids[::2]:
        stage.cancel(job)

    rows = {job: stage.job(job) for job in job_ids}
    keys: dict[str, Callable[[JobId], Any]] = {
        "created": lambda job: job,
        "priority": lambda job: (rows[job].priority, job),
        "name": lambda job: (rows[job].name or "", job),
    }
    both = (JobState.CANCELLED, JobState.QUEUED)
    for sort, limit in product(get_args(Sort), (1, 3, 100)):
        expected = sorted(job_ids, key=keys[sort.lstrip("-")], reverse=sort.startswith("-"))
        assert _listed(stage, limit, sort) == expected, (sort, limit)
        assert _listed(stage, limit, sort, states=both) == expected
        assert _listed(stage, limit, sort, states=both[:1]) == [job for job in expected if job in job_ids[::2]]


@pytest.mark.postgres
def test_pages_by_name_have_each_job_once_in_a_database_with_a_locale(postgres_server: PostgresServer) -> None:
    """Compared by the numbers of characters, `D` comes before `a` and `é` after `f`. A locale sorts otherwise."""
    english = "LOCALE_PROVIDER icu ICU_LOCALE 'en-US'"
    with postgres_server.database(template="template0", options=english) as url:
        migrate(url)
        db = Database(url)
        stage = Stage(db)
        ids_by_name = {name: stage.submit(name=name) for name in ("a", "B", "c", "D", "é", "f", "_x", "10", "9")}
        for name in ("a", "B", "é", "9"):
            stage.cancel(ids_by_name[name])

        for sort in ("name", "-name"):
            whole_list = _listed(stage, 100, sort)
            assert _listed(stage, 2, sort, states=(JobState.CANCELLED, JobState.QUEUED)) == whole_list
            assert sorted(whole_list) == sorted(ids_by_name.values())
        db.close()


@pytest.mark.postgres
@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_new_database_with_another_encoding_than_utf8_is_refused(
    encoding: str, postgres_server: PostgresServer
) -> None:
    options = f"ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"
    refusal = pytest.raises(SettingsError, match=f"encoding {encoding}.*ENCODING 'UTF8'")
    with postgres_server.database(template="template0", options=options) as url, refusal:
        migrate(url)


def test_filters_narrow_the_list(stage: Stage) -> None:
    early = stage.submit(name="a", tags=["x", "y"])
    boundary = int(early[4:16], 16) + 1
    other = stage.submit(name="b", tags=["y"])

    assert _listed(stage, 10, tag="x") == [early]
    assert _listed(stage, 10, tag="y", name="b") == [other]
    assert _listed(stage, 10, tag="z") == []
    assert _listed(stage, 10, created_before=boundary - 1) == []
    assert _listed(stage, 10, created_after=boundary - 1) == [other, early]


def test_the_jobs_of_a_tag_in_many_states_are_listed_page_by_page(stage: Stage) -> None:
    job_ids = [stage.submit(tags=["x"]) for _ in range(9)]
    for job in job_ids[::2]:
        stage.cancel(job)
    stage.cancel(stage.submit(tags=["y"]))

    assert _listed(stage, 2, tag="x") == job_ids[::-1]
    assert _listed(stage, 2, "created", tag="x") == job_ids
    assert _listed(stage, 2, tag="x", states=(JobState.CANCELLED, JobState.QUEUED)) == job_ids[::-1]
    assert _listed(stage, 2, "-priority", tag="x", states=(JobState.CANCELLED,)) == job_ids[::-2]


@pytest.mark.parametrize("states", [(), (JobState.SUCCEEDED,)])
def test_a_page_of_a_tag_is_read_without_sorting_all_its_jobs(tmp_path: Path, states: tuple[JobState, ...]) -> None:
    """SQLite sorts all jobs unless the query rules this out. A page of 300,000 jobs with a tag took two seconds."""
    statements: list[tuple[str, Any]] = []
    url = f"sqlite:///{tmp_path / 'footplate.db'}"
    bring_to_schema(url)
    db = Database(url, readers=1, writers=1)

    def plans(conn: Connection) -> str:
        listen(conn, "before_cursor_execute", lambda *report: statements.append(report[2:4]))
        job_list.page(conn, JobFilter("default", states=states, tag="x"))
        return " ".join(
            str(conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {item}", how).all()) for item, how in statements[:]
        )

    try:
        result = db.read_now(plans)
    finally:
        db.close()
    assert "job_tags" in result
    assert "TEMP B-TREE" not in result


@pytest.mark.parametrize("is_analyzed", [True, False])
def test_queued_jobs_by_priority_are_read_from_their_own_index(stage: Stage, is_analyzed: bool) -> None:
    job = stage.submit()
    values = {
        "state": "CASE WHEN n <= 1000 THEN 'queued' ELSE 'succeeded' END",
        "priority": "CASE WHEN n <= 1000 THEN n % 3 ELSE 9 END",
    }
    stage.write(lambda conn: copy_job(conn, job, 1, 3000, **values))
    if is_analyzed:
        stage.write(lambda conn: conn.execute(text("ANALYZE")))

    for sort in ("-priority", "priority"):
        plans = stage.read(lambda conn, sort=sort: _plans(conn, JobFilter("default", states=(JobState.QUEUED,)), sort))

        assert "ix_jobs_queued" in plans
        assert not re.search("ix_jobs_project_priority|TEMP B-TREE|Sort", plans)


def _plans(conn: Connection, filter: JobFilter, sort: Sort) -> str:
    """Returns the plans of the statements that find the ids of a page."""
    statements: list[tuple[str, Any]] = []
    listen(conn, "before_cursor_execute", lambda *arguments: statements.append(arguments[2:4]))
    job_list.page(conn, filter, sort)
    explain = "EXPLAIN QUERY PLAN" if conn.dialect.name == "sqlite" else "EXPLAIN"
    ordered = [(statement, values) for statement, values in statements if "ORDER BY" in statement]
    return " ".join(str(conn.exec_driver_sql(f"{explain} {statement}", values).all()) for statement, values in ordered)


def test_a_cursor_of_another_list_is_refused(stage: Stage) -> None:
    stage.submit()
    stage.submit()
    page = stage.read(lambda conn: job_list.page(conn, JobFilter("default"), "-created", None, 1))

    for cursor in ("x", "bm9wZQ", "%%%", "W10"):
        with pytest.raises(InvalidSpec):
            stage.read(lambda conn, cursor=cursor: job_list.page(conn, JobFilter("default"), "-created", cursor, 1))
    with pytest.raises(InvalidSpec):
        stage.read(lambda conn: job_list.page(conn, JobFilter("default"), "priority", page.next_cursor, 1))
    assert page.total_estimate == 2


def test_the_number_of_listed_jobs_counts_no_jobs_of_other_projects(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_list, "COUNTED_TO", 1)
    for project in ("default", "default", "speech", "speech", "speech"):
        stage.submitted(None, project=project)

    assert stage.read(lambda conn: job_list.page(conn, JobFilter("default"))).total_estimate == 2


def test_events_are_read_in_order_by_page_and_by_kind(stage: Stage) -> None:
    job, worker = stage.running()
    for step in range(5):
        worker.logs(step)

    first = stage.read(lambda conn: events.after(conn, job, 0, 4))
    rest = stage.read(lambda conn: events.after(conn, job, first[-1].no, 100))
    logs = stage.read(lambda conn: events.after(conn, job, 0, 100, ["log"]))

    assert [event.no for event in first + rest] == list(range(1, 9))
    assert [event.step for event in logs] == [0, 1, 2, 3, 4]
    assert json.loads(first[0].as_json())["data"]["state"] == "queued"


def test_the_json_that_sql_makes_of_an_event_is_valid_in_the_api(stage: Stage) -> None:
    from footplate.contract.events import Event

    job, worker = stage.running()
    worker.send(worker.write(Kind.LINE, {"text": 'a "quoted" line\n\u2028 ünï \x1b[0m'}, 3))

    for row in stage.events(job):
        event = Event.model_validate_json(row.as_json())
        assert (event.no, event.kind, event.data) == (row.no, row.kind, json.loads(row.data))


def test_a_patch_increases_the_version_and_replaces_the_tags(stage: Stage) -> None:
    job = stage.submit(name="old", tags=["x"])
    version = stage.job(job).version

    row = stage.write(
        lambda conn: amend(
            conn, "default", job, {"name": None, "tags": ["y"], "priority": 9}, stage.now, if_version=version
        )
    )

    assert (row.name, json.loads(row.tags), row.priority, row.version) == (None, ["y"], 9, version + 1)
    assert _listed(stage, 10, tag="y") == [job]
    assert _listed(stage, 10, tag="x") == []
    with pytest.raises(PreconditionFailed):
        stage.write(lambda conn: amend(conn, "default", job, {"name": "z"}, stage.now, if_version=version))


def test_a_deleted_job_leaves_no_row(stage: Stage) -> None:
    job, worker = stage.running(tags=["x"])
    worker.checkpoints(1)
    worker.finishes()

    stage.write(lambda conn: delete(conn, "default", job, stage.now))

    with pytest.raises(NotFound):
        stage.job(job)
    assert stage.events(job) == []
    assert stage.read(lambda conn: attempts.of_job(conn, job)) == []
    assert _listed(stage, 10) == []
    # Late events of a deleted job are acknowledged, so that its worker can delete the journal.
    assert worker.logs(1).replies[worker.claim].closed


def test_only_one_checkpoint_is_best_and_deleted_checkpoints_are_not_offered(stage: Stage) -> None:
    job, worker = stage.running()
    folder = f"jobs/{job}/attempts/1/checkpoint-"
    worker.checkpoints(1, is_best=True)
    worker.checkpoints(2, is_best=True)
    worker.checkpoints(3, deleted=[folder + "1"])
    worker.checkpoints(2, status="corrupt")

    rows = stage.read(lambda conn: checkpoints.of_job(conn, job))
    offers = stage.read(lambda conn: checkpoints.offers(conn, job))

    assert [(row.step, row.status, row.is_best) for row in rows] == [
        (3, "committed", False),
        (2, "corrupt", True),
        (1, "deleted", False),
    ]
    # Corrupt checkpoints are offered, too. Otherwise a job that has no others would silently start at step 0.
    assert [row.step for row in offers] == [3, 2]


def test_a_checkpoint_outside_the_folder_of_its_attempt_is_refused(stage: Stage) -> None:
    job, worker = stage.running()
    for path in ("/etc/passwd", f"jobs/{job}/attempts/2/checkpoint-1", f"jobs/{job}/attempts/1/../../../x"):
        effects = worker.checkpoints(1, path=path)
        assert effects.counts.events_dead == 1

    assert stage.read(lambda conn: checkpoints.of_job(conn, job)) == []
    assert len(stage.read(lambda conn: conn.execute(select(dead_events)).all())) == 3


def test_a_catalogue_is_requested_once_and_stored_until_its_last_node_is_lost(stage: Stage) -> None:
    node = stage.node()
    assert stage.beat_node(node, catalogue_hash="h").catalogue_known is None
    body = {"models": {"toy/mlp": {}}}
    assert stage.beat_node(node, catalogue_hash="h", catalogue=body).catalogue_known == "h"
    assert stage.beat_node(node, catalogue_hash="h").catalogue_known == "h"
    assert stage.read(nodes.catalogues) == [body]

    stage.rescue()
    stage.later(1000)
    assert stage.rescue().nodes_lost == [node]
    assert stage.read(nodes.catalogues) == []
    stage.write(lambda conn: prune(conn, stage.now + 8 * DAY_MS))
    assert stage.read(nodes.all_nodes) == []


def test_a_node_of_a_later_protocol_is_refused_with_the_reason(stage: Stage) -> None:
    before, after = PROTOCOL - 1, PROTOCOL + 1
    old, new = stage.node(protocol=before), stage.node(protocol=after)

    answers = {node: stage.beat_node(node, protocol=p).refused for node, p in ((old, before), (new, after))}

    assert answers[old] is None
    assert f"protocol {after}" in (answers[new] or "")
    assert [node.is_staying for node in stage.read(nodes.all_nodes) if node.id == new] == [False]


def test_one_gpu_cannot_be_announced_by_two_nodes(stage: Stage) -> None:
    card = Gpu(uuid="GPU-1", name="H100", capability=(9, 0))
    first = stage.node(gpus=[card])
    second = stage.node(gpus=[card])

    assert "GPU-1" in (stage.beat_node(second, gpus=[card]).refused or "")
    assert stage.beat_node(first, gpus=[card]).refused is None


def test_a_drained_node_gets_no_jobs_until_the_operator_ends_the_drain(stage: Stage) -> None:
    job, worker = stage.running()
    stage.write(lambda conn: nodes.request_drain(conn, worker.node, drain=True))

    assert stage.beat_node(worker.node).drain
    assert stage.job(job).state is JobState.STOPPING
    worker.ends("stopped", "drain", stop="drain")
    assert stage.place() == []
    assert "drained" in (stage.job(job).message or "")

    back = stage.write(lambda conn: nodes.request_drain(conn, worker.node, drain=False))
    assert (back.takes_work, stage.place()) == (True, [job])


def test_events_that_cannot_be_parsed_are_set_aside_and_delay_no_others(stage: Stage) -> None:
    job, worker = stage.running()
    good = worker.write(Kind.LOG, {"loss": 1.0}, 1).model_dump(mode="json")
    raw = json.loads(worker.entry())
    huge = {**good, "seq": 3, "data": {"text": "x" * 2_000_000}}
    odd = [
        {**good, "seq": 4, "at": 'now","evil":"'},
        {**good, "seq": 5, "epoch": "x"},
        {**good, "seq": 6, "step": True},
    ]
    raw["events"] = [good, huge, *odd, {**good, "seq": 7, "kind": "from_the_future", "data": {"a": "\ud800"}}]

    effects = worker.send_entries([json.dumps(raw).encode(), b"not json", b'{"job": 1}'])

    assert (effects.watermarks[job, 1, 0], effects.counts.events_dead) == (7, 6)
    kinds = [(event.seq, event.kind) for event in stage.events(job) if event.source == 0]
    assert kinds == [(1, "state"), (2, "log"), (3, "gap"), (4, "gap"), (5, "gap"), (6, "gap"), (7, "from_the_future")]
    assert all(json.loads(event.as_json()) for event in stage.events(job))


def test_nan_and_infinity_are_strings_in_json(stage: Stage) -> None:
    job, worker = stage.running()
    worker.write(Kind.LOG, {"loss": 1.0}, 1)
    entry = worker.entry().replace(b'"loss":1.0', b'"loss":NaN,"grad":-Infinity')

    worker.send_entries([entry])

    assert json.loads(stage.events(job, ["log"])[0].data) == {"loss": "NaN", "grad": "-Infinity"}
    assert json.loads(stage.job(job).metrics or "") == {"loss": "NaN", "grad": "-Infinity"}


def test_jobs_are_counted_by_state(stage: Stage) -> None:
    stage.cancel(stage.submit(), StopMode.KILL)
    stage.submit()
    stage.submit(project="theirs")

    assert stage.read(jobs.state_counts) == {"cancelled": 1, "queued": 2}


def test_a_file_that_a_dataset_names_many_times_is_read_once(db: Database) -> None:
    file = FileRow(
        "default", FileId("file_" + "0" * 64 + ".jsonl"), "a" * 64, 10, "rows.jsonl", "jsonl", 1, None, 50, 0, "{}"
    )
    db.write_now(lambda conn: FILES.keep(conn, file, lambda: None))
    dataset = Component(use="files/jsonl", args={"paths": [file.id] * 3})

    first, *others = db.read_now(lambda conn: uploads_of(conn, "default", dataset))

    assert len(others) == 2
    assert all(other is first for other in others)
