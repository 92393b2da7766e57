"""Tests that a checkpoint is complete or absent, and that later damage is detected."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from footplate.components import toy
from footplate.contract.errors import CheckpointCorrupt
from footplate.trainer import checkpoint as files
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.internals import SaveFailed
from footplate.trainer.trainer import Trainer
from tests.support.training import Events, digest


def a_trainer(
    folder: Path, callbacks: list[Any] | None = None, model: nn.Module | None = None, **values: Any
) -> Trainer:
    compute_metrics = values.pop("compute_metrics", None)
    args = TrainingArguments(str(folder), **{"max_steps": 4, "save_steps": 2, "disable_tqdm": True, **values})
    return Trainer(
        model or toy.mlp(),
        args,
        train_dataset=toy.regression(n=64),
        eval_dataset=toy.regression(n=16, seed=1),
        callbacks=callbacks,
        compute_metrics=compute_metrics,
    )


@pytest.fixture
def two_checkpoints(tmp_path: Path) -> Path:
    a_trainer(tmp_path).train()
    return tmp_path


def test_a_checkpoint_is_announced_once_it_is_committed(tmp_path: Path) -> None:
    events = Events()
    trainer = a_trainer(tmp_path, [events], hub_token="secret")
    trainer._footplate.hooks.stamp = {"job": "job_1", "attempt": 2, "fence": 9}

    trainer.train()

    first = events.checkpoints[0]
    assert (first.path, first.step) == (tmp_path / "checkpoint-2", 2)
    manifest = files.verify(first.path)
    assert manifest["stamp"] == {"job": "job_1", "attempt": 2, "fence": 9}
    assert first.bytes == sum(path.stat().st_size for path in first.path.iterdir())
    assert set(manifest["files"]) == {
        "model.safetensors",
        "optimizer.pt",
        "scheduler.pt",
        "rng_state.pth",
        "trainer_state.json",
        "training_args.bin",
        "training_args.json",
    }
    args = torch.load(first.path / "training_args.bin", weights_only=False)
    assert (args.max_steps, args.hub_token) == (4, None)


def test_checkpoint_files_have_the_permissions_of_the_umask(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "model.safetensors").touch(mode=0o600)
        (folder / "part").mkdir()
        (folder / "part" / "optimizer.pt").touch(mode=0o600)

    before = os.umask(0o027)
    try:
        checkpoint = files.commit(tmp_path, 1, write, {})
    finally:
        os.umask(before)

    modes = {path.name: path.stat().st_mode & 0o777 for path in checkpoint.path.rglob("*") if path.is_file()}
    assert modes == dict.fromkeys(("model.safetensors", "optimizer.pt", "manifest.json"), 0o640)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "rng_state.pth", "trainer_state.json"])
def test_a_flipped_bit_in_a_checkpoint_is_detected_and_its_file_named(two_checkpoints: Path, name: str) -> None:
    path = two_checkpoints / "checkpoint-4" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)

    with pytest.raises(CheckpointCorrupt, match=f"checkpoint-4: {name} has changed"):
        files.verify(path.parent)


def test_truncated_and_missing_checkpoint_files_are_detected_and_named(two_checkpoints: Path) -> None:
    (two_checkpoints / "checkpoint-4" / "optimizer.pt").unlink()
    weights = two_checkpoints / "checkpoint-2" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])

    with pytest.raises(CheckpointCorrupt, match=r"optimizer\.pt is missing"):
        files.verify(two_checkpoints / "checkpoint-4")
    with pytest.raises(CheckpointCorrupt, match=r"model\.safetensors.*\d+ bytes"):
        files.verify(weights.parent)


def test_a_checkpoint_without_a_manifest_is_reported_as_never_completed(two_checkpoints: Path) -> None:
    (two_checkpoints / "checkpoint-4" / "manifest.json").unlink()

    with pytest.raises(CheckpointCorrupt, match="never completed"):
        files.verify(two_checkpoints / "checkpoint-4")


@pytest.mark.parametrize("failing", ["is_dir", "is_file", "open"])
def test_an_unreadable_checkpoint_is_skipped(
    two_checkpoints: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """A failing disk or a missing permission makes one checkpoint unusable, but does not end the attempt."""
    real = getattr(Path, failing)

    def call(path: Path, *args: Any, **options: Any) -> Any:
        if "checkpoint-4" in path.parts and path.name != "manifest.json":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, *args, **options)

    with monkeypatch.context() as context:
        context.setattr(Path, failing, call)
        with pytest.raises(CheckpointCorrupt, match=r"cannot be read .*Input/output error"):
            files.verify(two_checkpoints / "checkpoint-4")
        if failing != "is_dir":
            assert files.latest_checkpoint(two_checkpoints) == two_checkpoints / "checkpoint-2"


def test_a_checkpoint_file_replaced_by_a_symlink_is_detected(two_checkpoints: Path) -> None:
    weights = two_checkpoints / "checkpoint-4" / "model.safetensors"
    weights.rename(two_checkpoints / "elsewhere")
    weights.symlink_to(two_checkpoints / "elsewhere")

    with pytest.raises(CheckpointCorrupt, match=r"checkpoint-4.*model\.safetensors is a link"):
        files.verify(weights.parent)


@pytest.mark.parametrize("garbage", [b"\xff\x00", b"{", b"[" * 100_000, b"[]", b'{"files": 3}'])
def test_a_checkpoint_with_an_invalid_manifest_is_skipped(two_checkpoints: Path, garbage: bytes) -> None:
    assert files.latest_checkpoint(two_checkpoints) == two_checkpoints / "checkpoint-4"
    (two_checkpoints / "checkpoint-4" / "manifest.json").write_bytes(garbage)

    assert files.latest_checkpoint(two_checkpoints) == two_checkpoints / "checkpoint-2"
    assert files.latest_checkpoint(two_checkpoints / "nothing here") is None


def test_a_manifest_other_than_the_committed_one_is_refused(two_checkpoints: Path) -> None:
    folder = two_checkpoints / "checkpoint-4"
    committed = sha256((folder / "manifest.json").read_bytes()).hexdigest()
    files.verify(folder, committed)
    (folder / "manifest.json").write_text('{"files": {}}')

    with pytest.raises(CheckpointCorrupt, match=r"manifest\.json.*committed"):
        files.verify(folder, committed)


def test_a_broken_checkpoint_is_skipped_unless_it_is_named(two_checkpoints: Path) -> None:
    (two_checkpoints / "checkpoint-4" / "model.safetensors").write_bytes(b"")
    events = Events()

    a_trainer(two_checkpoints, [events], max_steps=3).train(resume_from_checkpoint=True)

    assert events.names.count("on_step_end") == 1
    with pytest.raises(CheckpointCorrupt):
        a_trainer(two_checkpoints).train(resume_from_checkpoint=two_checkpoints / "checkpoint-4")


def test_a_checkpoint_that_is_already_verified_is_not_read_again(
    two_checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = two_checkpoints / "checkpoint-2"
    files.verify(folder)
    monkeypatch.setattr(files, "verify", lambda folder: pytest.fail("the verified checkpoint was read again"))

    trainer = a_trainer(two_checkpoints, max_steps=3)
    trainer.train(resume_from_checkpoint=files.Verified(folder))

    assert trainer.state.global_step == 3


def test_an_interrupted_save_leaves_no_files(tmp_path: Path) -> None:
    def die(folder: Path) -> None:
        (folder / "half").write_text("a")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.commit(tmp_path, 7, die, {})

    assert list(tmp_path.iterdir()) == []


def test_sweep_deletes_partial_saves_and_restores_replaced_checkpoints(two_checkpoints: Path) -> None:
    (two_checkpoints / ".tmp-checkpoint-6-00c0ffee").mkdir()
    (two_checkpoints / "checkpoint-4").rename(two_checkpoints / ".old-checkpoint-4-00c0ffee")

    files.sweep(two_checkpoints)

    assert sorted(path.name for path in two_checkpoints.iterdir()) == ["checkpoint-2", "checkpoint-4"]
    files.verify(two_checkpoints / "checkpoint-4")


def test_a_checkpoint_of_the_same_step_is_replaced(two_checkpoints: Path) -> None:
    before = (two_checkpoints / "checkpoint-4" / "manifest.json").read_bytes()
    trainer = a_trainer(two_checkpoints, learning_rate=1e-2)

    trainer.train()

    files.verify(two_checkpoints / "checkpoint-4")
    assert (two_checkpoints / "checkpoint-4" / "manifest.json").read_bytes() != before
    assert len(list(two_checkpoints.iterdir())) == 2


def test_save_total_limit_deletes_the_oldest_and_keeps_the_best(tmp_path: Path) -> None:
    class Worse(Trainer):
        """Makes every evaluation worse than the one before, so that the first checkpoint is the best."""

        def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
            return {**super().evaluate(*args, **kwargs), "eval_loss": float(self.state.global_step)}

    args = TrainingArguments(
        str(tmp_path),
        max_steps=5,
        save_steps=1,
        eval_strategy="steps",
        eval_steps=1,
        save_total_limit=2,
        load_best_model_at_end=True,
        disable_tqdm=True,
    )
    trainer = Worse(toy.mlp(), args, train_dataset=toy.regression(n=64), eval_dataset=toy.regression(n=16))

    trainer.train()

    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-1", "checkpoint-5"]
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-1")
    best = toy.mlp()
    files.load_weights(best, tmp_path / "checkpoint-1")
    assert digest(best.state_dict()) == digest(trainer.model.state_dict())


@pytest.mark.parametrize("limit", [{"save_total_limit": 2}, {"keep_last": 2}])
def test_a_new_run_in_the_folder_of_a_longer_one_keeps_its_own_checkpoints(
    tmp_path: Path, limit: dict[str, Any]
) -> None:
    a_trainer(tmp_path, max_steps=12, save_steps=4).train()

    a_trainer(tmp_path, max_steps=6, save_steps=2, **limit).train()

    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-4", "checkpoint-6"]


@contextmanager
def a_disk_that_takes_files_up_to(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("limit", [10_000, 30_000])
def test_a_full_disk_keeps_the_older_checkpoint_and_training_continues(tmp_path: Path, limit: int) -> None:
    """A limit of 10,000 bytes stops safetensors, and a limit of 30,000 bytes stops torch.save."""
    failed: list[SaveFailed] = []
    a_trainer(tmp_path, max_steps=2).train()
    trainer = a_trainer(tmp_path, max_steps=5, save_steps=2)
    trainer._footplate.hooks.on_save_failed = failed.append

    with a_disk_that_takes_files_up_to(limit):
        output = trainer.train(resume_from_checkpoint=True)

    assert output.global_step == 5
    assert [(item.step, item.failures_in_a_row, item.will_go_on) for item in failed] == [(4, 1, True), (5, 2, True)]
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]
    files.verify(tmp_path / "checkpoint-2")


def test_the_best_model_is_chosen_among_the_checkpoints_that_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run would otherwise fail at its end, because the best checkpoint does not exist."""
    commit, scores = files.commit, iter([0.5, 0.9, 0.1])

    def full_at_four(parent: Path, step: int, *rest: Any) -> files.Checkpoint:
        if step == 4:
            raise files.CannotSave("no space left on device")
        return commit(parent, step, *rest)

    monkeypatch.setattr(files, "commit", full_at_four)
    trainer = a_trainer(
        tmp_path,
        max_steps=6,
        eval_strategy="steps",
        eval_steps=2,
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model="score",
        compute_metrics=lambda prediction: {"score": next(scores)},
    )

    trainer.train()

    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
    best_weights = load_file(tmp_path / "checkpoint-2" / files.MODEL)
    assert all(value.equal(best_weights[name]) for name, value in trainer.model.state_dict().items())


