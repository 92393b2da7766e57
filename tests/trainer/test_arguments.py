"""Checks that every accepted argument has a test which fails if the argument is ignored.

For each argument in `DIFFERS`, a run with the argument must differ from a run without it, in the named result.
All other arguments have tests of their own, in this file or in those that `ELSEWHERE` lists.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
import pickle
import signal
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.utils import memory
from torch import nn

import footplate
from footplate.components import toy
from footplate.contract.arguments import TrainingArguments as Plain
from footplate.trainer import eval_totals
from footplate.trainer.activations import repeated_layers
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.callbacks import TrainerCallback
from footplate.trainer.samplers import BatchRebalanceSampler, LengthGroupedSampler
from footplate.trainer.trainer import Trainer, set_seed
from tests.support.training import Events, digest
from tests.trainer import sides

FIELDS = {field.name for field in dataclasses.fields(Plain)}  # type: ignore[arg-type]


def accuracy(evaluated: Any) -> dict[str, float]:
    return {"accuracy": float((evaluated.predictions.argmax(-1) == evaluated.label_ids).mean())}


def a_trainer(folder: Path, *callbacks: Any, model: Any = None, data: Any = None, **values: Any) -> Trainer:
    kind, options = values.pop("kind", Trainer), values.pop("options", {})
    base = {"max_steps": 4, "learning_rate": 1e-2, "logging_steps": 1, "save_strategy": "no", "disable_tqdm": True}
    args = TrainingArguments(values.pop("output_dir", str(folder)), **{**base, **values})
    set_seed(3)
    rows = toy.classification(n=41) if data is None else data
    return kind(
        model or toy.mlp(hidden=16, dropout=0.2),
        args,
        train_dataset=rows,
        eval_dataset=options.pop("eval_dataset", toy.classification(n=22, seed=1)),
        callbacks=list(callbacks),
        **options,
    )


def results_of(folder: Path, **values: Any) -> dict[str, Any]:
    """Trains, and returns weights, logs, events, steps and files of the run."""
    events = Events()
    trainer = a_trainer(folder, events, **values)
    output = trainer.train()
    return {
        "weights": digest(trainer.model.state_dict()),
        "history": [sides.timeless(row) for row in trainer.state.log_history],
        "names": events.names,
        "steps": output.global_step,
        "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()),
    }


BY_STEPS = {"eval_strategy": "steps", "eval_steps": 2}
DIVERGES = {"learning_rate": 3.0, "optim": "sgd", "max_grad_norm": 0}
BOTH = {**BY_STEPS, "save_strategy": "steps", "save_steps": 2}
DIFFERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # name: (the result that must differ, the argument's value, the arguments of both runs)
    "per_device_train_batch_size": ("weights", {"per_device_train_batch_size": 3}, {}),
    "num_train_epochs": ("steps", {"num_train_epochs": 1}, {"max_steps": -1}),
    "max_steps": ("steps", {"max_steps": 3}, {}),
    "gradient_accumulation_steps": ("names", {"gradient_accumulation_steps": 2}, {}),
    "learning_rate": ("weights", {"learning_rate": 1e-3}, {}),
    "lr_scheduler_type": ("weights", {"lr_scheduler_type": "constant"}, {}),
    "lr_scheduler_kwargs": (
        "weights", {"lr_scheduler_kwargs": {"num_cycles": 2}}, {"lr_scheduler_type": "cosine_with_restarts"}),
    "warmup_steps": ("weights", {"warmup_steps": 0.5}, {}),
    "optim": ("weights", {"optim": "sgd"}, {}),
    "optim_args": ("weights", {"optim_args": "momentum=0.9"}, {"optim": "sgd"}),
    "weight_decay": ("weights", {"weight_decay": 0.5}, {}),
    "adam_beta1": ("weights", {"adam_beta1": 0.5}, {}),
    "adam_beta2": ("weights", {"adam_beta2": 0.5}, {}),
    "adam_epsilon": ("weights", {"adam_epsilon": 1e-2}, {}),
    "max_grad_norm": ("weights", {"max_grad_norm": 1e-3}, {"optim": "sgd"}),
    "label_smoothing_factor": ("weights", {"label_smoothing_factor": 0.2}, {}),
    "bf16": ("weights", {"bf16": True}, {}),
    "fp16": ("weights", {"fp16": True}, {}),
    "logging_strategy": ("history", {"logging_strategy": "no"}, {}),
    "logging_steps": ("history", {"logging_steps": 2}, {}),
    "logging_first_step": ("history", {"logging_first_step": True}, {"logging_steps": 3}),
    "eval_strategy": ("names", {"eval_strategy": "steps"}, {}),
    "eval_steps": ("names", {"eval_steps": 1}, {"eval_strategy": "steps", "logging_steps": 2}),
    "eval_delay": ("names", {"eval_delay": 3}, BY_STEPS),
    "eval_on_start": ("names", {"eval_on_start": True}, {}),
    "per_device_eval_batch_size": ("names", {"per_device_eval_batch_size": 3}, BY_STEPS),
    "prediction_loss_only": (
        "history", {"prediction_loss_only": True}, {**BY_STEPS, "options": {"compute_metrics": accuracy}}),
    "save_strategy": ("files", {"save_strategy": "epoch"}, {}),
    "save_steps": ("files", {"save_steps": 1}, {"save_strategy": "steps"}),
    "save_total_limit": ("files", {"save_total_limit": 1}, {"save_strategy": "steps", "save_steps": 1}),
    "keep_last": ("files", {"keep_last": 1}, {"save_strategy": "steps", "save_steps": 1}),
    "save_only_model": ("files", {"save_only_model": True}, {"save_strategy": "steps"}),
    "load_best_model_at_end": (
        "weights", {"load_best_model_at_end": True}, {**BOTH, **DIVERGES}),
    "seed": ("weights", {"seed": 1}, {}),
    "data_seed": ("weights", {"data_seed": 1}, {}),
    "dataloader_drop_last": ("steps", {"dataloader_drop_last": True}, {"max_steps": -1, "num_train_epochs": 1}),
    "train_sampling_strategy": ("weights", {"train_sampling_strategy": "sequential"}, {}),
}  # fmt: skip


@pytest.fixture(scope="module")
def results_without(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Returns a function that trains once for equal arguments, because most cases compare with the same run."""
    results: dict[str, dict[str, Any]] = {}

    def trained(**values: Any) -> dict[str, Any]:
        if repr(values) not in results:
            results[repr(values)] = results_of(tmp_path_factory.mktemp("without"), **values)
        return results[repr(values)]

    return trained


