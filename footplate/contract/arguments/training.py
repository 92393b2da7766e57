"""TrainingArguments: all groups as one flat, mutable dataclass. Lax in Python, as people are; strict in `read.py`."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
from contextlib import suppress
from typing import Any

from pydantic import model_validator
from pydantic.dataclasses import dataclass, is_pydantic_dataclass
from pydantic_core import ArgsKwargs

from footplate.contract.arguments import distributed, groups
from footplate.contract.arguments.consistency import disagreements
from footplate.contract.arguments.groups import CONFIG
from footplate.contract.arguments.legacy import translated
from footplate.contract.arguments.not_supported import CHOICES_NOT_YET, NOT_YET
from footplate.contract.errors import NotAvailableYet, did_you_mean

_OBJECTS = frozenset(
    {
        "accelerator_config", "deepspeed", "fsdp_config", "liger_kernel_config", "lr_scheduler_kwargs",
        "parallelism_config",
    }
)  # fmt: skip


# A dataclass takes its fields from the last base first: read the bases from the bottom up. output_dir comes first.
@dataclass(config=CONFIG)
class TrainingArguments(
    groups.Flags,
    groups.Debugging,
    distributed.Sharding,
    distributed.Ddp,
    distributed.Processes,
    groups.DataLoading,
    groups.Hardware,
    groups.Reproducibility,
    groups.Checkpointing,
    groups.BestModel,
    groups.Hub,
    groups.Evaluation,
    groups.Tracking,
    groups.LogLevels,
    groups.Logging,
    groups.Further,
    groups.Kernels,
    groups.Compilation,
    groups.Activations,
    groups.Precision,
    groups.Regularization,
    groups.Optimizer,
    groups.LearningRate,
    groups.Duration,
    groups.Output,
):
    """Hugging Face's names, defaults and meaning. A name of theirs that is not here yet is refused with the reason."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_not_there(cls, values: Any) -> Any:
        given = values.kwargs if isinstance(values, ArgsKwargs) else values
        if not isinstance(given, dict):
            return values
        given = {name: _read(value) if name in _OBJECTS else value for name, value in translated(given).items()}
        fields = [field.name for field in dataclasses.fields(cls)]
        for name, value in given.items():
            if name not in fields and name not in NOT_YET:
                near = did_you_mean(name, fields) or "help(TrainingArguments) lists them all"
                raise TypeError(f"{cls.__name__} has no argument {name!r}: {near}")
            if name in NOT_YET and not NOT_YET[name].accepts(value):
                raise NotAvailableYet(f"{name} is not available yet", hint=NOT_YET[name].instead)
            declined = CHOICES_NOT_YET.get(name, {})
            if isinstance(value, str) and value in declined:
                raise NotAvailableYet(f"{name} {str(value)!r} is not available", hint=declined[value])
        known = {name: value for name, value in given.items() if name not in NOT_YET}
        return ArgsKwargs(values.args, known) if isinstance(values, ArgsKwargs) else known

    def __post_init__(self) -> None:
        made = next(kind for kind in type(self).__mro__ if "__dataclass_fields__" in vars(kind))
        if not is_pydantic_dataclass(made):
            self._take_checked()
        self.output_dir = os.path.expanduser(self.output_dir or "trainer_output")
        if isinstance(self.include_num_input_tokens_seen, bool):
            self.include_num_input_tokens_seen = "all" if self.include_num_input_tokens_seen else "no"
        self._resolve_activations()
        if self.torch_compile_mode is not None or self.torch_compile_backend is not None:
            self.torch_compile = True
        if self.torch_compile and self.torch_compile_backend is None:
            self.torch_compile_backend = "inductor"
        self.report_to = _names(self.report_to)
        self.debug = _names(self.debug)
        if self.eval_strategy != "no":
            self.do_eval = True
        if self.eval_strategy == "steps" and not self.eval_steps:
            self.eval_steps = self.logging_steps
        wants_best = self.load_best_model_at_end or self.save_strategy == "best"
        if self.metric_for_best_model is None and (wants_best or self.follows_a_metric):
            self.metric_for_best_model = "loss"
        if self.greater_is_better is None and self.metric_for_best_model is not None:
            self.greater_is_better = not self.metric_for_best_model.endswith("loss")

    def _take_checked(self) -> None:
        """A subclass made by `dataclasses.dataclass`, as scripts have them: nothing has looked at its values yet."""
        kind = next(kind for kind in type(self).__mro__ if is_pydantic_dataclass(kind))
        names = [field.name for field in dataclasses.fields(kind)]
        checked = kind(**{name: getattr(self, name) for name in names})
        for name in names:
            setattr(self, name, getattr(checked, name))

    @property
    def follows_a_metric(self) -> bool:
        """The rate moves after evaluations, by what they found."""
        return self.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy")

    def _resolve_activations(self) -> None:
        """The older names mirror the newer ones, so that who reads them reads what is so."""
        for name in ("activation_checkpointing", "activation_checkpointing_kwargs"):
            older = name.replace("activation", "gradient")
            if getattr(self, name) is None:
                setattr(self, name, getattr(self, older))
            setattr(self, older, getattr(self, name))
        if self.activation_checkpointing is None:
            self.activation_checkpointing = self.gradient_checkpointing = False
        read = _read(self.activation_checkpointing_kwargs)
        self.activation_checkpointing_kwargs = self.gradient_checkpointing_kwargs = read

    @model_validator(mode="after")
    def _must_agree(self) -> TrainingArguments:
        problems = [f"{found.detail}: {found.hint}" for found in disagreements(self)]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def __getattr__(self, name: str) -> Any:
        """Callbacks written for Hugging Face's arguments read names that we refuse: they read the neutral value."""
        if name in NOT_YET:
            return NOT_YET[name].neutral
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Warm-up in steps: a share of all steps where it is below 1."""
        share = self.warmup_steps < 1
        return math.ceil(num_training_steps * self.warmup_steps) if share else int(self.warmup_steps)

    def to_dict(self) -> dict[str, Any]:
        """Without secrets: it goes into checkpoints, trackers and cards."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            name: f"<{name.upper()}>" if value and name.endswith("_token") else value for name, value in values.items()
        }

    def to_json_string(self) -> str:
        return json.dumps(self.to_dict(), indent=2)


@dataclass(config=CONFIG)
class Seq2SeqTrainingArguments(groups.Generation, TrainingArguments):
    """What `training` is where it says anything of generating."""


def _read(value: Any) -> Any:
    """An object may come as JSON, as from a command line. What is none stays as it is, for its own check to say so."""
    with suppress(ValueError):
        return json.loads(value) if isinstance(value, str) and value.startswith("{") else value
    return value


def _names(value: str | list[str] | None) -> list[str]:
    """`none`, nothing and an empty list are the same."""
    names = value.split() if isinstance(value, str) else list(value or [])
    return [] if names == ["none"] else names


def changed(args: TrainingArguments) -> dict[str, Any]:
    """What differs from the defaults and may stand in a spec: `read_arguments(changed(args))` gives the same again."""
    kind = Seq2SeqTrainingArguments if isinstance(args, Seq2SeqTrainingArguments) else TrainingArguments
    return {name: value for name, default in _defaults(kind) if (value := getattr(args, name)) != default}


@functools.cache
def _defaults(kind: type[TrainingArguments]) -> list[tuple[str, Any]]:
    from footplate.contract.arguments.not_supported import SERVER_OWNED

    return [(name, value) for name, value in kind().to_dict().items() if name not in SERVER_OWNED]