def test_a_disk_that_stays_full_ends_the_run_at_the_fourth_failed_save(tmp_path: Path) -> None:
    failed: list[SaveFailed] = []
    trainer = a_trainer(tmp_path, max_steps=20, save_steps=1)
    trainer._footplate.hooks.on_save_failed = failed.append

    with a_disk_that_takes_files_up_to(10_000), pytest.raises(files.CannotSave, match="checkpoint-4 could not"):
        trainer.train()

    assert [item.will_go_on for item in failed] == [True, True, True, False]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8, bias=False)
        self.b = nn.Linear(8, 8, bias=False)
        self.b.weight = self.a.weight
        whole = torch.randn(4, 8)
        self.register_buffer("top", whole[:2])
        self.register_buffer("bottom", whole[2:])

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.b(self.a(x))[:, :4] - labels).square().mean()}


@pytest.mark.parametrize("in_background", [False, True])
def test_tied_weights_and_slices_of_one_tensor_are_saved_and_restored(tmp_path: Path, in_background: bool) -> None:
    trainer = a_trainer(tmp_path, model=Tied(), save_in_background=in_background)
    trainer.train()
    other = Tied()

    files.load_weights(other, tmp_path / "checkpoint-4")

    assert digest(other.state_dict()) == digest(trainer.model.state_dict())
    assert other.b.weight is other.a.weight


