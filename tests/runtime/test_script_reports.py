"""An unchanged script reports what it trains and obeys the server, under transformers' Trainer and under ours."""

from __future__ import annotations

import errno
import json
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator

from footplate.contract.errors import NotBuildable
from footplate.contract.host.artifacts import STAGE
from footplate.contract.host.launch import COMMANDS_AT
from footplate.contract.ids import JobId, new_checkpoint_id
from footplate.contract.messages import CheckpointOffer, Command
from footplate.runtime import own_loop, script_reports
from footplate.runtime.script_reports import ScriptReports, ScriptStopped
from footplate.runtime.starting_point import StartingPoint
from footplate.trainer.checkpoint import Verified, verify
from tests.runtime.test_own_loop import Attempt

SCRIPT = """
import torch
from {library} import Trainer, TrainerCallback, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.drop = torch.nn.Linear(4, 1), torch.nn.Dropout(0.5)
    def forward(self, x, labels):
        return {{"loss": (self.drop(self.layer(x)) - labels).square().mean()}}

class Look(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        look(state.global_step)

def part(folder, steps):
    torch.manual_seed(0)
    rows = [dict(x=torch.randn(4), labels=torch.ones(1)) for _ in range(32)]
    args = TrainingArguments(folder, max_steps=steps, per_device_train_batch_size=4, logging_steps=1, save_steps=2,
                             eval_strategy="steps", eval_steps=4, learning_rate=0.1, report_to=[], use_cpu=True,
                             disable_tqdm=True, {more})
    trainer = Trainer(Model(), args, train_dataset=rows, eval_dataset=rows[:4], callbacks=[Look()])
    trainer.train()
    return trainer
"""
ONCE = SCRIPT + "\ntrainer = part('out', 8)\nweights = trainer.model.layer.weight.tolist()\n"
LONGER = ONCE.replace("8)", "10)")
TWICE = SCRIPT + "\npart('first', 4)\ntrainer = part('second', 6)\nweights = trainer.model.layer.weight.tolist()\n"
LIBRARIES = ["transformers", "footplate"]


class Scripts:
    """The attempts of one job that runs a script."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.attempts = folder, list[Attempt]()
        self.job: JobId | None = None
        self.offers: list[CheckpointOffer] = []
        self.events: list[dict[str, Any]] = []

    def run(
        self,
        script: str,
        library: str,
        look: Any = lambda step: None,
        more: str = "",
        start: StartingPoint | None = None,
        **order: Any,
    ) -> Any:
        """Runs one more attempt. Returns the script's weights, or the exception that ended it."""
        attempt = Attempt(self.folder, len(self.attempts) + 1, self.job)
        self.attempts.append(attempt)
        self.job = attempt.order.job
        attempt.order = attempt.order.model_copy(update={"checkpoints": self.offers, **order})
        own_loop._continue_in_a_copy(attempt.order)
        os.chdir(attempt.order.files.folder)
        names = {"look": look, "__name__": "__main__"}
        try:
            with ScriptReports(attempt.order, attempt.emit, start and (lambda: start)).installed():
                exec(compile(script.format(library=library, more=more), "train.py", "exec"), names)
            return names["weights"]
        except (ScriptStopped, KeyboardInterrupt) as error:
            return error
        finally:
            self.events = attempt.events()
            for event in self.of_kind("checkpoint"):
                data = event["data"]
                offer = {"id": new_checkpoint_id(), "path": data["path"], "manifest_sha256": data["manifest_sha256"]}
                self.offers.insert(0, CheckpointOffer(step=event["step"], **offer))

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]

    @property
    def attempt(self) -> Attempt:
        return self.attempts[-1]


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripts]:
    monkeypatch.chdir(tmp_path)
    new_scripts, environment = Scripts(tmp_path), dict(os.environ)
    yield new_scripts
    # transformers' arguments set environment variables, which the programs of later tests would inherit.
    os.environ.clear()
    os.environ.update(environment)
    for attempt in new_scripts.attempts:
        attempt.close()


