"""Attempts that start from a checkpoint of another job, and checkpoints that are kept for other jobs."""

from __future__ import annotations

import mmap
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from footplate.components import toy
from footplate.contract.errors import AttemptError, DatasetError, NotBuildable, NoValidCheckpoint
from footplate.contract.host import launch
from footplate.contract.host.artifacts import AttemptFiles
from footplate.contract.host.file_roots import Roots
from footplate.contract.ids import new_checkpoint_id, new_job_id
from footplate.contract.messages import CheckpointOffer
from footplate.runtime.starting_point import KeepBest, StartingPoint, find_starting_point
from footplate.trainer import checkpoint as files
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.callbacks import TrainerCallback
from footplate.trainer.checkpoint import STATE, Verified
from footplate.trainer.named.named_optimizer import NamedOptimizer
from footplate.trainer.optimizers import AdamWScheduleFree, SGDScheduleFree
from footplate.trainer.state import TrainerControl, TrainerState
from footplate.trainer.strategies.peers import OneProcess
from footplate.trainer.trainer import Trainer
from tests.support.factories import make_spec
from tests.support.training import digest

OTHER = new_job_id()
CKPT = new_checkpoint_id()


class StartingNode:
    """A node with an artifact store, on which an attempt starts from these checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.artifacts, self.models = folder / "artifacts", folder / "models"
        self.notes: list[str] = []
        self.emit: Any = SimpleNamespace(note=lambda text, **more: self.notes.append(text))

    def save(self, step: int = 5) -> CheckpointOffer:
        """Saves a checkpoint of the other job."""
        parent = self.artifacts / "jobs" / OTHER / "attempts" / "1"
        checkpoint = files.commit(parent, step, lambda folder: (folder / "weights").touch(), {})
        path = str(checkpoint.path.relative_to(self.artifacts))
        return CheckpointOffer(id=CKPT, step=step, path=path, manifest_sha256=checkpoint.manifest_sha256, of=OTHER)

    def starting_point(
        self, *offers: CheckpointOffer, data: Any = "toy/regression", **resume_from: Any
    ) -> StartingPoint | None:
        order: Any = SimpleNamespace(
            checkpoints=list(offers), attempt=1, roots=Roots(self.models, self.models),
            files=AttemptFiles(self.artifacts, new_job_id(), 1),
        )  # fmt: skip
        return find_starting_point(make_spec(data=data, resume_from=resume_from), order, self.emit)


@pytest.fixture
def node(tmp_path: Path) -> StartingNode:
    (tmp_path / "models").mkdir()
    return StartingNode(tmp_path)


@pytest.mark.parametrize(
    ("options", "weights_only"),
    [({}, False), ({"mode": "weights"}, True), ({"data": {"eval": "toy/regression"}}, True)],
)
def test_an_attempt_starts_from_the_checkpoint_of_another_job(
    node: StartingNode, options: Any, weights_only: bool
) -> None:
    offer = node.save()

    result = node.starting_point(offer, job=OTHER, checkpoint=CKPT, **options)

    assert result == StartingPoint(str(node.artifacts / offer.path), weights_only)
    assert isinstance(result.folder, Verified)
    assert OTHER in node.notes[0]
    assert ("loads the weights" in node.notes[0]) is weights_only


def test_a_lost_or_broken_starting_checkpoint_ends_the_job_instead_of_a_new_start(node: StartingNode) -> None:
    offer = node.save()
    (node.artifacts / offer.path / "weights").write_text("…")
    with pytest.raises(NoValidCheckpoint, match=f"{OTHER} at step 5"):
        node.starting_point(offer, job=OTHER, checkpoint=CKPT)

    with pytest.raises(NoValidCheckpoint, match=f"{CKPT}.*is gone.*{OTHER}"):
        node.starting_point(job=OTHER, checkpoint=CKPT)


def test_a_jobs_own_checkpoint_takes_precedence_over_its_starting_checkpoint(node: StartingNode) -> None:
    own = node.save(7).model_copy(update={"of": None})

    result = node.starting_point(own, job=OTHER, checkpoint=CKPT, mode="weights")

    assert result == StartingPoint(str(node.artifacts / own.path), is_own=True)


def test_a_job_may_start_from_a_checkpoint_folder_under_models(node: StartingNode) -> None:
    folder = node.models / "run" / "checkpoint-500"
    folder.mkdir(parents=True)
    (folder / STATE).write_text("{}")

    assert node.starting_point(path="models://run/checkpoint-500") == StartingPoint(str(folder))
    assert node.starting_point(path="models://run/checkpoint-500", mode="weights") == StartingPoint(
        str(folder), weights_only=True
    )


@pytest.mark.parametrize(
    ("path", "error", "says"),
    [
        ("models://none", DatasetError, "is not on this node"),
        ("models://a-file", NotBuildable, "a checkpoint is a folder"),
        ("models://a-model", NotBuildable, "has no trainer_state.json"),
        ("models://half", AttemptError, "cannot be read"),
    ],
)
def test_a_folder_that_is_not_a_usable_checkpoint_is_refused_by_name(
    node: StartingNode, path: str, error: Any, says: str
) -> None:
    (node.models / "a-file").touch()
    (node.models / "a-model").mkdir()
    (node.models / "half").mkdir()
    (node.models / "half" / files.MANIFEST).write_text("{")

    with pytest.raises(error, match=says):
        node.starting_point(path=path)


def test_training_reads_the_checkpoint_steps_to_keep_from_shared_memory() -> None:
    page = mmap.mmap(-1, mmap.PAGESIZE)
    assert launch.steps_held(page) == set()

    launch.hold_steps(page, [30, 2**40, 10])
    assert launch.steps_held(page) == {10, 30, 2**40}

    launch.hold_steps(page, range(100))
    assert launch.steps_held(page) == set(range(36, 100))
    launch.hold_steps(page, [])
    assert launch.steps_held(page) == set()
    page[launch.HELD_FROM : launch.HELD_FROM + 8] = b"\xff" * 8
    assert len(launch.steps_held(page)) <= launch.MOST_HELD


def test_the_best_starting_checkpoint_is_kept_while_the_job_trains(node: StartingNode) -> None:
    best = node.artifacts / node.save().path
    own, late = (AttemptFiles(node.artifacts, new_job_id(), attempt) for attempt in (1, 2))
    node.emit.peers = OneProcess()
    looks, state = SimpleNamespace(load_best_model_at_end=True), TrainerState(best_model_checkpoint=str(best))
    KeepBest(own, node.emit).on_train_begin(looks, state, TrainerControl())
    late_state = TrainerState(best_model_checkpoint=str(best))
    shutil.rmtree(best)
    KeepBest(late, node.emit).on_train_begin(looks, late_state, TrainerControl())

    best_checkpoint = Path(str(state.best_model_checkpoint))
    assert best_checkpoint.is_relative_to(own.folder)
    assert (best_checkpoint / "weights").exists()
    assert late_state.best_model_checkpoint is None
    assert "the other job's best checkpoint, checkpoint-5, cannot be copied" in node.notes[-1]


class Average(TrainerCallback):
    """Records the averaged weights after step 4, and lets training go on from its own weights."""

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if state.global_step == 4:
            weights = {name: value.clone() for name, value in parts["model"].state_dict().items()}
            parts["optimizer"].eval()
            self.weights = digest(parts["model"].state_dict())
            parts["optimizer"].train()
            parts["model"].load_state_dict(weights)


@pytest.mark.parametrize("optim", ["schedule_free_adamw", "schedule_free_sgd"])
def test_weights_that_a_schedule_free_optimizer_trained_are_loaded_as_averages(tmp_path: Path, optim: Any) -> None:
    data, average, notes = toy.classification(n=64), Average(), list[str]()
    args = TrainingArguments(
        str(tmp_path), max_steps=6, save_steps=4, optim=optim, learning_rate=0.05, weight_decay=0.1,
        lr_scheduler_type="constant", disable_tqdm=True,
    )  # fmt: skip
    Trainer(toy.mlp(), args, train_dataset=data, callbacks=[average]).train()
    start = StartingPoint(str(tmp_path / "checkpoint-4"), weights_only=True)
    served = Trainer(toy.mlp(), TrainingArguments(str(tmp_path / "served")))
    by_script = Trainer(model_init=toy.mlp, args=TrainingArguments(str(tmp_path / "script")))

    start.load(served, notes.append)
    start.load(by_script, notes.append)

    assert digest(served.model.state_dict()) == average.weights
    assert digest(by_script.call_model_init().state_dict()) == average.weights
    assert notes == []


@pytest.mark.parametrize("why", ["named", "other parameters", "only the model", "sharded"])
def test_weights_that_cannot_be_averaged_are_loaded_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    rates = {"lr": 0.05}
    optim: Any = {} if why == "named" else {"optim": "schedule_free_adamw"}
    groups: Any = [
        NamedOptimizer("first", [r"^layers\.0"], use=AdamWScheduleFree, args=rates),
        NamedOptimizer("others", [r"^layers\.[1-9]"], use=SGDScheduleFree, args=rates),
    ]
    args = TrainingArguments(
        str(tmp_path), max_steps=2, save_steps=1, learning_rate=0.05, lr_scheduler_type="constant", disable_tqdm=True,
        save_only_model=why == "only the model", **optim,
    )  # fmt: skip
    trained = Trainer(toy.mlp(), args, train_dataset=toy.classification(n=64),
                      optimizers=groups if why == "named" else (None, None))  # fmt: skip
    trained.train()
    start, notes = StartingPoint(str(tmp_path / "checkpoint-1"), weights_only=True), list[str]()
    served = Trainer(toy.mlp(), TrainingArguments(str(tmp_path / "served")))
    if why == "sharded":
        monkeypatch.setattr(type(served._footplate.strategy), "holds_whole", False)
    if why == "other parameters":
        next(served.model.parameters()).requires_grad = False

    start.load(served, notes.append)

    assert len(notes) == 1
    assert "checkpoint-1 are those of a schedule-free training, not their average" in notes[0]