@pytest.mark.parametrize("name", DIFFERS)
def test_an_argument_changes_the_results_of_a_run(
    tmp_path: Path, results_without: Callable[..., dict[str, Any]], name: str
) -> None:
    seen_in, values, both = DIFFERS[name]

    with_it = results_of(tmp_path, **{**both, **values})

    assert set(values) == {name}
    assert results_without(**both)[seen_in] != with_it[seen_in]


def test_two_runs_with_the_same_arguments_give_the_same_results(tmp_path: Path) -> None:
    """The test above needs this, because any difference between two runs lets it pass."""
    assert results_of(tmp_path / "one", **BOTH) == results_of(tmp_path / "two", **BOTH)


OF_THEIR_OWN: dict[str, Callable[[Path], None]] = {}
"""The tests that `about` registers below, by the names of their arguments."""


def about(*names: str) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    def note(test: Callable[[Path], None]) -> Callable[[Path], None]:
        OF_THEIR_OWN.update(dict.fromkeys(names, test))
        return test

    return note


@about("output_dir")
def _(folder: Path) -> None:
    a_trainer(folder, output_dir=str(folder / "elsewhere"), save_strategy="steps").train()
    assert [path.name for path in folder.iterdir()] == ["elsewhere"]


@about("use_cache")
def _(folder: Path) -> None:
    for is_on in (False, True):
        model = sides.bert("BertForSequenceClassification")
        a_trainer(folder, model=model, use_cache=is_on)
        assert model.config.use_cache is is_on  # type: ignore[union-attr]


@about("torch_empty_cache_steps")
def _(folder: Path) -> None:
    calls, real = [], memory.clear_device_cache
    memory.clear_device_cache = lambda: calls.append(1)
    try:
        a_trainer(folder, torch_empty_cache_steps=2).train()
    finally:
        memory.clear_device_cache = real
    assert len(calls) == 2


class Small(nn.Module):
    """A model that runs out of memory with more than `fits` samples."""

    def __init__(self, fits: int) -> None:
        super().__init__()
        self.line, self.fits, self.sizes = nn.Linear(8, 4), fits, []  # type: ignore[var-annotated]

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        if len(x) > self.fits:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        self.sizes.append(len(x))
        return {"loss": nn.functional.cross_entropy(self.line(x), labels)}


