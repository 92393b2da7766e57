"""Tests what the service reports about itself: nodes, components, health and metrics."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from sqlalchemy import update

from footplate.contract.messages import BOOT_ID, FileRoot, FileRoots, NodeBeat
from service import readiness
from service.counters import Counts, prometheus_name
from service.jobs.beat import node_beat
from service.jobs.conclude import Effects
from service.prometheus_metrics import Meters
from service.redis_client import RedisNotifier
from service.store import nodes, schema
from service.store.tables import sources
from service.store.times import now_ms
from tests.conformance.acting import place_waiting
from tests.service.api.conftest import SPEC, Api
from tests.support.redis_server import RedisServer

CATALOGUE = {
    "models": {"toy/mlp": {"name": "toy/mlp", "group": "models"}},
    "data": {"toy/regression": {"name": "toy/regression", "group": "data"}},
}


async def a_node(api: Api, **changes: Any) -> str:
    """Registers a node by its first heartbeat, and returns its id."""
    beat = NodeBeat.model_validate(
        {
            "node": "node_" + "1" * 32, "boot": "b1", "number": 1, "name": "one", "slots": 2, "catalogue_hash": "h1",
            "catalogue": CATALOGUE, **changes,
        }
    )  # fmt: skip
    await api.db.write(lambda conn: node_beat(conn, beat, now_ms(), api.services.settings, Effects()))
    await api.services.catalogues.refresh()
    return beat.node


ZERO = {"type": "deepspeed", "config": {"zero_optimization": {"stage": 2}}}


@pytest.mark.parametrize(
    ("change", "pointer", "package", "install"),
    [
        ({"resources": {"processes_per_node": 2, "strategy": ZERO}}, "/resources/strategy/type", "deepspeed", ""),
        ({"report_to": ["all", "wandb"]}, "/report_to/1", "wandb", ""),
        ({"training": {"report_to": "tensorboard"}}, "/training/report_to", "tensorboardx", "tensorboard"),
        ({"model": {"use": "hf/causal-lm", "args": {"peft": {"r": 8}}}}, "/model/args/peft", "peft", ""),
        (
            {"model": {"use": "hf/causal-lm", "args": {"path": "models://a", "quantization": "nf4", "peft": {"r": 8}}}},
            "/model/args/quantization",
            "bitsandbytes",
            "'footplate[bitsandbytes]'",
        ),
        ({"training": {"optim": "paged_adamw_8bit"}}, "/training/optim", "bitsandbytes", ""),
        ({"training": {"use_liger_kernel": True}}, "/training/use_liger_kernel", "liger-kernel", "'footplate[liger]'"),
    ],
)
async def test_a_package_that_no_node_has_is_refused_at_the_field_that_needs_it(
    api: Api, change: Any, pointer: str, package: str, install: str
) -> None:
    spec = {**SPEC, **change}
    models = {**CATALOGUE["models"], "hf/causal-lm": {"name": "hf/causal-lm", "group": "models", "args": {}}}
    catalogue = {**CATALOGUE, "models": models}
    without_nodes = await api.client.post("/jobs", json=spec)
    others = {
        name: {"name": name, "group": "packages", "summary": "2.13"} for name in ("torch", "peft") if name != package
    }
    await a_node(api, catalogue={**catalogue, "packages": others})
    refusal = await api.client.post("/jobs", json=spec)
    has = {**others, package: {"name": package, "group": "packages", "summary": "0.19.8"}}
    await a_node(api, boot="b2", catalogue_hash="h2", catalogue={**catalogue, "packages": has})
    accepted = await api.client.post("/jobs", json=spec)

    assert (without_nodes.status_code, refusal.status_code, accepted.status_code) == (201, 422, 201)
    (error,) = refusal.json()["errors"]
    assert (error["pointer"], error["code"]) == (pointer, "package_missing")
    how = install or f"'footplate[{package}]'"
    assert f"pip install {how}" in error["hint"]


async def test_a_data_file_is_refused_until_a_node_has_it(api: Api, tmp_path: Path) -> None:
    root = FileRoot.at(tmp_path)
    roots = FileRoots(machine=BOOT_ID.read_text().strip(), data=root, models=root)
    catalogue = {**CATALOGUE, "data": {"files/jsonl": {"name": "files/jsonl", "group": "data", "args": {}}}}
    spec = {**SPEC, "data": "data://rows.jsonl"}
    await a_node(api, catalogue={**catalogue, "packages": {}}, roots=roots)
    both = await api.client.post("/jobs", json={**spec, "report_to": ["wandb"]})
    refusals = [await api.client.post(path, json=spec) for path in ("/jobs", "/jobs/validate")]
    (tmp_path / "rows.jsonl").touch()
    accepted = await api.client.post("/jobs", json=spec)

    for answer in refusals:
        (error,) = answer.json()["errors"]
        assert (error["pointer"], error["code"]) == ("/data", "file_missing")
        assert str(tmp_path) in error["hint"]
        assert "POST /files" in error["hint"]
    assert accepted.status_code == 201
    assert [item["code"] for item in both.json()["errors"]] == ["package_missing", "file_missing"], "both are reported"


async def test_a_resume_is_checked_against_the_nodes_like_a_post(api: Api) -> None:
    job = await api.submit()
    assert (await api.client.post(f"/jobs/{job}/cancel")).status_code == 202
    await a_node(api, catalogue={**CATALOGUE, "packages": {}})
    config = {"zero_optimization": {"stage": 2}}
    shared = {"processes_per_node": 2, "strategy": {"type": "deepspeed", "config": config}}

    refusal = await api.client.post(f"/jobs/{job}/resume", json={"resources": shared})
    resumed = await api.client.post(f"/jobs/{job}/resume", json={"resources": {"pool": "other"}})

    assert (refusal.status_code, resumed.status_code) == (422, 202)
    (error,) = refusal.json()["errors"]
    assert (error["pointer"], error["code"]) == ("/resources/strategy/type", "package_missing")


async def test_component_names_are_checked_against_the_nodes(both: Api) -> None:
    unknown = {**SPEC, "model": "toy/mpl"}
    early = await both.client.post("/jobs", json=unknown)
    await a_node(both)

    late = await both.client.post("/jobs", json=unknown)

    assert early.status_code == 201, "without a node, components cannot be checked"
    assert late.status_code == 422
    error = late.json()["errors"][0]
    assert (error["pointer"], error["code"], error["hint"]) == (
        "/model",
        "unknown_component",
        "did you mean 'toy/mlp'?",
    )
    assert set((await both.client.get("/components")).json()["models"]) == {"toy/mlp"}


@pytest.mark.own_statement
async def test_validation_names_the_node_that_would_run_the_job(both: Api) -> None:
    await a_node(both)

    result = (await both.client.post("/jobs/validate", json=SPEC)).json()["placement"]

    assert (result["waits"], result["node"]) == (False, "one")


async def test_a_node_is_listed_drained_and_returned_to_work(both: Api) -> None:
    node = await a_node(both)
    row = (await both.client.get("/nodes")).json()["data"][0]

    drained = await both.client.post(f"/nodes/{node}/drain")
    again = await both.client.post(f"/nodes/{node}/drain")
    back = await both.client.post(f"/nodes/{node}/drain", json={"drain": False})

    assert (row["name"], row["state"], row["slots"], row["slots_used"]) == ("one", "up", 2, 0)
    assert [answer.status_code for answer in (drained, again, back)] == [202] * 3
    assert [answer.json()["state"] for answer in (drained, again, back)] == ["draining", "draining", "up"]
    for missing in ("node_" + "2" * 32, "nonsense"):
        assert (await both.client.post(f"/nodes/{missing}/drain")).status_code == 404


@pytest.mark.own_statement
async def test_a_node_with_a_problem_gets_no_job_and_every_answer_names_the_problem(both: Api) -> None:
    why = "its packages cannot be imported: ImportError: torch is broken"
    await a_node(both, trouble=why)
    job = await both.submit()
    placed = await both.db.write(lambda conn: place_waiting(conn, now_ms()))

    row = (await both.client.get("/nodes")).json()["data"][0]
    waiting = (await both.client.get(f"/jobs/{job}")).json()
    ready = (await both.client.get("/readyz")).json()

    assert placed == []
    assert (row["state"], row["takes_work"], row["message"]) == ("waiting", False, why)
    assert (waiting["state"], waiting["reason"]) == ("queued", "capacity")
    assert why in waiting["message"]
    assert f"one: {why}" in ready["details"]["nodes"]

    await a_node(both, number=2)

    assert (await both.db.write(lambda conn: place_waiting(conn, now_ms()))) == [job]
    assert (await both.client.get("/nodes")).json()["data"][0]["message"] is None


async def test_readiness_names_a_node_that_takes_no_work(api: Api) -> None:
    await a_node(api)
    await a_node(api, node="node_" + "2" * 32, name="two", store_ok=False)

    result = await readiness.degraded(api.services, await api.db.read(nodes.all_nodes))

    assert result["nodes"] == "these nodes get no work: two: it cannot read the service's artifact store"


async def test_readiness_requires_sql_and_reports_the_rest_as_degraded(both: Api) -> None:
    ready = await both.client.get("/readyz")

    assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
    assert ready.json()["degraded"] == ["redis", "control", "nodes"]


async def test_each_degraded_dependency_is_described_in_a_sentence(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await a_node(api)
    await api.db.write(lambda conn: nodes.change(conn, node, lost=True))
    full = shutil._ntuple_diskusage(100 << 30, 100 << 30, 1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    late = {**Counts().numbers(), "ingest_lag_ms": 9_400}

    services = replace(api.services, control=partial(_counted, late))
    result = await readiness.degraded(services, await api.db.read(nodes.all_nodes))

    assert list(result) == ["redis", "ingest", "nodes", "silent_nodes", "disk"]
    assert re.search(r"since 20\d\d-", result["redis"])
    assert "9 s" in result["ingest"]
    assert "one (last report at 20" in result["silent_nodes"]


async def _counted(numbers: dict[str, int]) -> dict[str, int]:
    return numbers


async def test_an_unwritable_store_is_reported_as_degraded(api: Api, tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    settings = api.services.settings.model_copy(update={"artifacts": str(tmp_path / "a-file")})

    result = await readiness.degraded(replace(api.services, settings=settings), [])

    assert "cannot write to the artifact store" in result["artifacts"]


async def test_readyz_distinguishes_a_missing_control_from_an_unreachable_redis(api: Api, redis: RedisServer) -> None:
    without_redis = await readiness.degraded(api.services, [])
    notifier = RedisNotifier(redis.url)
    with_redis = await readiness.degraded(replace(api.services, notifier=notifier), [])
    await notifier.close()

    assert "is unknown" in without_redis["control"]
    assert "holds the lock" in with_redis["control"]


async def test_a_wrong_schema_is_not_ready(api: Api) -> None:
    older = schema.versions()[0]
    await api.db.write(lambda conn: conn.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{older}'"))

    ready = await api.client.get("/readyz")

    assert ready.status_code == 503
    assert "python -m service migrate" in ready.json()["details"]["database"]


async def test_metrics_for_prometheus_count_requests_jobs_and_nodes(both: Api) -> None:
    await both.submit()
    await a_node(both)

    text = (await both.client.get("/metrics")).text

    assert 'footplate_jobs{state="queued"} 1.0' in text
    assert 'footplate_jobs{state="running"} 0.0' in text
    assert 'footplate_jobs_waiting{reason="submitted"} 1.0' in text
    assert 'footplate_nodes{state="up"} 1.0' in text
    assert "footplate_slots 2.0" in text
    assert 'footplate_requests_total{method="POST",route="/jobs",status="201"} 1.0' in text


async def test_a_node_that_was_drained_and_stopped_does_not_count_as_lost(api: Api) -> None:
    node = await a_node(api)
    await api.db.write(lambda conn: nodes.change(conn, node, lost=True))
    assert 'footplate_nodes{state="lost"} 1.0' in (await api.client.get("/metrics")).text

    await api.db.write(lambda conn: nodes.change(conn, node, draining=True))

    assert 'footplate_nodes{state="lost"} 0.0' in (await api.client.get("/metrics")).text


@pytest.mark.own_statement
async def test_a_lost_node_can_be_removed_and_a_heartbeat_brings_it_back(both: Api) -> None:
    node = await a_node(both)
    row = (await both.client.get("/nodes")).json()["data"][0]
    too_early = await both.client.delete(f"/nodes/{node}")
    await both.submit()
    await both.db.write(lambda conn: place_waiting(conn, now_ms()))
    await both.db.write(lambda conn: nodes.change(conn, node, lost=True))
    refusal = await both.client.delete(f"/nodes/{node}")
    await both.db.write(lambda conn: conn.execute(update(sources).values(ended_at=now_ms())))
    lost_node = (await both.client.get("/nodes")).json()["data"][0]

    removed = await both.client.delete(f"/nodes/{node}")
    again = await both.client.delete(f"/nodes/{node}")

    assert [answer.status_code for answer in (too_early, refusal, removed, again)] == [409, 409, 204, 404]
    assert [answer.json()["code"] for answer in (too_early, refusal)] == ["node_in_use"] * 2
    assert (row["actions"], lost_node["actions"]) == (["drain"], ["remove"])
    assert (await both.client.get("/nodes")).json()["data"] == []
    assert 'footplate_nodes{state="lost"} 0.0' in (await both.client.get("/metrics")).text
    assert "silent_nodes" not in (await both.client.get("/readyz")).json()["degraded"]
    await a_node(both)
    assert (await both.client.get("/nodes")).json()["data"][0]["state"] == "up"


def test_metrics_of_control_are_in_the_format_of_prometheus() -> None:
    counts = Counts(attempts_lost=3, journal_depth=7, retries=Counter(node_lost=2, oom=1))

    text = Meters().render({}, {}, {}, 0, counts.numbers()).decode()

    assert "footplate_control_attempts_lost_total 3\n" in text
    assert "# TYPE footplate_control_journal_depth gauge\nfootplate_control_journal_depth 7\n" in text
    assert 'footplate_control_retries_total{reason="node_lost"} 2\n' in text
    assert text.count("# TYPE footplate_control_retries_total counter") == 1
    assert prometheus_name("retries") == "footplate_control_retries_total"


async def test_answers_fit_the_openapi_document(api: Api) -> None:
    await a_node(api)
    job = await api.submit(name="one", tags=["a"], metadata={"team": "vision"})
    await api.append(job, {"loss": 1.0})
    await api.end(job)
    body = (await api.client.get("/openapi.json")).json()
    of_a_job = ("", "/events", "/metrics", "/metrics/summary", "/metrics/series", "/logs", "/attempts", "/checkpoints",
                "/outputs")  # fmt: skip
    paths = [*(f"/jobs/{{job}}{part}" for part in of_a_job), "/jobs", "/queue", "/nodes", "/livez", "/readyz"]

    for path in paths:
        answer = await api.client.get(path.replace("{job}", job))
        content = body["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]
        described = {**content["schema"], "components": body["components"]}
        errors = jsonschema_rs.validator_for(described).iter_errors(answer.json())
        assert [str(error) for error in errors] == [], path
