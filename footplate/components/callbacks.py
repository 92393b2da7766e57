"""Callbacks that a spec may name under `callbacks`. Their counters are saved in every checkpoint and restored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from footplate.components.component import component
from footplate.trainer.callback_tensors import HoldsTensors, put, read, swapped
from footplate.trainer.callbacks import EarlyStoppingCallback, ExportableState, TrainerCallback
from footplate.trainer.state import TrainerControl, TrainerState, may_be_logged


class EarlyStopping(EarlyStoppingCallback):
    """Hugging Face's early stopping. If `metric_for_best_model` is not set, it follows the evaluation's loss."""

    def on_init_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if args.metric_for_best_model is None:
            args.metric_for_best_model, args.greater_is_better = "loss", False


class LogLearningRate(TrainerCallback):
    """Logs the learning rate of every parameter group, as it was in the last optimizer step."""

    def __init__(self) -> None:
        self.rates: list[Any] = []

    def on_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.rates = [group["lr"] for group in kwargs["optimizer"].param_groups]

    def figures(self) -> dict[str, float]:
        return {f"learning_rate_group_{at}": float(rate) for at, rate in enumerate(self.rates)}


class GradientNorms(TrainerCallback):
    """Logs the gradient norm of each layer. Norms are computed only in steps that are logged."""

    def __init__(self, depth: int | None = None) -> None:
        self.depth = depth
        self.layers: dict[str, list[nn.Parameter]] = {}
        self.norms: dict[str, Tensor] = {}

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.layers = {}
        for name, value in kwargs["model"].named_parameters():
            if value.requires_grad:
                parts = name.split(".")
                layer = ".".join(parts[: self.depth] if self.depth else parts[:-1]) or name
                self.layers.setdefault(layer, []).append(value)

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not may_be_logged(args, state):
            return
        for layer, parameters in self.layers.items():
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            if gradients:
                self.norms[layer] = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))

    def figures(self) -> dict[str, float]:
        values = torch.stack(list(self.norms.values())).tolist() if self.norms else []
        figures = {f"grad_norm/{layer}": value for layer, value in zip(self.norms, values, strict=True)}
        self.norms = {}
        return figures


class StopOnNan(TrainerCallback, ExportableState):
    def __init__(self, steps: int = 1) -> None:
        self.steps, self.seen = steps, 0

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.seen += kwargs["logs"].get("nan_steps", 0)
        if self.seen >= self.steps:
            raise FloatingPointError(
                f"the loss was NaN or infinite in {self.seen} steps up to step {state.global_step}, and stop_on_nan "
                f"fails the job after {self.steps} such steps"
            )

    def state(self) -> dict[str, Any]:
        return {"args": {"steps": self.steps}, "attributes": {"seen": self.seen}}


class Ema(TrainerCallback, ExportableState, HoldsTensors):
    """Keeps a moving average of the weights, which is evaluated and becomes the final model."""

    def __init__(self, decay: float = 0.999, every: int = 1, warmup: bool = True) -> None:
        self.decay, self.every, self.warmup = decay, every, warmup
        self.updates = 0
        self.average: dict[str, Tensor] = {}
        self._weights: list[nn.Parameter] = []
        self._model: nn.Module | None = None

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if args.load_best_model_at_end and args.save_only_model:
            raise ValueError(
                "ema: load_best_model_at_end needs the averages of checkpoints, and save_only_model leaves them out: "
                "set one of the two to false"
            )
        weights = {name: value for name, value in kwargs["model"].named_parameters() if value.requires_grad}
        if any(hasattr(weight, mark) for weight in weights.values() for mark in _MARKS_OF_SHARDS):
            raise ValueError("ema averages whole weights, but this strategy shards them: use ddp, or one process")
        if state.global_step == 0 or not self.average:
            self.average, self.updates = {name: _wide(value).clone() for name, value in weights.items()}, 0
        if self.average.keys() != weights.keys():
            raise ValueError(
                "ema: the checkpoint has averages of other parameters than this job trains: load its weights only, "
                'with "mode": "weights" in resume_from'
            )
        self.average = {name: self.average[name].to(value.device) for name, value in weights.items()}
        self._weights, self._model = list(weights.values()), kwargs["model"]

    def on_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if (state.global_step + 1) % self.every:
            return
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warmup else self.decay
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.values()), [_wide(weight) for weight in self._weights], 1 - decay)

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._model is None:
            return
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            stored: Iterator[Any] = iter(read(Path(state.best_model_checkpoint)).get(type(self).__name__, []))
            self.average = next(stored, self.average)
        put(self._model, self.average)
        self._model = None

    def in_place(self) -> AbstractContextManager[Any]:
        """Returns a context in which the model has the averaged weights. After training, the model has them anyway."""
        return nullcontext() if self._model is None else swapped(self._model, self.average)

    def state(self) -> dict[str, Any]:
        args = {"decay": self.decay, "every": self.every, "warmup": self.warmup}
        return {"args": args, "attributes": {"updates": self.updates}}

    def tensors(self) -> dict[str, Tensor]:
        return self.average

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        self.average = tensors


_MARKS_OF_SHARDS = ("device_mesh", "_fsdp_flattened", "ds_id")
"""Attributes of parameters that FSDP 2, FSDP 1 or ZeRO 3 has sharded."""


def _wide(weight: Tensor) -> Tensor:
    """Returns the weights in single precision, because averages in half precision would lose small changes."""
    weight = weight.detach()
    return weight.float() if weight.dtype in (torch.float16, torch.bfloat16) else weight


def early_stopping(
    *,
    patience: Annotated[int, Field(ge=1), "Training stops after this number of evaluations without an improvement"] = 1,
    threshold: Annotated[float, Field(ge=0), "The smallest change of the metric that counts as an improvement"] = 0.0,
) -> Any:
    """Stops when `metric_for_best_model`, or the loss if it is not set, no longer improves."""
    return EarlyStopping(patience, threshold)


log_learning_rate = component(
    LogLearningRate,
    "Logs the learning rate of every parameter group with the loss, as learning_rate_group_0 and so on.",
)
gradient_norms = component(
    GradientNorms,
    "Logs the norm of each layer's gradients with the loss, after clipping, as grad_norm/<layer>.",
    depth=Annotated[
        Annotated[int, Field(ge=1)] | None,
        "The number of components of a layer's name by which layers are grouped; null logs every layer",
    ],
)
stop_on_nan = component(
    StopOnNan,
    "Ends the job after `steps` steps with a NaN or infinite loss. `max_nan_steps` of training counts steps in a row.",
    steps=Annotated[int, Field(ge=1), "The number of such losses at which the job ends"],
)
ema = component(
    Ema,
    "Keeps a moving average of the weights. The average is evaluated and becomes the final model.",
    decay=Annotated[float, Field(gt=0, lt=1), "The share of the average that each update keeps"],
    every=Annotated[int, Field(ge=1), "Optimizer steps between two updates of the average"],
    warmup=Annotated[bool, "Update more strongly in the first steps, so that the average forgets the initial weights"],
)