def test_the_weights_of_another_model_are_refused_by_name(two_checkpoints: Path) -> None:
    with pytest.raises(ValueError, match="checkpoint-4 belongs to another model"):
        files.load_weights(toy.mlp(depth=3), two_checkpoints / "checkpoint-4")


class GrowingBuffer(nn.Module):
    def __init__(self, buffer: str) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.layer.register_buffer(buffer, torch.ones(2))


def test_a_buffer_missing_in_model_or_checkpoint_is_skipped_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved_model, model = GrowingBuffer("old"), GrowingBuffer("new")
    files.save_weights(saved_model, tmp_path / files.MODEL)

    files.load_weights(model, tmp_path)

    assert model.layer.weight.equal(saved_model.layer.weight)
    assert "lacks these buffers, which keep their values: layer.new" in caplog.text
    assert "has tensors that the model lacks, which are left out: layer.old" in caplog.text


def test_a_buffer_of_another_shape_raises_the_error_of_the_model(tmp_path: Path) -> None:
    saved_model, model = GrowingBuffer("seen"), GrowingBuffer("seen")
    saved_model.layer.seen = torch.zeros(5)
    files.save_weights(saved_model, tmp_path / files.MODEL)

    with pytest.raises(RuntimeError, match=r"size mismatch for layer\.seen"):
        files.load_weights(model, tmp_path)


