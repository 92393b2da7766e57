"""Attempts from their start message to their `done`, through real processes, on one node with two slots."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from footplate.contract import redis_keys
from footplate.contract.components import Catalogue
from footplate.contract.ids import new_job_id
from footplate.contract.messages import Command
from tests.support.processes import children, is_alive, until
from tests.worker.conftest import Lasting, NodeStarter
from tests.worker.fake_control import FakeControl, offer_of
from worker.attempt.journal_lines import seal

SLOW = {"use": "toy/regression", "args": {"seconds_per_item": 0.003}}
ENDLESS = {"max_steps": 100_000, "logging_steps": 1, "save_strategy": "no", "per_device_train_batch_size": 4}


@pytest.fixture(scope="module")
def lasting(make_lasting: Callable[..., Lasting]) -> Lasting:
    return make_lasting(slots=2)


def misbehaving(do: str, **args: Any) -> dict[str, Any]:
    return {
        "model": "test/linear",
        "data": {"use": "test/data", "args": {"at": 9, "do": do, "n": 64, **args}},
        "training": {"max_steps": 8, "save_strategy": "no"},
    }


def training_process(lasting: Lasting, job: str) -> int:
    """Waits for a process whose working folder is the job's folder, and returns its pid."""
    folder = str(lasting.start.artifacts / "jobs" / job)

    def pids() -> list[int]:
        return [pid for pid in children(lasting.process.pid) if os.readlink(f"/proc/{pid}/cwd").startswith(folder)]

    return until(pids, within=30, what=f"a process trains {job}")[0]


def test_a_job_trains_and_reports_its_events(lasting: Lasting) -> None:
    job = lasting.submit(training={"max_steps": 20, "logging_steps": 5})

    outcome = lasting.control.done(job, within=60)
    events = lasting.control.of(job)
    assert (outcome["ending"], outcome["reason"], outcome["error"]) == ("finished", "completed", None)
    assert outcome["result"]["steps"] == 20
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    # Usage of the system is reported on its own schedule, on a busy machine even before training begins.
    assert next(event for event in events if event["kind"] != "system")["data"] == {"state": "running"}
    assert [event["step"] for event in events if "loss" in event["data"]] == [5, 10, 15, 20]
    assert [event["data"]["step"] for event in events if event["kind"] == "progress"][-1] == 20
    outputs = lasting.start.artifacts / outcome["outputs"]
    assert {"model.safetensors", "metrics.json", "spec.json"} <= {path.name for path in outputs.iterdir()}
    until(lambda: not list(lasting.start.journals.iterdir()), what="the acknowledged journal is gone")


def test_evaluations_and_checkpoints_are_reported(lasting: Lasting) -> None:
    job = lasting.submit(
        data={"train": "toy/classification", "eval": {"use": "toy/classification", "args": {"n": 64, "seed": 1}}},
        metrics=["accuracy"],
        training={"max_steps": 8, "eval_strategy": "steps", "eval_steps": 4, "save_steps": 2, "save_total_limit": 1,
                  "load_best_model_at_end": False},
    )  # fmt: skip

    outcome = lasting.control.done(job)
    evals, checkpoints = lasting.control.of(job, "eval"), lasting.control.of(job, "checkpoint")
    assert [event["step"] for event in evals] == [4, 8]
    assert {"eval_loss", "eval_accuracy"} <= set(evals[0]["data"])
    assert [event["step"] for event in checkpoints] == [2, 4, 6, 8]
    folders = {event["data"]["path"] for event in checkpoints}
    deleted = {path for event in checkpoints for path in event["data"]["deleted"]}
    assert {path for path in folders if not (lasting.start.artifacts / path).exists()} == deleted
    # Kept are the newest checkpoint, and the one that was in SQL when the newest was saved.
    assert len(folders - deleted) == 2
    assert outcome["had_checkpoint"] is True
    folder = lasting.start.artifacts / checkpoints[-1]["data"]["path"]
    assert json.loads((folder / "manifest.json").read_text())["stamp"] == {"job": job, "attempt": 1, "fence": 1}