@about("auto_find_batch_size")
def _(folder: Path) -> None:
    def trained(fits: int, **values: Any) -> Trainer:
        torch.manual_seed(0)
        trainer = a_trainer(folder, model=Small(fits), per_device_train_batch_size=8, **values)
        trainer.train()
        return trainer

    whole, cut = trained(99), trained(3, auto_find_batch_size=True)
    assert set(cut.model.sizes) <= {1, 2, 3}  # type: ignore[arg-type]
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(cut.model.state_dict()[name], value)
    losses = [[row["loss"] for row in trainer.state.log_history if "loss" in row] for trainer in (whole, cut)]
    assert losses[0] == pytest.approx(losses[1])
    with pytest.raises(torch.OutOfMemoryError) as error:
        trained(3)
    assert "micro-batches: x (8, 8) torch.float32" in "".join(error.value.__notes__)


NAN = [{"x": torch.full((8,), float("nan")), "labels": torch.tensor(1)}] * 40


@about("max_nan_steps")
def _(folder: Path) -> None:
    with pytest.raises(FloatingPointError, match=r"2 steps in a row, 1 to 2.*batches 1 to 1 of epoch 0 \(samples \d+"):
        a_trainer(folder, data=NAN, max_nan_steps=2).train()
    assert a_trainer(folder, data=NAN).train().global_step == 4
    # Losses are checked for NaN only every few steps. A series may reach the limit, but not twice the limit.
    in_order = {"train_sampling_strategy": "sequential", "max_nan_steps": 3, "max_steps": 6, "data_seed": 0}
    fine = [dict(row) for row in toy.classification(n=48)]
    assert (
        a_trainer(folder, data=[*fine[:8], *NAN[:24], *fine[32:]], kind=ZeroesNan, **in_order).train().global_step == 6
    )
    with pytest.raises(FloatingPointError, match="5 steps in a row, 2 to 6"):
        a_trainer(folder, data=[*fine[:8], *NAN], kind=ZeroesNan, **in_order).train()


class ZeroesNan(Trainer):
    """A Trainer that replaces NaN gradients, so that a batch of NaN does not spoil the weights."""

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().training_step(*args, **kwargs)
        for parameter in self.model.parameters():
            parameter.grad.nan_to_num_()  # type: ignore[union-attr]
        return loss


@about("include_num_input_tokens_seen")
def _(folder: Path) -> None:
    def tokens_seen(setting: Any) -> int:
        words, rows = sides.tokenizer(), [{"input_ids": sentence, "label": 0} for sentence in sides.sentences()]
        model = sides.bert("BertForSequenceClassification")
        trainer = a_trainer(
            folder, model=model, data=rows, include_num_input_tokens_seen=setting, options={"processing_class": words}
        )
        trainer.train()
        assert ("num_input_tokens_seen" in trainer.state.log_history[0]) is (setting != "no")
        return trainer.state.num_input_tokens_seen

    assert tokens_seen("no") == 0 < tokens_seen("non_padding") < tokens_seen("all") == tokens_seen(True)


@about("disable_tqdm")
def _(folder: Path) -> None:
    with_bars = [
        type(callback).__name__ for callback in a_trainer(folder, disable_tqdm=False).callback_handler.callbacks
    ]
    without_bars = [
        type(callback).__name__ for callback in a_trainer(folder, disable_tqdm=True).callback_handler.callbacks
    ]
    assert "ProgressCallback" in with_bars
    assert "PrinterCallback" in without_bars


@about("log_level", "log_level_replica")
def _(folder: Path) -> None:
    logger = logging.getLogger("footplate")
    before = logger.level
    try:
        a_trainer(folder, log_level="error")
        assert logger.level == logging.ERROR
    finally:
        logger.setLevel(before)

    class Replica(TrainingArguments):
        should_log = False  # type: ignore[assignment]

    assert Replica("out", log_level_replica="debug").get_process_log_level() == logging.DEBUG


def test_get_process_log_level_can_set_the_scripts_own_logger(tmp_path: Path) -> None:
    """Hugging Face's example scripts set the level of their logger like this, also for the default `passive`."""
    logger = logging.getLogger("a script's own")

    logger.setLevel(TrainingArguments("out").get_process_log_level())

    assert logger.level == logging.getLogger("footplate").getEffectiveLevel()
    before = logging.getLogger("footplate").level
    a_trainer(tmp_path)
    assert logging.getLogger("footplate").level == before