@pytest.mark.parametrize("library", LIBRARIES)
def test_logs_evaluations_progress_and_checkpoints_of_a_script_become_events(scripts: Scripts, library: str) -> None:
    scripts.run(ONCE, library)

    assert [event["step"] for event in scripts.of_kind("log") if "loss" in event["data"]] == list(range(1, 9))
    assert [event["step"] for event in scripts.of_kind("eval")] == [4, 8]
    assert scripts.of_kind("progress")[-1]["data"]["step"] == 8
    assert scripts.of_kind("progress")[-1]["data"]["max_steps"] == 8
    checkpoints = scripts.of_kind("checkpoint")
    assert [event["step"] for event in checkpoints] == [2, 4, 6, 8]
    for event in checkpoints:
        verify(scripts.folder / event["data"]["path"], event["data"]["manifest_sha256"])


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_killed_script_continues_from_its_checkpoint_and_ends_with_equal_weights(
    scripts: Scripts, library: str, tmp_path: Path
) -> None:
    def dies(step: int) -> None:
        if step == 5:
            raise KeyboardInterrupt

    undisturbed = Scripts(tmp_path / "undisturbed")
    expected = undisturbed.run(ONCE, library)
    assert isinstance(scripts.run(ONCE, library, dies), KeyboardInterrupt)
    steps: list[int] = []
    weights = scripts.run(ONCE, library, steps.append)

    assert steps == [5, 6, 7, 8]
    assert weights == expected
    undisturbed.attempt.close()


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("weights_only", "expected"), [(False, [7, 8, 9, 10]), (True, list(range(1, 11)))])
def test_a_script_starts_from_a_checkpoint_of_another_job(
    scripts: Scripts, library: str, tmp_path: Path, weights_only: bool, expected: list[int]
) -> None:
    other = Scripts(tmp_path / "other")
    other_weights = other.run(ONCE, library)
    start = StartingPoint(Verified(tmp_path / "other" / other.offers[1].path), weights_only)
    first: list[Any] = []

    def sees(step: int) -> None:
        steps.append(step)
        if len(steps) == 3 and not first:
            first.append(step)
            raise KeyboardInterrupt

    steps: list[int] = []
    scripts.run(LONGER, library, sees, start=start)
    steps.append(0)
    weights = scripts.run(LONGER, library, sees, start=start)

    before, after = steps[: steps.index(0)], steps[steps.index(0) + 1 :]
    assert before == expected[:3]
    assert after == expected[2:], "the job continues from its own checkpoint if it has one"
    assert weights != other_weights
    other.attempt.close()


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_model_from_model_init_starts_with_the_weights_of_another_job(
    scripts: Scripts, library: str, tmp_path: Path
) -> None:
    other = Scripts(tmp_path / "other")
    other_weights = other.run(ONCE, library)
    start = StartingPoint(Verified(tmp_path / "other" / other.offers[0].path), weights_only=True)
    learns_nothing = ONCE.replace("Trainer(Model(), args", "Trainer(None, args, model_init=Model")
    learns_nothing = learns_nothing.replace("learning_rate=0.1", "learning_rate=0.0")
    steps: list[int] = []

    assert scripts.run(learns_nothing, library, steps.append, start=start) == other_weights
    assert steps == list(range(1, 9))
    other.attempt.close()


@pytest.mark.parametrize("library", LIBRARIES)
def test_weights_that_transformers_trainer_cannot_average_are_loaded_with_a_note(
    scripts: Scripts, library: str, tmp_path: Path
) -> None:
    optimizer = "from footplate.trainer.optimizers.schedule_free import AdamWScheduleFree\nmodel = Model()\n"
    averaging = ONCE.replace("    trainer = Trainer(Model(),", "    trainer = Trainer(model,")
    averaging = averaging.replace("def part", f"{optimizer}def part").replace(
        "callbacks=", "optimizers=(AdamWScheduleFree(model.parameters(), lr=0.1), None), callbacks="
    )
    other = Scripts(tmp_path / "other")
    other.run(averaging, library, more="lr_scheduler_type='constant'")
    notes = {}
    for offer in other.offers[:2]:
        start = StartingPoint(Verified(tmp_path / "other" / offer.path), weights_only=True)
        forks = Scripts(tmp_path / f"fork-{offer.step}")
        forks.run(ONCE, "transformers", start=start)
        notes[offer.step] = "".join(str(event["data"]) for event in forks.of_kind("note"))
        forks.attempt.close()
    other.attempt.close()

    marked = [step for step, text in notes.items() if "not their average, because transformers' own Trainer" in text]
    assert (list(notes), marked) == ([8, 6], [6]), "the evaluation at step 8 leaves the average in the model"


