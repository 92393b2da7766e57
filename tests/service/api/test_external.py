"""Tests runs on other machines that report by Kubeflow's protocol. The client is transformers' own callback."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from service.jobs.rescue import RescueEffects, Timers, rescue
from service.store.times import now_ms
from tests.service.api.conftest import KEY, Api, Serve
from tests.service.api.test_keys import a_key


def train(folder: Path) -> None:
    """Trains four steps with transformers' Trainer, which adds the callback by itself."""
    import torch
    from transformers import Trainer, TrainingArguments

    class Line(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(1, 1)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.line(x).square().mean()}

    rows = [{"x": torch.ones(1)}] * 8
    arguments = TrainingArguments(
        str(folder), max_steps=4, per_device_train_batch_size=1, logging_steps=2, eval_strategy="steps", eval_steps=4,
        prediction_loss_only=True, save_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    Trainer(Line(), arguments, train_dataset=rows, eval_dataset=rows[:2]).train()


async def report(api: Api, percent: float, run: str = "nightly", eta: int | None = None, **metrics: Any) -> Any:
    status: dict[str, Any] = {"progressPercentage": percent, "lastUpdatedTime": "2026-01-01T00:00:00+00:00"}
    if eta is not None:
        status["estimatedRemainingSeconds"] = eta
    status["metrics"] = [{"name": name, "value": str(value)} for name, value in metrics.items()]
    answer = await api.client.post(f"/external/{run}", json={"trainerStatus": status})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_the_kubeflow_callback_of_transformers_reports_an_external_run(
    serve: Serve, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = await serve(sqlite_url, api_key=KEY)
    from transformers.integrations.integration_utils import KubeflowCallback

    token = tmp_path / "token"
    token.write_text((await a_key(api, scopes=["submit"]))["key"])
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", f"{api.url}/external/nightly")
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_TOKEN", str(token))

    # The callback sends at most one report in five seconds, apart from the first and the last.
    monkeypatch.setattr(KubeflowCallback, "_MIN_UPDATE_INTERVAL", 0.0)

    await asyncio.to_thread(train, tmp_path / "out")

    (job,) = (await api.client.get("/jobs?project=vision")).json()["data"]
    events = (await api.client.get(f"/jobs/{job['id']}/events?project=vision")).json()["data"]
    assert (job["name"], job["state"], job["external"]) == ("nightly", "succeeded", True)
    assert job["progress"] == {"step": 4, "max_steps": 4, "epoch": 0.5, "eta_s": 0.0}
    assert {"loss", "eval_runtime", "train_loss"} <= set(job["metrics"])
    assert job["result"]["final"]["train_loss"] == job["metrics"]["train_loss"]
    steps = {kind: [event["step"] for event in events if event["kind"] == kind] for kind in ("log", "eval", "progress")}
    # The callback sends logged values with the report of the next step.
    assert steps == {"log": [3, 4], "eval": [4], "progress": [0, 1, 2, 3, 4, 4]}
    assert [event["no"] for event in events] == list(range(1, len(events) + 1))


async def test_a_report_adds_points_only_for_changed_values(both: Api) -> None:
    api = both
    await report(api, 0, total_steps=10)
    await report(api, 10, eta=90, loss=0.5, learning_rate=1e-3, current_step=1, total_steps=10, current_epoch=0.1)
    await report(api, 20, eta=80, loss=0.5, learning_rate=9e-4, current_step=2, total_steps=10, current_epoch=0.2)
    job = await report(api, 30, eta=70, loss="nan", learning_rate=9e-4, note="warm", current_step=3, total_steps=10)

    flat = (await api.client.get(f"/jobs/{job['id']}/metrics")).json()["data"]
    names = (await api.client.get(f"/jobs/{job['id']}/metrics/summary")).json()["data"]
    assert (job["state"], job["attempt"], job["node"], job["nodes"]) == ("running", 1, None, [])
    assert job["progress"] == {"step": 3, "max_steps": 10, "epoch": 0.2, "eta_s": 70.0}
    assert job["metrics"] == {"loss": "NaN", "learning_rate": 9e-4, "note": "warm"}
    assert [(row["step"], row.get("loss"), row.get("learning_rate")) for row in flat] == [
        (1, 0.5, 1e-3), (2, None, 9e-4), (3, "NaN", None),
    ]  # fmt: skip
    assert {name["name"]: name["count"] for name in names} == {"loss": 2, "learning_rate": 2}


async def test_the_number_of_steps_follows_from_the_percentage_if_it_is_not_reported(api: Api) -> None:
    job = await report(api, 40, current_step=400)

    assert (job["progress"]["step"], job["progress"]["max_steps"]) == (400, 1000)


@pytest.mark.parametrize(
    ("percent", "steps"),
    [(1e-320, {"current_step": 5}), (1e-10, {"current_step": 2**62}), (100, {"total_steps": 2**63 - 1})],
)
async def test_a_number_of_steps_beyond_64_bits_becomes_the_greatest_one(
    api: Api, percent: float, steps: dict[str, int]
) -> None:
    job = await report(api, percent, **steps)

    assert job["progress"]["max_steps"] == 2**63 - 1


async def test_an_external_run_refuses_all_actions_but_delete(api: Api) -> None:
    job = await report(api, 10)
    assert job["actions"] == ["delete"]
    for verb, body in (("pause", {}), ("cancel", {}), ("resume", {}), ("do", {"save": True})):
        answer = await api.client.post(f"/jobs/{job['id']}/{verb}", json=body)
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
        assert answer.json()["allowed"] == ["delete"]

    deleted = await api.client.delete(f"/jobs/{job['id']}")
    again = await report(api, 20)

    assert deleted.status_code == 204
    assert again["id"] != job["id"]


async def test_a_spec_cannot_declare_an_external_run(api: Api) -> None:
    answer = await api.client.post("/jobs", json={"external": {}})

    problems = {problem["pointer"]: problem for problem in answer.json()["errors"]}
    assert problems["/external"]["code"] == "unknown_field"
    assert "POST /external/{run}" in problems["/external"]["hint"]


async def test_a_silent_external_run_is_lost_and_a_later_report_makes_a_new_job(api: Api) -> None:
    settings, timers = api.services.settings, Timers()

    async def looked(clock: float) -> RescueEffects:
        return await api.db.write(lambda conn: rescue(conn, timers, clock, now_ms(), settings))

    job = await report(api, 10)
    await looked(0.0)
    assert not (await looked(settings.external_seconds)).jobs
    assert (await report(api, 20))["id"] == job["id"]
    assert not (await looked(settings.external_seconds + 1)).jobs
    assert (await looked(2 * settings.external_seconds + 2)).jobs == {job["id"]}

    lost_job = (await api.client.get(f"/jobs/{job['id']}")).json()
    assert (lost_job["state"], lost_job["reason"], lost_job["actions"]) == ("failed", "node_lost", ["delete"])
    assert "1800 s" in lost_job["error"]["message"]
    assert (await report(api, 30))["id"] != job["id"]


async def test_an_external_run_that_restarts_gets_a_new_job_and_ends_the_old_job(api: Api) -> None:
    first = await report(api, 10, current_step=1, total_steps=10)
    second = await report(api, 0, total_steps=10)
    again = await report(api, 0, total_steps=10)
    other = await report(api, 0, run="weekly")

    assert (await api.client.get(f"/jobs/{first['id']}")).json()["state"] == "failed"
    assert len({first["id"], second["id"], other["id"]}) == 3
    assert again["id"] == second["id"]


@pytest.mark.own_statement
async def test_a_repeated_last_report_returns_the_same_job(both: Api) -> None:
    await report(both, 0)
    ended_job = await report(both, 100, loss=0.1)
    again = await asyncio.gather(*(report(both, 100, loss=0.1) for _ in range(3)))

    assert again == [ended_job] * 3
    assert (await report(both, 0))["id"] != ended_job["id"]


@pytest.mark.parametrize("status", [None, {"progressPercentage": 101}, {"metrics": [{"name": "loss"}]}])
async def test_a_report_that_cannot_be_used_is_refused_and_makes_no_job(api: Api, status: Any) -> None:
    answer = await api.client.post("/external/nightly", json={"trainerStatus": status})

    assert answer.status_code == 422
    assert (await api.client.get("/jobs")).json()["data"] == []