def test_the_best_model_is_evaluated_on_the_split_after_training(lasting: Lasting) -> None:
    job = lasting.submit(
        data={"train": "toy/classification", "split": {"test_size": 0.25, "seed": 7}},
        training={"max_steps": 6, "eval_strategy": "steps", "eval_steps": 2, "save_steps": 2, "learning_rate": 0.5,
                  "load_best_model_at_end": True, "logging_steps": 1},
        final_eval="best",
    )  # fmt: skip

    outcome = lasting.control.done(job)

    assert outcome["error"] is None
    losses = {event["data"]["eval_loss"] for event in lasting.control.of(job, "eval")}
    assert len(lasting.control.of(job, "eval")) == 4
    assert outcome["result"]["final"]["eval_loss"] == outcome["result"]["best"]["value"] == min(losses)


@pytest.mark.parametrize("because", ["cancel", "pause", "drain"])
def test_a_stop_saves_a_checkpoint_and_reports_its_cause(lasting: Lasting, because: str) -> None:
    job = lasting.submit(data=SLOW, training=ENDLESS)
    lasting.control.await_kind(job, "log")

    lasting.control.stop(job, because)

    end = lasting.control.done(job)
    assert (end["ending"], end["stop"], end["reason"], end["error"]) == ("stopped", because, because, None)
    checkpoints = lasting.control.of(job, "checkpoint")
    assert [event["data"]["status"] for event in checkpoints] == ["committed"]
    assert checkpoints[0]["step"] == end["result"]["steps"]


def test_a_command_sent_100_times_is_done_once_and_applies_to_later_attempts(lasting: Lasting) -> None:
    job = lasting.submit(data=SLOW, training=ENDLESS)
    lasting.control.await_kind(job, "log")

    lasting.control.ask(job, Command(no=7, save=True, set={"max_steps": 90_000}), times=100)
    report = lasting.control.await_kind(job, "do")
    checkpoint = lasting.control.await_kind(job, "checkpoint")
    [claim] = [entry.claim for (item, _), entry in lasting.control.granted.items() if item == job]
    until(lambda: lasting.control.beats[claim].last_command == 7, what="training has confirmed the command")
    lasting.control.stop(job, "pause", "graceful")
    lasting.control.done(job)
    lasting.control.stops.clear()

    assert (report["step"], report["data"]["asked"], report["data"]["save"]) == (checkpoint["step"], 7, True)
    assert len(lasting.control.of(job, "do")) == len(lasting.control.of(job, "checkpoint")) == 1
    command = Command(no=7, set={"max_steps": checkpoint["step"] + 3}, step=report["step"])
    lasting.submit(job=job, attempt=2, checkpoints=[offer_of(checkpoint)], data=SLOW, training=ENDLESS,
                   commands=[command.model_dump()])  # fmt: skip
    assert lasting.control.done(job, attempt=2)["result"]["steps"] == checkpoint["step"] + 3


def test_a_time_limit_excludes_the_start_and_saves_before_the_job_fails(lasting: Lasting) -> None:
    """The start does not count towards the limit, here as in control."""
    job = lasting.submit(data=SLOW, training=ENDLESS, time_left_seconds=0.5, resources={"time_limit": "1s"})

    outcome = lasting.control.done(job)
    running, last = lasting.control.of(job, "state")[0], lasting.control.of(job, "done")[0]
    seconds = (datetime.fromisoformat(last["at"]) - datetime.fromisoformat(running["at"])).total_seconds()
    assert 0.5 <= outcome["running_s"] <= seconds + 0.1
    assert (outcome["ending"], outcome["reason"], outcome["error"]["code"]) == ("failed", "time_limit", "time_limit")
    assert len(lasting.control.of(job, "checkpoint")) == 1


def test_a_kill_ends_training_at_once(lasting: Lasting) -> None:
    job = lasting.submit(**misbehaving("hang"))
    pid = training_process(lasting, job)
    lasting.control.await_kind(job, "state")

    lasting.control.stop(job, "cancel", "kill")

    # A graceful stop could take a minute.
    outcome = lasting.control.done(job, within=20)
    assert (outcome["ending"], outcome["stop"]) == ("stopped", "cancel")
    assert not is_alive(pid)