def test_starting_weights_are_refused_for_a_script_without_a_trainer(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, 1, None)
    reports = ScriptReports(attempt.order, attempt.emit, lambda: StartingPoint("anywhere"))

    with reports.installed(), pytest.raises(NotBuildable, match="no Trainer"):
        Accelerator(cpu=True).log({"loss": 1.0}, step=1)
    attempt.close()


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_paused_script_saves_ends_and_continues_at_the_next_step(scripts: Scripts, library: str) -> None:
    def pause(step: int) -> None:
        if step == 3:
            with mmap.mmap(scripts.attempt.stop_fd, mmap.PAGESIZE) as page:
                page[0] = 1

    assert isinstance(scripts.run(ONCE, library, pause), ScriptStopped)
    assert [event["step"] for event in scripts.of_kind("checkpoint")] == [2, 3]
    steps: list[int] = []
    scripts.run(ONCE, library, steps.append)

    assert steps == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("stop_at", [4, 8], ids=["within an epoch", "at its end"])
def test_a_paused_script_evaluates_each_epoch_once_and_at_its_end(
    tmp_path: Path, scripts: Scripts, library: str, stop_at: int
) -> None:
    """An epoch has 8 steps."""
    epochs = SCRIPT.replace('"steps", eval_steps=4', '"epoch", save_strategy="epoch"').replace("save_steps=2,", "")
    script = epochs + "\ntrainer = part('out', 16)\nweights = trainer.model.layer.weight.tolist()\n"
    undisturbed = Scripts(tmp_path / "undisturbed")
    expected = undisturbed.run(script, library)

    def pause(step: int) -> None:
        if step == stop_at:
            with mmap.mmap(scripts.attempt.stop_fd, mmap.PAGESIZE) as page:
                page[0] = 1

    scripts.run(script, library, pause)
    evaluated_steps = [event["step"] for event in scripts.of_kind("eval")]
    weights = scripts.run(script, library)
    evaluated_steps += [event["step"] for event in scripts.of_kind("eval")]

    assert evaluated_steps == [8, 16]
    assert weights == expected or library == "transformers"
    undisturbed.attempt.close()


@pytest.mark.parametrize("library", LIBRARIES)
def test_live_commands_reach_a_script(scripts: Scripts, library: str) -> None:
    def ask(step: int) -> None:
        if step == 3:
            wish = {"learning_rate": 0.01, "logging_steps": 2}
            line = Command(no=1, save=True, set=wish).model_dump_json().encode() + b"\n"
            os.pwrite(scripts.attempt.stop_fd, line, mmap.PAGESIZE)
            with mmap.mmap(scripts.attempt.stop_fd, mmap.PAGESIZE) as page:
                page[COMMANDS_AT] = len(line).to_bytes(8, "little")

    scripts.run(ONCE, library, ask)

    (report,) = scripts.of_kind("do")
    assert (report["step"], report["data"]["save"]) == (3, True)
    assert report["data"]["set"]["learning_rate"] == {"from": 0.1, "to": 0.01}
    assert 3 in [event["step"] for event in scripts.of_kind("checkpoint")]
    rates = {event["step"]: event["data"].get("learning_rate") for event in scripts.of_kind("log")}
    assert [step for step in rates if 3 < step < 8] == [4, 6]
    assert rates[6] < 0.01


