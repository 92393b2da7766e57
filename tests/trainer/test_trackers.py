"""Tests logs to the real trackers. They write to local files, which the tests read."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from footplate.components import toy
from footplate.contract.errors import InvalidSpec
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.callbacks import TrainerCallback
from footplate.trainer.trackers import RunInfo, as_file_name, tracker
from footplate.trainer.trainer import Trainer, set_seed

CODECARBON = """
from pathlib import Path

class EmissionsTracker:
    def __init__(self, output_dir):
        self.file = Path(output_dir) / "emissions.txt"
    def start(self):
        self.file.parent.mkdir(exist_ok=True)
        self.file.write_text("started")
    def stop(self):
        self.file.write_text(self.file.read_text() + " stopped")
"""
"""A stand-in for codecarbon that records its start and stop in a file."""


def a_trainer(folder: Path, *callbacks: Any, **values: Any) -> Trainer:
    base = {
        "max_steps": 4,
        "logging_steps": 2,
        "eval_strategy": "steps",
        "save_strategy": "steps",
        "save_steps": 4,
        "disable_tqdm": True,
    }
    set_seed(1)
    return Trainer(
        toy.mlp(hidden=4),
        TrainingArguments(str(folder / "out"), **{**base, **values}),
        train_dataset=toy.regression(n=32),
        eval_dataset=toy.regression(n=8, seed=1),
        callbacks=list(callbacks),
    )


# TensorBoard


def test_a_resumed_run_continues_its_curve_in_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reports: dict[str, Any] = {"report_to": "tensorboard", "run_name": "mine", "logging_dir": str(tmp_path / "logs")}
    values = {**reports, "logging_steps": 1, "save_steps": 2, "eval_strategy": "no"}
    a_trainer(tmp_path, **values).train()
    again = a_trainer(tmp_path, **values)
    again.train(resume_from_checkpoint=tmp_path / "out" / "checkpoint-2")
    again.predict(toy.regression(n=8))
    again.end()

    events = EventAccumulator(str(tmp_path / "logs" / "mine"))
    events.Reload()
    assert [point.step for point in events.Scalars("train/loss")] == [1, 2, 3, 4]
    assert [point.step for point in events.Scalars("test/loss")] == [4]
    assert len(list((tmp_path / "logs" / "mine").glob("*/hparams.yml"))) == 1


@pytest.mark.parametrize("name", ["../../elsewhere", "/elsewhere", "..", "a/b"])
def test_a_run_name_cannot_leave_the_tensorboard_folder(tmp_path: Path, name: str) -> None:
    logs = tmp_path / "deep" / "down" / "logs"
    a_trainer(tmp_path, report_to="tensorboard", run_name=name, logging_dir=str(logs), max_steps=1).train()

    assert len(list(logs.glob("*/events*"))) == 1
    assert not list(tmp_path.rglob("elsewhere"))


# W&B, offline


@pytest.fixture
def wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import wandb

    values = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}
    cleared = ("WANDB_PROJECT", "WANDB_NAME", "WANDB_LOG_MODEL", "WANDB_WATCH")
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    for name in cleared:
        monkeypatch.delenv(name, raising=False)
    yield wandb
    wandb.finish()
    wandb.teardown()


def wandb_records(folder: Path) -> list[Any]:
    """Returns the records of the one run below the folder. W&B's files are logs in LevelDB's format."""
    import wandb
    from wandb.proto import wandb_internal_pb2

    wandb.finish()
    wandb.teardown()  # waits for the process that writes the file

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    content, at, records, whole = path.read_bytes(), 7, [], b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        whole, at = whole + content[at + 7 : at + 7 + size], at + 7 + size
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            records, whole = [*records, record], b""
    return records


def items(of: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in of}


class Mine(TrainerCallback):
    """Logs to W&B itself, as scripts do. W&B then counts a step for each of these logs."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        import wandb

        for _ in range(3):
            wandb.log({"mine": state.global_step})


def test_wandb_receives_all_logs_in_one_run(tmp_path: Path, wandb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "of-the-environment")
    monkeypatch.setenv("WANDB_LOG_MODEL", "checkpoint")
    trainer = a_trainer(tmp_path, Mine(), report_to="wandb", run_name="mine")

    trainer.train()
    trainer.evaluate()
    trainer.predict(toy.regression(n=8, seed=2))
    wandb.log({"after": 1})

    records = wandb_records(tmp_path)
    run = next(record.run for record in records if record.HasField("run"))
    assert (run.project, run.display_name) == ("of-the-environment", "mine")
    config = [item for record in records for item in (record.run.config.update, record.config.update)]
    assert {"learning_rate", "model/num_parameters"} <= {name for item in config for name in items(item)}
    messages = [items(record.history.item) for record in records if record.HasField("history")]
    at = [message["train/global_step"] for message in messages if "train/loss" in message]
    assert at == [2, 4], "W&B drops logs whose step is lower than its own count"
    assert sum("eval/loss" in message for message in messages) == 3
    assert sum("test/loss" in message for message in messages) == 1
    assert any("after" in message for message in messages)
    summary = {name for record in records if record.HasField("summary") for name in items(record.summary.update)}
    assert "train_runtime" in summary
    artifacts = [record.request.log_artifact.artifact for record in records if record.request.HasField("log_artifact")]
    artifacts += [record.artifact for record in records if record.HasField("artifact")]
    first, last = ({*artifact.aliases} - {"latest"} for artifact in artifacts)
    assert (first, last) == ({"epoch_1.0", "checkpoint_global_step_4"}, {"final_model"})