@about("report_to", "run_name", "logging_dir")
def _(folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    a_trainer(folder, report_to="tensorboard", run_name="mine", logging_dir=str(folder / "logs"), **BY_STEPS).train()
    events = EventAccumulator(str(folder / "logs" / "mine")).Reload()
    assert {"train/loss", "train/learning_rate", "eval/loss"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="did you mean 'tensorboard'"):
        a_trainer(folder, report_to="tensorbord")
    with pytest.raises(ImportError, match="pip install 'aim<4'"):
        a_trainer(folder, report_to=["aim"])


@about("eval_do_concat_batches")
def _(folder: Path) -> None:
    shapes: list[Any] = []

    def note(evaluated: Any) -> dict[str, Any]:
        shapes.append([len(prediction) for prediction in evaluated.predictions])
        return {}

    a_trainer(folder, eval_do_concat_batches=False, options={"compute_metrics": note}).evaluate()
    assert shapes == [[8, 8, 6]]


@about("eval_accumulation_steps")
def _(folder: Path) -> None:
    counts: list[int] = []
    real = eval_totals.CollectedOutputs._move

    def note(self: Any) -> None:
        counts.append(len(self._on_device))
        real(self)

    eval_totals.CollectedOutputs._move = note  # type: ignore[method-assign]
    try:
        a_trainer(folder, eval_accumulation_steps=2, options={"compute_metrics": accuracy}).evaluate()
    finally:
        eval_totals.CollectedOutputs._move = real  # type: ignore[method-assign]
    assert max(counts) == 2


@about("include_for_metrics")
def _(folder: Path) -> None:
    predictions: list[Any] = []

    def note(prediction: Any) -> dict[str, Any]:
        predictions.append((prediction.inputs, prediction.losses))
        return {}

    class Named(toy_mlp()):  # type: ignore[misc]
        main_input_name = "x"

    a_trainer(
        folder, model=Named(8, 16, 2, 4, 0.0), include_for_metrics=["inputs", "loss"], options={"compute_metrics": note}
    ).evaluate()
    inputs, losses = predictions[0]
    assert inputs.shape == (22, 8)
    assert losses.shape == (22,)
    with pytest.raises(ValueError, match="main_input_name on the model's class"):
        a_trainer(folder, include_for_metrics=["inputs"], options={"compute_metrics": note}).evaluate()
    with pytest.raises(ValueError, match="known are inputs and loss"):
        a_trainer(folder, include_for_metrics=["input"])


def toy_mlp() -> type:
    from footplate.components.toy import Mlp

    return Mlp


@about("batch_eval_metrics")
def _(folder: Path) -> None:
    calls: list[tuple[int, bool]] = []

    def by_batch(evaluated: Any, compute_result: bool) -> dict[str, float]:
        calls.append((len(evaluated.label_ids), compute_result))
        return {"batches": len(calls)} if compute_result else {}

    result = a_trainer(folder, batch_eval_metrics=True, options={"compute_metrics": by_batch}).evaluate()
    assert calls == [(8, False), (8, False), (6, True)]
    assert result["eval_batches"] == 3
    with pytest.raises(ValueError, match=r"compute_metrics.* compute_result"):
        a_trainer(folder, batch_eval_metrics=True, options={"compute_metrics": accuracy})


@about("label_names")
def _(folder: Path) -> None:
    assert "eval_loss" not in a_trainer(folder, label_names=["answers"]).evaluate()
    assert "eval_loss" in a_trainer(folder).evaluate()


class Given(Trainer):
    """A Trainer whose evaluations return given values."""

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        result = {
            **super().evaluate(*args, **kwargs),
            "eval_rank": {1: 5.0, 2: 9.0, 3: 1.0, 4: 7.0}[self.state.global_step],
        }
        self.state.log_history[-1]["eval_rank"] = result["eval_rank"]
        return result


EVERY = {"kind": Given, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}


@about("metric_for_best_model", "greater_is_better")
def _(folder: Path) -> None:
    for greater, step in ((True, 2), (False, 3)):
        trainer = a_trainer(folder, metric_for_best_model="rank", greater_is_better=greater, **EVERY)
        trainer.train()
        assert (trainer.state.best_global_step, trainer.state.best_model_checkpoint) == (
            step,
            str(folder / f"checkpoint-{step}"),
        )
    exact = a_trainer(folder, metric_for_best_model="loss_exact", **EVERY)
    exact.train()
    assert exact.state.best_metric == min(row["eval_loss"] for row in exact.state.log_history if "eval_loss" in row)
    with pytest.raises(ValueError, match=r"metric_for_best_model.*'acuracy'"):
        a_trainer(folder, metric_for_best_model="acuracy", options={"metrics": ["accuracy"]}, **BY_STEPS)


@about("keep_best")
def _(folder: Path) -> None:
    a_trainer(folder, metric_for_best_model="rank", greater_is_better=True, keep_last=1, keep_best=1, **EVERY).train()
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint-2", "checkpoint-4"]


@about("save_in_background")
def _(folder: Path) -> None:
    """Training continues during a save. The first save is held until the second step has ended."""
    import threading

    from footplate.trainer import checkpoint as files

    go_on, messages, real = threading.Event(), [], files.commit

    def held(*args: Any) -> Any:
        assert go_on.wait(60)
        return real(*args)

    class Watch(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 2:
                assert messages == []
                go_on.set()

        def on_save(self, args: Any, state: Any, control: Any, checkpoint: Any = None, **kwargs: Any) -> None:
            messages.append(checkpoint.step)

    files.commit = held
    try:
        a_trainer(folder, Watch(), save_in_background=True, save_strategy="steps", save_steps=1).train()
    finally:
        files.commit = real
    assert messages == [1, 2, 3, 4]
    assert len(list(folder.iterdir())) == 4


@about("enable_jit_checkpoint")
def _(folder: Path) -> None:
    class Terminate(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    output = a_trainer(folder, Terminate(), enable_jit_checkpoint=True).train()
    assert (output.global_step, [path.name for path in folder.iterdir()]) == (2, ["checkpoint-2"])
    assert signal.getsignal(signal.SIGTERM) is before


@about("restore_callback_states_from_checkpoint", "resume_from_checkpoint")
def _(folder: Path) -> None:
    early = {"metric_for_best_model": "loss", **BOTH}

    def counter(restores: bool) -> int:
        patience = footplate.EarlyStoppingCallback(early_stopping_patience=9, early_stopping_threshold=99.0)
        trainer = a_trainer(folder, patience, restore_callback_states_from_checkpoint=restores, **early)
        trainer.train(
            resume_from_checkpoint=TrainingArguments("x", resume_from_checkpoint=str(checkpoint)).resume_from_checkpoint
        )
        return patience.early_stopping_patience_counter

    a_trainer(folder, footplate.EarlyStoppingCallback(9, 99.0), **early).train()
    checkpoint = folder / "checkpoint-4"
    assert counter(True) > counter(False) == 0


@about("ignore_data_skip")
def _(folder: Path) -> None:
    a_trainer(folder, save_strategy="steps", save_steps=2).train()
    skipped, again = (
        trained_on(folder, resume=str(folder / "checkpoint-2"), ignore_data_skip=is_on) for is_on in (False, True)
    )
    assert skipped != again
    assert again[0] == trained_on(folder)[0]
    # After an epoch of six steps, nothing is left to skip.
    a_trainer(folder, max_steps=8, save_strategy="steps", save_steps=6).train()
    ends = {"resume": str(folder / "checkpoint-6"), "max_steps": 8}
    assert trained_on(folder, ignore_data_skip=True, **ends) == trained_on(folder, **ends)


def trained_on(folder: Path, resume: str | None = None, **values: Any) -> list[str]:
    """Returns the digests of the batches that were trained on."""
    digests: list[str] = []

    class Note(Trainer):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            digests.append(digest(inputs["x"]))
            return super().training_step(model, inputs, num_items_in_batch)

    a_trainer(folder, kind=Note, **values).train(resume_from_checkpoint=resume)
    return digests


@about("full_determinism")
def _(folder: Path) -> None:
    variables = {name: os.environ.get(name) for name in ("CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG")}
    try:
        a_trainer(folder, full_determinism=True)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = False
        for name, value in variables.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


@about("use_cpu")
def _(folder: Path) -> None:
    """Checks what Accelerate is configured with, because this machine may have no GPU."""
    assert a_trainer(folder, use_cpu=True).accelerator.state._cpu is True
    assert a_trainer(folder, use_cpu=False).accelerator.state._cpu is False


@about(
    "dataloader_num_workers", "dataloader_persistent_workers", "dataloader_prefetch_factor",
    "dataloader_multiprocessing_context", "dataloader_in_order",
)  # fmt: skip
def _(folder: Path) -> None:
    loader = a_trainer(
        folder,
        dataloader_num_workers=2,
        dataloader_persistent_workers=True,
        dataloader_prefetch_factor=5,
        dataloader_multiprocessing_context="spawn",
        dataloader_in_order=False,
    ).get_train_dataloader()
    plain = loader.base_dataloader
    assert (plain.num_workers, plain.persistent_workers, plain.prefetch_factor) == (2, True, 5)
    assert plain.multiprocessing_context.get_start_method() == "spawn"
    assert plain.in_order is False
    # A spawned process receives copies of these.
    pickle.dumps((plain.dataset, plain.collate_fn, plain.worker_init_fn))


def test_persistent_loader_workers_are_kept_between_evaluations(tmp_path: Path) -> None:
    sets = {"near": toy.classification(n=8, seed=1), "far": toy.classification(n=8, seed=2)}
    workers = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    trainer = a_trainer(tmp_path, options={"eval_dataset": sets}, **workers)

    first, again = (trainer.evaluate() for _ in range(2))

    assert first["eval_far_loss"] == again["eval_far_loss"]
    far = trainer.get_eval_dataloader("far")
    assert far is trainer.get_eval_dataloader("far") is not trainer.get_eval_dataloader("near")
    assert far.base_dataloader._iterator._workers[0].is_alive()
    other = toy.classification(n=8, seed=3)
    # The Trainer of transformers would return the first loader of any unnamed dataset.
    assert trainer.get_eval_dataloader(other) is not trainer.get_eval_dataloader(other)
    trainer.eval_dataset = {"far": other}
    assert trainer.get_eval_dataloader("far") is not far
    plain = a_trainer(tmp_path, options={"eval_dataset": sets})
    assert plain.get_eval_dataloader("far") is not plain.get_eval_dataloader("far")


def test_persistent_loader_workers_end_by_themselves_when_the_trainer_is_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminated: list[BaseProcess] = []
    monkeypatch.setattr(BaseProcess, "terminate", terminated.append)
    trainer = a_trainer(tmp_path, dataloader_num_workers=1, dataloader_persistent_workers=True)
    trainer.evaluate()
    workers = trainer.get_eval_dataloader().base_dataloader._iterator._workers
    trainer.itself = trainer  # type: ignore[attr-defined]  # Only a cycle needs the garbage collection.

    del trainer
    gc.collect()

    assert [worker.exitcode for worker in workers] == [0]
    assert not terminated, "torch terminates a process that has not ended after five seconds"


@about("dataloader_pin_memory")
def _(folder: Path) -> None:
    real, torch.cuda.is_available = torch.cuda.is_available, lambda: True
    try:
        from footplate.trainer.collators import default_data_collator
        from footplate.trainer.data import make_loader

        pinned = [
            make_loader([1], Plain("out", dataloader_pin_memory=is_on), default_data_collator, 1, None).pin_memory
            for is_on in (True, False)
        ]
    finally:
        torch.cuda.is_available = real
    assert pinned == [True, False]


@about("remove_unused_columns")
def _(folder: Path) -> None:
    rows = [{**row, "note": torch.zeros(1)} for row in toy.classification(n=16)]
    a_trainer(folder, data=rows, remove_unused_columns=True).train()
    with pytest.raises(TypeError, match="note"):
        a_trainer(folder, data=rows, remove_unused_columns=False).train()


class Columns(list[Any]):
    column_names = ("input_ids", "size")

    def __getitem__(self, key: Any) -> Any:
        return [len(row["input_ids"]) for row in self] if key == "size" else super().__getitem__(key)


@about("length_column_name")
def _(folder: Path) -> None:
    rows = Columns({"input_ids": sentence} for sentence in sides.sentences())
    for name, expected in (("size", [len(row["input_ids"]) for row in rows]), ("length", None)):
        strategy = {"train_sampling_strategy": "group_by_length", "length_column_name": name}
        sampler = a_trainer(folder, data=rows, **strategy)._get_train_sampler(rows)
        assert isinstance(sampler, LengthGroupedSampler)
        assert expected is None or sampler.lengths == expected
    weighed = a_trainer(folder, data=rows, train_sampling_strategy="batch_rebalance", length_column_name="size")
    assert isinstance(weighed._get_train_sampler(rows), BatchRebalanceSampler)


@about("debug")
def _(folder: Path) -> None:
    with pytest.raises(FloatingPointError, match=r"in step 1, an input of .* is NaN or infinite: \(8, 8\)"):
        a_trainer(folder, data=NAN, debug="underflow_overflow").train()


@about("skip_memory_metrics")
def _(folder: Path) -> None:
    def reports_memory(skip: bool) -> bool:
        return "train_mem_cpu_alloc_delta" in a_trainer(folder, skip_memory_metrics=skip).train().metrics

    assert (reports_memory(False), reports_memory(True)) == (True, False)


@about("do_train", "do_eval", "do_predict")
def _(folder: Path) -> None:
    """Only scripts read these arguments, which keep their values. `do_eval` follows eval_strategy."""
    args = TrainingArguments("out", do_train=True, do_predict=True)
    assert (args.do_train, args.do_eval, args.do_predict) == (True, False, True)
    assert TrainingArguments("out", eval_strategy="epoch").do_eval


@about("bf16_full_eval", "fp16_full_eval")
def _(folder: Path) -> None:
    for name, dtype in (("bf16_full_eval", torch.bfloat16), ("fp16_full_eval", torch.float16)):
        kinds = []

        class Look(TrainerCallback):
            def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                kinds.append(next(kwargs["model"].parameters()).dtype)  # noqa: B023

        rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 3
        options = {"eval_dataset": rows}
        trainer = a_trainer(folder, Look(), model=toy.gpt(width=8), data=rows, **{name: True}, options=options)
        trainer.evaluate()
        assert set(kinds) == {dtype}
        assert next(trainer.model.parameters()).dtype is torch.float32


@about("tf32")
def _(folder: Path) -> None:
    if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 8:
        a_trainer(folder, tf32=True)
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    else:
        with pytest.raises(ValueError, match="tf32"):
            a_trainer(folder, tf32=True)


@about(
    "activation_checkpointing", "activation_checkpointing_kwargs",
    "gradient_checkpointing", "gradient_checkpointing_kwargs",
)  # fmt: skip
def _(folder: Path) -> None:
    def forwards(**values: Any) -> int:
        model, calls = toy.gpt(layers=4, width=16), []
        for layer in repeated_layers(model):
            next(layer.children()).register_forward_hook(lambda *_: calls.append(1))
        a_trainer(folder, model=model, data=toy.text(n=8, length=8), max_steps=1, **values).train()
        return len(calls)

    once = forwards()
    assert forwards(activation_checkpointing=True) == forwards(gradient_checkpointing=True) == 2 * once
    every_other = {"every_n_layers": 2}
    assert forwards(activation_checkpointing=True, activation_checkpointing_kwargs=every_other) == 1.5 * once
    assert forwards(gradient_checkpointing=True, gradient_checkpointing_kwargs=every_other) == 1.5 * once


@about("torch_compile", "torch_compile_backend", "torch_compile_mode")
def _(folder: Path) -> None:
    model = toy.mlp()
    a_trainer(folder, model=model, torch_compile_backend="eager", max_steps=1).train()
    assert model._compiled_call_impl is not None
    requests: list[Any] = []
    watched = toy.mlp()
    watched.compile = lambda **options: requests.append(options)
    a_trainer(folder, model=watched, torch_compile_mode="max-autotune", max_steps=1).train()
    assert requests == [{"backend": "inductor", "mode": "max-autotune"}]
    untouched = toy.mlp()
    a_trainer(folder, model=untouched, max_steps=1).train()
    assert untouched._compiled_call_impl is None


@about("use_liger_kernel", "liger_kernel_config")
def _(folder: Path) -> None:
    """The kernels need a GPU, so a stand-in replaces the library that adds them."""
    import sys
    from types import SimpleNamespace

    from footplate.trainer import model_changes
    from footplate.trainer.model_changes import use_liger_kernels

    gpu, requests = torch.device("cuda"), []
    bert = sides.bert("BertForSequenceClassification")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "liger_kernel", None)
        with pytest.raises(ImportError, match=r"'footplate\[liger\]'"):
            use_liger_kernels(bert, None, gpu)
        put_in = SimpleNamespace(_apply_liger_kernel_to_instance=lambda **how: requests.append(how))
        patch.setitem(sys.modules, "liger_kernel", SimpleNamespace(transformers=put_in))
        patch.setitem(sys.modules, "liger_kernel.transformers", put_in)
        patch.setattr(
            model_changes, "use_liger_kernels", lambda model, config, device: use_liger_kernels(model, config, gpu)
        )
        rows = [{"input_ids": sentence, "label": 0} for sentence in sides.sentences()]
        options = {"processing_class": sides.tokenizer()}
        kernels = {"use_liger_kernel": True, "liger_kernel_config": {"rope": True}}
        a_trainer(folder, model=bert, data=rows, options=options, **kernels).train()
        with pytest.raises(ValueError, match="for models of transformers, and Mlp is not one"):
            a_trainer(folder, use_liger_kernel=True).train()
    assert requests == [{"model": bert, "rope": True}]
    with pytest.raises(ValueError, match=r"use_liger_kernel.*GPU.*CPU"):
        use_liger_kernels(bert, None, torch.device("cpu"))
    with pytest.raises(ValueError, match="use_liger_kernel is off"):
        TrainingArguments("out", liger_kernel_config={"rope": True})


@about("neftune_noise_alpha")
def _(folder: Path) -> None:
    def weights(**values: Any) -> str:
        torch.manual_seed(0)
        trainer = a_trainer(folder, model=toy.gpt(width=16), data=toy.text(n=8, length=8), max_steps=2, **values)
        trainer.train()
        assert not any(module._forward_hooks for module in trainer.model.modules())
        return digest(trainer.model.state_dict())

    assert weights() != weights(neftune_noise_alpha=5.0)


@pytest.mark.parametrize("name", OF_THEIR_OWN)
def test_an_argument_with_a_test_of_its_own_has_its_documented_effect(tmp_path: Path, name: str) -> None:
    OF_THEIR_OWN[name](tmp_path)


_SPACES = "tests/trainer/test_trackers.py::test_trackio_arguments_set_the_space_and_its_static_copy"
_SEVERAL = "tests/trainer/distributed/test_ddp.py::"
_HUB = "tests/trainer/test_hub.py::test_"
ELSEWHERE = {
    "push_to_hub": f"{_HUB}hub_strategy_decides_what_is_pushed_during_training",
    "hub_strategy": f"{_HUB}hub_strategy_decides_what_is_pushed_during_training",
    **dict.fromkeys(
        ("hub_model_id", "hub_token", "hub_private_repo", "hub_revision"),
        f"{_HUB}hub_arguments_set_the_repository_the_branch_and_the_token",
    ),
    "hub_always_push": f"{_HUB}training_continues_during_a_slow_push",
    "local_rank": f"{_SEVERAL}test_the_rank_is_read_from_the_environment_of_the_launcher",
    "average_tokens_across_devices": f"{_SEVERAL}test_averaging_the_loss_per_process_gives_a_different_curve",
    "log_on_each_node": f"{_SEVERAL}test_save_and_log_on_each_node_apply_to_the_first_rank_of_a_node",
    "save_on_each_node": f"{_SEVERAL}test_save_and_log_on_each_node_apply_to_the_first_rank_of_a_node",
    "eval_use_gather_object": f"{_SEVERAL}test_predictions_without_tensors_are_gathered_only_on_request",
    "accelerator_config": f"{_SEVERAL}test_gradients_are_synchronized_once_per_step_of_two_micro_batches",
    "ddp_find_unused_parameters": f"{_SEVERAL}test_the_ddp_arguments_set_the_options_of_the_process_group",
    "ddp_bucket_cap_mb": f"{_SEVERAL}test_the_ddp_arguments_set_the_options_of_the_process_group",
    "ddp_broadcast_buffers": f"{_SEVERAL}test_the_ddp_arguments_set_the_options_of_the_process_group",
    "ddp_static_graph": f"{_SEVERAL}test_the_ddp_arguments_set_the_options_of_the_process_group",
    "ddp_backend": f"{_SEVERAL}test_the_ddp_arguments_set_the_options_of_the_process_group",
    "ddp_timeout": f"{_SEVERAL}test_the_ddp_arguments_set_the_options_of_the_process_group",
    "fsdp": "tests/trainer/distributed/test_conformance.py::test_every_strategy_gives_the_loss_curve_of_one_process",
    "fsdp_config": (
        "tests/trainer/distributed/test_conformance.py::test_checkpoint_files_have_the_names_of_transformers_and_a_full_model"
    ),
    "deepspeed": (
        "tests/trainer/distributed/test_deepspeed_settings.py::test_auto_values_of_deepspeed_are_filled_from_the_arguments"
    ),
    "parallelism_config": (
        "tests/trainer/distributed/test_tensor_parallel.py::"
        "test_a_tensor_parallel_model_of_transformers_trains_like_a_full_one"
    ),
    "logging_nan_inf_filter": "tests/trainer/test_losses.py::test_nan_steps_are_counted_even_if_the_nan_filter_is_on",
    "project": "tests/trainer/test_trackers.py::test_mlflow_receives_all_logs_in_one_run",
    **dict.fromkeys(("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"), _SPACES),
}


def test_every_accepted_argument_has_a_test_of_its_effect() -> None:
    tested = {*DIFFERS, *OF_THEIR_OWN, *ELSEWHERE}

    assert FIELDS - tested == set(), "add tests that fail if these arguments are ignored"
    assert tested - FIELDS == set()
    for place in ELSEWHERE.values():
        path, _, test = place.partition("::")
        assert f"def {test}(" in Path(path).read_text()