@pytest.mark.parametrize(
    ("do", "reason", "code", "says"),
    [
        ("raise", "error", "error", "ValueError: a bad sample"),
        ("segfault", "crashed", "sigsegv", "SIGSEGV"),
    ],
)
def test_a_failure_has_its_reason_and_its_traceback(
    lasting: Lasting, do: str, reason: str, code: str, says: str
) -> None:
    job = lasting.submit(**misbehaving(do))

    outcome = lasting.control.done(job)
    assert (outcome["ending"], outcome["reason"], outcome["error"]["code"]) == ("failed", reason, code)
    assert says in outcome["error"]["message"]
    if do == "segfault":
        assert "Segmentation fault" in outcome["error"]["traceback"]
    if do == "raise":
        assert "in _raise" in outcome["error"]["traceback"]


def test_a_component_that_cannot_be_built_is_reported_with_the_reason(lasting: Lasting) -> None:
    unknown = lasting.submit(model="toy/mpl")
    broken = lasting.submit(model="test/broken")
    missing = lasting.submit(data={"use": "files/jsonl", "args": {"paths": ["data://nowhere.jsonl"]}})

    error = lasting.control.done(unknown)["error"]
    assert lasting.control.done(unknown)["reason"] == "not_buildable"
    assert "toy/mlp" in error["hint"]
    assert "this model has no layers" in lasting.control.done(broken)["error"]["message"]
    assert lasting.control.done(missing)["reason"] == "dataset_error"
    assert "data://nowhere.jsonl" in lasting.control.done(missing)["error"]["message"]


def test_a_spec_that_the_node_does_not_accept_fails_before_training(lasting: Lasting) -> None:
    job = lasting.submit(spec={"model": "toy/mlp", "unheard_of": 1})

    outcome = lasting.control.done(job)
    assert (outcome["reason"], outcome["error"]["code"]) == ("not_buildable", "invalid_spec")
    assert [event["kind"] for event in lasting.control.of(job)] == ["done"]


def test_training_sees_no_variable_and_no_file_of_its_node(lasting: Lasting) -> None:
    job = lasting.submit(**misbehaving("print_secrets"), gpus=["GPU-a"])

    lasting.control.done(job)
    reports = {line["data"]["text"].partition(" ")[0]: line["data"] for line in lasting.control.of(job, "line")}
    assert "SECRET_KEY" not in reports["environment"]["text"]
    assert "FOOTPLATE" not in reports["environment"]["text"]
    assert reports["visible"]["text"] == "visible GPU-a"
    assert reports["folder"]["text"].endswith(f"jobs/{job}/attempts/1")
    assert reports["telemetry"]["text"] == "telemetry off"
    assert "node-1" not in reports["open"]["text"]
    assert reports["open"]["text"].count("socket") == 1
    assert (reports["héllo"]["stream"], reports["héllo"]["text"]) == ("stderr", "héllo \ufffd wörld")


def test_evaluation_data_without_a_schedule_is_evaluated_once_at_the_end(lasting: Lasting) -> None:
    data = {"train": "toy/regression", "eval": {"use": "toy/regression", "args": {"n": 32}}}
    job = lasting.submit(data=data, metrics=["mse"], training={"max_steps": 3, "do_eval": True})

    outcome = lasting.control.done(job)
    assert [event["step"] for event in lasting.control.of(job, "eval")] == [3]
    assert {"eval_loss", "eval_mse"} <= set(outcome["result"]["final"])


def test_a_node_announces_its_components(lasting: Lasting) -> None:
    beat = until(
        lambda: (item := lasting.control.nodes[lasting.node.node]).catalogue_hash and item.consuming and item,
        within=30,
        what="the catalogue is made, and start messages are received",
    )
    assert (beat.slots, beat.store_ok, beat.consuming, beat.draining) == (2, True, True, False)
    assert {"footplate", "torch", "accelerate", "python"} <= set(beat.versions)
    catalogue = Catalogue.model_validate(lasting.control.catalogues[beat.catalogue_hash])
    mlp = catalogue.get("models", "toy/mlp")
    assert mlp is not None
    hidden = {"type": "integer", "minimum": 1, "default": 64, "description": "Width of the hidden layers"}
    assert mlp.args["properties"]["hidden"] == hidden
    assert catalogue.hash == beat.catalogue_hash
    assert catalogue.get("models", "test/linear") is not None
    assert "accuracy" in catalogue.known("metrics")