def test_a_wandb_run_opened_by_the_script_is_used_and_left_open(tmp_path: Path, wandb: Any) -> None:
    theirs = wandb.init(project="theirs")

    a_trainer(tmp_path, report_to="wandb").train()

    assert wandb.run is theirs
    assert any("train/loss" in items(record.history.item) for record in wandb_records(tmp_path))


# MLflow, to a local store


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "mlruns"))
    for name in ("NAME", "ID"):
        # MLflow sets these variables itself, so they must be deleted after the test.
        monkeypatch.setenv(f"MLFLOW_EXPERIMENT_{name}", "")
        monkeypatch.delenv(f"MLFLOW_EXPERIMENT_{name}")
    import mlflow
    from mlflow.tracking import fluent

    monkeypatch.setattr(fluent, "_active_experiment_id", None)
    yield mlflow
    mlflow.end_run()


def history(mlflow: Any, run: Any, name: str) -> list[tuple[int, float]]:
    """Returns the points sorted by step, because the store does not keep the order within one millisecond."""
    points = mlflow.MlflowClient().get_metric_history(run.info.run_id, name)
    return [(item.step, item.value) for item in sorted(points, key=lambda point: point.step)]


def test_mlflow_receives_all_logs_in_one_run(tmp_path: Path, mlflow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_MLFLOW_LOG_ARTIFACTS", "1")
    trainer = a_trainer(tmp_path, report_to="mlflow", project="mine", run_name="one")

    trainer.train()
    assert mlflow.active_run() is None
    trainer.evaluate()
    mlflow.end_run()

    (run,) = mlflow.search_runs(experiment_names=["mine"], output_format="list")
    assert (run.info.run_name, run.info.status) == ("one", "FINISHED")
    assert run.data.params["learning_rate"] == "5e-05"
    logged = [(row["step"], row["loss"]) for row in trainer.state.log_history if "loss" in row]
    assert history(mlflow, run, "loss") == logged
    assert [step for step, _ in history(mlflow, run, "eval_loss")] == [2, 4, 4]
    assert [artifact.path for artifact in mlflow.MlflowClient().list_artifacts(run.info.run_id)] == ["checkpoint-4"]


def test_mlflow_accepts_a_librarys_own_arguments(tmp_path: Path, mlflow: Any) -> None:
    """SetFit's arguments are not a subclass of ours, but read missing attributes from ours."""

    class LibraryArguments:
        def __getattr__(self, name: str) -> Any:
            return getattr(arguments, name)

    arguments = TrainingArguments(str(tmp_path))
    tracker("mlflow", RunInfo(LibraryArguments(), toy.mlp(hidden=4), "one", None, tmp_path, 1)).start()

    assert mlflow.active_run().info.experiment_id == "0"


def test_an_mlflow_run_opened_by_the_script_is_used_and_left_open(tmp_path: Path, mlflow: Any) -> None:
    mlflow.set_experiment("theirs")
    with mlflow.start_run() as theirs:
        a_trainer(tmp_path, report_to="mlflow", project="not this").train()
        assert mlflow.active_run().info.run_id == theirs.info.run_id
        mlflow.flush_async_logging()

    assert [step for step, _ in history(mlflow, theirs, "loss")] == [2, 4]
    assert [experiment.name for experiment in mlflow.search_experiments()] == ["theirs", "Default"]


# trackio, to a local folder


@pytest.fixture(scope="module")
def trackio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yields trackio, which reads its folder once per process, when it is imported."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("trackio")
        patch.setenv("TRACKIO_DIR", str(folder))
        import trackio

        assert Path(trackio.TRACKIO_DIR) == folder
        yield trackio


def trackio_metrics(trackio: Any, project: str) -> list[tuple[str, str, int, dict[str, Any]]]:
    with sqlite3.connect(Path(trackio.TRACKIO_DIR) / f"{project}.db") as database:
        rows = database.execute("select run_id, run_name, step, metrics from metrics order by id")
        return [(run, name, step, json.loads(report)) for run, name, step, report in rows]


def test_trackio_receives_all_logs_in_one_run(tmp_path: Path, trackio: Any) -> None:
    trainer = a_trainer(tmp_path, report_to="trackio", project="mine", run_name="one")

    trainer.train()
    trainer.evaluate()
    trainer.end()

    metrics = trackio_metrics(trackio, "mine")
    assert len({run for run, *_ in metrics}) == 1
    assert {name for _, name, *_ in metrics} == {"one"}
    assert [step for _, _, step, item in metrics if "train/loss" in item] == [2, 4]
    assert [step for _, _, step, item in metrics if "eval/loss" in item] == [2, 4, 4]


class Spaces:
    """Records the requests that trackio would send to Hugging Face Spaces, and runs trackio locally."""

    def __init__(self, trackio: Any, patch: pytest.MonkeyPatch) -> None:
        from trackio import context_vars

        self.calls: list[tuple[str, dict[str, Any]]] = []
        real, space = trackio.init, context_vars.current_space_id

        def init(**how: Any) -> Any:
            self.calls.append(("init", how))
            run = real(**{**how, "space_id": None, "bucket_id": None})
            space.set(how["space_id"])
            return run

        patch.setattr(trackio, "init", init)
        for name in ("freeze", "sync"):
            patch.setattr(trackio, name, lambda name=name, **how: self.calls.append((name, how)))


def test_trackio_arguments_set_the_space_and_its_static_copy(
    tmp_path: Path, trackio: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spaces = Spaces(trackio, monkeypatch)
    live = {"trackio_space_id": "me/live", "trackio_bucket_id": "me/bucket", "trackio_static_space_id": "me/still"}

    a_trainer(tmp_path, report_to="trackio", project="live", **live).train()
    pushed = a_trainer(tmp_path, report_to="trackio", project="local", trackio_static_space_id="me/page")
    pushed.train()
    pushed.callback_handler.on_push_begin(pushed.args, pushed.state, pushed.control)
    a_trainer(tmp_path, report_to="trackio", **{**live, "trackio_static_space_id": False}).train()

    (_, opened), (froze, frozen), (_, local), (synced, page), (_, last) = spaces.calls
    assert (opened["space_id"], opened["bucket_id"]) == ("me/live", "me/bucket")
    assert (froze, frozen["space_id"], frozen["new_space_id"]) == ("freeze", "me/live", "me/still")
    assert local["space_id"] is None
    assert (synced, page["space_id"], page["sdk"]) == ("sync", "me/page", "static")
    assert last["space_id"] == "me/live"


def test_an_argument_of_trackio_without_trackio_is_refused() -> None:
    from tests.support.factories import read_arguments

    message = "trackio_space_id is an option of trackio, but report_to does not name trackio"
    with pytest.raises(ValueError, match=message):
        TrainingArguments("out", trackio_space_id="me/live")
    with pytest.raises(InvalidSpec):
        read_arguments({"trackio_bucket_id": "me/bucket"})
    TrainingArguments("out", trackio_static_space_id=False)


def test_a_tracker_that_is_not_installed_is_refused_with_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from footplate.trainer import tracker_callbacks

    monkeypatch.setattr("accelerate.tracking.get_available_trackers", lambda: [])

    with pytest.raises(ImportError, match=r"pip install 'footplate\[wandb\]'"):
        tracker_callbacks.chosen(["wandb"])


@pytest.mark.parametrize("name", ["azure_ml", "codecarbon", "dagshub", "flyte", "neptune"])
def test_a_reporter_of_transformers_that_is_not_installed_names_its_package(tmp_path: Path, name: str) -> None:
    with pytest.raises((ImportError, RuntimeError, ValueError), match=r"pip install"):
        a_trainer(tmp_path, report_to=[name])


def test_a_reporter_of_transformers_follows_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "codecarbon.py").write_text(CODECARBON)
    monkeypatch.syspath_prepend(tmp_path)

    a_trainer(tmp_path, report_to=["codecarbon"]).train()

    assert (tmp_path / "out" / "emissions.txt").read_text() == "started stopped"


def test_a_failed_run_closes_its_tracker_and_later_logs_reopen_it(tmp_path: Path, mlflow: Any) -> None:
    class Break(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 2:
                raise RuntimeError("broken")

    trainer = a_trainer(tmp_path, Break(), report_to="mlflow", logging_steps=1, project="fails")
    with pytest.raises(RuntimeError, match="broken"):
        trainer.train()
    assert mlflow.active_run() is None
    trainer.evaluate()
    trainer.end()

    (run,) = mlflow.search_runs(experiment_names=["fails"], output_format="list")
    assert [step for step, _ in history(mlflow, run, "loss")] == [1]
    assert [step for step, _ in history(mlflow, run, "eval_loss")] == [1, 2]


def test_a_tracker_that_cannot_open_is_not_closed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(OSError, match="file") as error:
        a_trainer(tmp_path, report_to="tensorboard", logging_dir=str(tmp_path / "file")).train()

    assert not getattr(error.value, "__notes__", [])


@pytest.mark.parametrize(
    ("name", "folder"), [("/etc/x", "_etc_x"), ("../../x", "_.._x"), ("..", "run"), ("a b", "a_b")]
)
def test_a_run_name_cannot_leave_the_folder_of_a_tracker(name: str, folder: str) -> None:
    assert as_file_name(name) == folder