def test_arguments_that_cannot_be_pickled_are_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Local(TrainingArguments):
        """A class inside a function, which pickle cannot find by its name."""

    args = Local(str(tmp_path), max_steps=4, save_steps=2, disable_tqdm=True)
    Trainer(toy.mlp(), args, train_dataset=toy.regression(n=64)).train()

    assert sum("training_args.bin is not written" in record.getMessage() for record in caplog.records) == 1
    assert not (tmp_path / "checkpoint-4" / "training_args.bin").exists()


def test_loading_a_checkpoint_cannot_execute_code(two_checkpoints: Path) -> None:
    import pickle

    class Evil:
        def __reduce__(self) -> Any:
            return (print, ("it ran",))

    torch.save({"state": Evil()}, two_checkpoints / "checkpoint-4" / "optimizer.pt")

    with pytest.raises(pickle.UnpicklingError):
        files.load_tensors(two_checkpoints / "checkpoint-4", "optimizer.pt")


def test_a_damaged_manifest_and_a_deleted_checkpoint_are_reported(tmp_path: Path) -> None:
    checkpoint = files.commit(tmp_path, 1, lambda folder: (folder / "a").write_text("a") and None, {})
    manifest = checkpoint.path / files.MANIFEST
    manifest.write_text(manifest.read_text().replace("sha256", "sha257"))

    with pytest.raises(CheckpointCorrupt, match="has no size and sha256 of a"):
        files.verify(checkpoint.path)
    with pytest.raises(CheckpointCorrupt, match="no longer exists"):
        files.verify(tmp_path / "checkpoint-2")
