"""TrainerState, TrainerControl, and the types that the Trainer's methods return, such as TrainOutput."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from footplate.contract.arguments import TrainingArguments


def watched_metric(args: TrainingArguments) -> str:
    """Returns the name of `metric_for_best_model`, or of the loss if it is None, in the metrics of an evaluation."""
    name = str(args.metric_for_best_model or "loss")
    return name if name.startswith(("eval_", "lm_eval/")) else f"eval_{name}"


def may_be_logged(args: TrainingArguments, state: TrainerState) -> bool:
    """Returns True if the current step is logged, or may be logged because it may end an epoch."""
    step = state.global_step + 1
    if args.logging_strategy == "steps" and step % state.logging_steps == 0:
        return True
    return args.logging_strategy == "epoch" or (step == 1 and args.logging_first_step)


def as_lists(value: Any) -> Any:
    """Converts arrays and tensors among a user's metrics to lists, for JSON files."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON: log numbers, texts, or lists of them")


@dataclass
class TrainerState:
    """A run's state with Hugging Face's fields, stored as JSON, so that each library continues the other's runs."""

    epoch: float = 0
    global_step: int = 0
    """The number of optimizer steps done."""
    max_steps: int = 0
    logging_steps: int = 500
    eval_steps: int = 500
    save_steps: int = 500
    train_batch_size: int | None = None
    num_train_epochs: int = 0
    num_input_tokens_seen: int = 0
    total_flos: float = 0
    log_history: list[dict[str, Any]] = field(default_factory=list)
    best_metric: float | None = None
    best_global_step: int | None = None
    best_model_checkpoint: str | None = None
    is_local_process_zero: bool = True
    is_world_process_zero: bool = True
    is_hyper_param_search: bool = False
    trial_name: str | None = None
    trial_params: dict[str, Any] | None = None
    stateful_callbacks: dict[str, Any] = field(default_factory=dict)

    def compute_steps(self, args: TrainingArguments, max_steps: int) -> None:
        """Sets the intervals in steps. An argument below 1 is a share of all steps."""
        for name in ("logging_steps", "eval_steps", "save_steps"):
            interval = getattr(args, name)
            if interval is None:  # keep the default, because callbacks divide by the interval
                continue
            setattr(self, name, max(1, math.ceil(max_steps * interval)) if 0 < interval < 1 else int(interval))

    def to_json_string(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True, default=as_lists) + "\n"

    def save_to_json(self, json_path: str | Path) -> None:
        Path(json_path).write_text(self.to_json_string(), encoding="utf-8")

    @classmethod
    def load_from_json(cls, json_path: str | Path) -> TrainerState:
        stored = json.loads(Path(json_path).read_text(encoding="utf-8"))
        field_names = {item.name for item in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in stored.items() if name in field_names})


class ExportableState:
    """The base of callbacks with state. Checkpoints store `state()`, and a resume restores its `attributes`."""

    def state(self) -> dict[str, Any]:
        raise NotImplementedError(
            f"{type(self).__name__} needs a method state() that returns a dict of args and attributes"
        )

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Any:
        instance = cls(**state["args"])
        vars(instance).update(state["attributes"])
        return instance


@dataclass
class TrainerControl(ExportableState):
    """The flags by which callbacks request the loop to log, evaluate, save or stop."""

    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_save: bool = False
    should_evaluate: bool = False
    should_log: bool = False

    def _new_training(self) -> None:
        self.should_training_stop = False

    def _new_epoch(self) -> None:
        self.should_epoch_stop = False

    def _new_step(self) -> None:
        self.should_log = self.should_evaluate = self.should_save = False

    def state(self) -> dict[str, Any]:
        return {"args": dataclasses.asdict(self), "attributes": {}}


class TrainOutput(NamedTuple):
    global_step: int
    training_loss: float
    metrics: dict[str, float]


class EvalPrediction:
    """The argument of `compute_metrics`: all predictions and labels as arrays. It unpacks into these two."""

    def __init__(self, predictions: Any, label_ids: Any, inputs: Any = None, losses: Any = None) -> None:
        self.predictions, self.label_ids, self.inputs, self.losses = predictions, label_ids, inputs, losses
        self.elements = tuple(value for value in (predictions, label_ids, inputs, losses) if value is not None)

    def __iter__(self) -> Any:
        return iter(self.elements)

    def __getitem__(self, index: int) -> Any:
        return self.elements[index]


class EvalLoopOutput(NamedTuple):
    predictions: Any
    label_ids: Any
    metrics: dict[str, float]
    num_samples: int


class PredictionOutput(NamedTuple):
    predictions: Any
    label_ids: Any
    metrics: dict[str, float]