def test_a_note_from_any_code_of_the_user_becomes_an_event(lasting: Lasting) -> None:
    job = lasting.submit(**misbehaving("note", marker="here"))
    lasting.control.done(job)

    notes = [event["data"]["message"] for event in lasting.control.of(job) if event["kind"] == "note"]
    assert "a bad sample at here" in notes
    assert "x" * 4000 + "… (3,000,000 characters)" in notes


def test_invalid_messages_on_the_socket_of_users_code_are_ignored(lasting: Lasting) -> None:
    outcome = lasting.control.done(lasting.submit(**misbehaving("write_invalid_lines")))

    assert outcome["ending"] == "finished"


def test_an_invalid_watermark_in_redis_does_not_stop_the_events_of_an_attempt(lasting: Lasting) -> None:
    job = new_job_id()
    lasting.control.client.set(redis_keys.watermark(job, 1, 0), "nonsense")
    lasting.submit(job=job, training={"max_steps": 3, "save_strategy": "no"})

    assert lasting.control.done(job)["ending"] == "finished"


def test_an_unreadable_journal_does_not_stop_the_heartbeats_of_a_node(
    start_node: NodeStarter, control: FakeControl
) -> None:
    start_node.journals.mkdir(parents=True)
    journal = start_node.journals / "x.journal"
    journal.write_bytes(seal(b'{"job":"job_1","attempt":1,"fence":1,"claim":"c","from_the_future":1}'))

    start_node()

    assert control.node().unreadable == 1
    assert not journal.exists()


def test_rotation_keeps_the_newest_checkpoint_that_was_acknowledged(lasting: Lasting) -> None:
    """Otherwise a job could not continue after its node died with unreported checkpoints."""
    control, root = lasting.control, lasting.start.artifacts
    rotating = {**ENDLESS, "save_strategy": "steps", "save_steps": 5, "save_total_limit": 1}
    job = lasting.submit(data=SLOW, training=rotating)
    control.await_kind(job, "checkpoint", 3)

    def saved_steps() -> list[int]:
        return sorted(int(path.name.partition("-")[2]) for path in root.glob(f"jobs/{job}/attempts/1/checkpoint-*"))

    control.pauses.set()
    try:
        names = control.of(job, "checkpoint")[-1]
        until(lambda: saved_steps()[-1] >= names["step"] + 30, within=20, what="training saves while control is paused")
        names = control.of(job, "checkpoint")[-1]
        steps, is_there = saved_steps(), (root / names["data"]["path"] / "manifest.json").exists()
    finally:
        control.pauses.clear()
        control.stop(job, "cancel", mode="kill")
    assert is_there
    assert len(steps) <= 3
    assert control.done(job)["ending"] == "stopped"


def test_an_acknowledgement_alone_deletes_no_checkpoint(lasting: Lasting) -> None:
    """Events of a superseded attempt are acknowledged too, and the next attempt may need the checkpoint."""
    control, root = lasting.control, lasting.start.artifacts
    rotating = {**ENDLESS, "save_strategy": "steps", "save_steps": 5, "save_total_limit": 1}
    job = lasting.submit(data=SLOW, training=rotating)
    control.await_kind(job, "checkpoint", 3)

    control.commits_checkpoints = False
    try:
        paths = [event["data"]["path"] for event in control.of(job, "checkpoint")]
        control.await_kind(job, "checkpoint", len(paths) + 6)
        is_there = any((root / path / "manifest.json").exists() for path in paths)
    finally:
        control.commits_checkpoints = True
        control.stop(job, "cancel", mode="kill")
    assert is_there
    assert control.done(job)["ending"] == "stopped"


def test_a_node_without_room_for_temporary_files_reports_it(
    start_node: NodeStarter, control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as root:
        temporary = Path(root, "t")
        temporary.mkdir()
        monkeypatch.setenv("TMPDIR", str(temporary))
        start_node()
        node = control.node()
        shutil.rmtree(temporary)
        temporary.touch()  # A file in its place refuses new folders, as a full disk does.

        outcome = control.done(control.submit(node), within=60)

        assert outcome["reason"] == "crashed"
        assert str(temporary) in outcome["error"]["message"]