def test_each_training_of_a_script_continues_from_its_own_checkpoint(scripts: Scripts) -> None:
    def dies(step: int) -> None:
        steps_before.append(step)
        if len(steps_before) == 4 + 3:
            raise KeyboardInterrupt

    # Most scripts for transformers log the metrics in this way.
    script = TWICE.replace("trainer.train()", "trainer.log_metrics('train', trainer.train().metrics)")
    steps_before: list[int] = []
    scripts.run(script, "transformers", dies)
    assert [event["step"] for event in scripts.of_kind("checkpoint")] == [2, 4, 6]
    steps: list[int] = []
    scripts.run(script, "transformers", steps.append)

    assert steps == [3, 4, 5, 6], "the first training had ended, and the second one continues after its step 2"
    assert [event["step"] for event in scripts.of_kind("log") if "loss" in event["data"]] == [7, 8, 9, 10]
    assert not list(scripts.attempt.order.files.folder.glob(f"checkpoint-2/{STAGE}")), "copies have no stage file"


def test_checkpoints_written_to_the_working_folder_are_reported(scripts: Scripts) -> None:
    script = ONCE.replace("'out'", "'.'")
    scripts.run(script, "transformers")

    assert len(scripts.of_kind("checkpoint")) == 4
    steps: list[int] = []
    scripts.run(script, "transformers", steps.append)
    assert steps == []


def test_save_total_limit_applies_to_the_checkpoints_that_a_script_reports(scripts: Scripts) -> None:
    scripts.run(ONCE, "transformers", more="save_total_limit=1")

    folders = sorted(path.parent.name for path in scripts.attempt.order.files.folder.glob(f"*/{STAGE}"))
    # The first checkpoint is kept until the service has stored a newer one.
    assert folders == ["checkpoint-2", "checkpoint-8"]
    deleted = [path for event in scripts.of_kind("checkpoint") for path in event["data"]["deleted"]]
    assert [path.rpartition("/")[2] for path in deleted] == ["checkpoint-4", "checkpoint-6"]


def test_a_script_may_write_its_checkpoints_to_another_file_system(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many scripts have an output_dir such as /tmp/out or /scratch/out, from where no hard link leads elsewhere."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", fail)
    monkeypatch.setattr(script_reports, "LINKED_FROM_BYTES", 1)
    scripts.run(ONCE, "footplate")

    assert [event["step"] for event in scripts.of_kind("checkpoint")] == [2, 4, 6, 8]
    for event in scripts.of_kind("checkpoint"):
        verify(scripts.folder / event["data"]["path"], event["data"]["manifest_sha256"])


BARE = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model, optimizer = accelerator.prepare(torch.nn.Linear(2, 1), torch.optim.SGD([torch.zeros(1)], lr=0.1))
for step in range(1, 5):
    look(step)
    accelerator.log({{"loss": 1.0 / step, "eval_loss": 2.0}}, step=step)
    accelerator.save_state("state")
weights = None
"""


def test_an_accelerate_loop_reports_through_its_tracker_and_stops_after_a_save(scripts: Scripts) -> None:
    def pause(step: int) -> None:
        if step == 3:
            with mmap.mmap(scripts.attempt.stop_fd, mmap.PAGESIZE) as page:
                page[0] = 1

    assert isinstance(scripts.run(BARE, "", pause), ScriptStopped)

    assert [(event["step"], event["data"]) for event in scripts.of_kind("log")] == [
        (1, {"loss": 1.0}),
        (2, {"loss": 0.5}),
        (3, {"loss": 1 / 3}),
    ]
    assert [event["data"] for event in scripts.of_kind("eval")] == [{"eval_loss": 2.0}] * 3
    saves = scripts.of_kind("checkpoint")
    assert [event["step"] for event in saves] == [1, 2, 3]
    # The second copy is gone, because the script has overwritten its folder. The first one stays until SQL has another.
    assert saves[2]["data"]["deleted"] == [saves[1]["data"]["path"]]
    for event in (saves[0], saves[2]):
        verify(scripts.folder / event["data"]["path"], event["data"]["manifest_sha256"])
        assert json.loads((scripts.folder / event["data"]["path"] / STAGE).read_text())["stage"] == 0


def test_a_copy_stays_as_long_as_the_folder_that_accelerate_has_written(scripts: Scripts) -> None:
    script = BARE.replace('"state"', 'f"state-{{step % 2}}"')
    scripts.run(script, "")

    folders = sorted(path.parent.name for path in scripts.attempt.order.files.folder.glob(f"*/{STAGE}"))
    assert folders == ["checkpoint-1", "checkpoint-3", "checkpoint-4"]
