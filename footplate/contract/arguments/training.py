"""TrainingArguments as a mutable pydantic dataclass, which checks values and rules, and converts types: "5" becomes 5.

`read.py` parses the arguments of a spec without converting types.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
from contextlib import suppress
from enum import Enum
from typing import Any, ClassVar

from pydantic import model_validator
from pydantic.dataclasses import dataclass, is_pydantic_dataclass
from pydantic_core import ArgsKwargs

from footplate.contract.arguments.argument_fields import CONFIG, Fields, GenerationFields
from footplate.contract.arguments.consistency import disagreements
from footplate.contract.arguments.legacy import translated
from footplate.contract.arguments.not_supported import CHOICES_NOT_YET, NOT_YET, SERVER_OWNED
from footplate.contract.errors import NotAvailableYet, did_you_mean


@dataclass(config=CONFIG)
class TrainingArguments(Fields):
    """Training arguments with Hugging Face's names, defaults and meaning.

    Unsupported names are refused with a reason.
    """

    # The fields that may be given as JSON text. A library's subclass adds fields of its own.
    _VALID_DICT_FIELDS: ClassVar[list[str]] = [
        "accelerator_config", "fsdp_config", "deepspeed", "activation_checkpointing_kwargs",
        "gradient_checkpointing_kwargs", "lr_scheduler_kwargs",
    ]  # fmt: skip

    # The names that a spec's `training` states. `good_arguments` sets this on the instance.
    stated_names: ClassVar[tuple[str, ...] | None] = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_not_there(cls, values: Any) -> Any:
        arguments = values.kwargs if isinstance(values, ArgsKwargs) else values
        if not isinstance(arguments, dict):
            return values
        objects = {*TrainingArguments._VALID_DICT_FIELDS, "liger_kernel_config", "parallelism_config"}
        arguments = {
            name: _parsed_json(value) if name in objects else value for name, value in translated(arguments).items()
        }
        fields = [field.name for field in dataclasses.fields(cls)]
        for name, value in arguments.items():
            if name not in fields and name not in NOT_YET:
                hint = did_you_mean(name, fields) or "help(TrainingArguments) lists them all"
                raise TypeError(f"{cls.__name__} has no argument {name!r}: {hint}")
            if name in NOT_YET and not NOT_YET[name].accepts(value):
                raise NotAvailableYet(f"{name} is not available yet", hint=NOT_YET[name].instead)
            declined_choices = CHOICES_NOT_YET.get(name, {})
            if isinstance(value, str) and value in declined_choices:
                raise NotAvailableYet(f"{name} {str(value)!r} is not available", hint=declined_choices[value])
        supported = {name: value for name, value in arguments.items() if name not in NOT_YET}
        return ArgsKwargs(values.args, supported) if isinstance(values, ArgsKwargs) else supported

    def __post_init__(self) -> None:
        arguments_class = next(kind for kind in type(self).__mro__ if "__dataclass_fields__" in vars(kind))
        if not is_pydantic_dataclass(arguments_class):
            self._take_checked()
        for name in self._VALID_DICT_FIELDS:
            setattr(self, name, _parsed_json(getattr(self, name)))
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
            self.greater_is_better = not self.metric_for_best_model.endswith(("loss", "loss_exact"))

    def _take_checked(self) -> None:
        """Checks the values of a subclass that a script made with `dataclasses.dataclass`, without pydantic."""
        kind = next(kind for kind in type(self).__mro__ if is_pydantic_dataclass(kind))
        names = [field.name for field in dataclasses.fields(kind)]
        checked = kind(**{name: getattr(self, name) for name in names})
        for name in names:
            setattr(self, name, getattr(checked, name))

    @property
    def follows_a_metric(self) -> bool:
        """True if the schedule changes the learning rate after evaluations, by a metric."""
        return self.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy")

    def _resolve_activations(self) -> None:
        """Sets activation_checkpointing and gradient_checkpointing, its older name, to the same value."""
        for name in ("activation_checkpointing", "activation_checkpointing_kwargs"):
            older = name.replace("activation", "gradient")
            if getattr(self, name) is None:
                setattr(self, name, getattr(self, older))
            setattr(self, older, getattr(self, name))
        if self.activation_checkpointing is None:
            self.activation_checkpointing = self.gradient_checkpointing = False
        options = _parsed_json(self.activation_checkpointing_kwargs)
        self.activation_checkpointing_kwargs = self.gradient_checkpointing_kwargs = options

    @model_validator(mode="after")
    def _must_agree(self) -> TrainingArguments:
        problems = [f"{clash.detail}: {clash.hint}" for clash in disagreements(self)]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def __getattr__(self, name: str) -> Any:
        """Returns the neutral value of an unsupported argument, because Hugging Face callbacks read it."""
        if name in NOT_YET:
            return NOT_YET[name].neutral
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Returns the warm-up in steps. Below 1, `warmup_steps` is a share of all steps."""
        share = self.warmup_steps < 1
        return math.ceil(num_training_steps * self.warmup_steps) if share else int(self.warmup_steps)

    def to_dict(self) -> dict[str, Any]:
        """Returns all arguments by name, with tokens replaced by placeholders and members of enums by their values."""
        values = {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self) if field.init}
        return {
            name: f"<{name.upper()}>" if value and name.endswith("_token") else value for name, value in values.items()
        }

    def to_json_string(self) -> str:
        return json.dumps(self.to_dict(), indent=2)


@dataclass(config=CONFIG)
class Seq2SeqTrainingArguments(GenerationFields, TrainingArguments):
    """The training arguments of a spec that has one of the arguments of `GenerationFields`."""


def _plain(value: Any) -> Any:
    """Returns the value of an enum's member, and lists of members as lists of values."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value


def _parsed_json(value: Any) -> Any:
    """Returns the parsed value if it is the text of a JSON object, as from a command line, else the value itself."""
    if isinstance(value, str) and value.startswith("{"):
        with suppress(ValueError):
            return json.loads(value)
    return value


def _names(value: str | list[str] | None) -> list[str]:
    """Returns the names in a text or list. The text `none` and None have no names."""
    names = value.split() if isinstance(value, str) else list(value or [])
    return [] if names == ["none"] else names


def changed(args: TrainingArguments) -> dict[str, Any]:
    """Returns the arguments that differ from their defaults, except for those that a spec must not have."""
    kind = Seq2SeqTrainingArguments if isinstance(args, Seq2SeqTrainingArguments) else TrainingArguments
    values = vars(args)
    # Most values are the same object as the default. `is` is much faster than a comparison of the values.
    return {
        name: value for name, default in _defaults(kind) if (value := values[name]) is not default and value != default
    }


def stated(args: TrainingArguments) -> dict[str, Any]:
    """Returns the arguments that the spec contains, including values that equal our defaults.

    A library's trainer has other defaults, which must apply to arguments that the spec does not contain.
    """
    return changed(args) if args.stated_names is None else {name: getattr(args, name) for name in args.stated_names}


@functools.cache
def _defaults(kind: type[TrainingArguments]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in kind().to_dict().items() if name not in SERVER_OWNED]


OF_THE_DATA = ("seed", "data_seed", "dataloader_drop_last", "train_sampling_strategy")
"""Arguments that decide the order of the samples."""


def fixed(args: TrainingArguments) -> tuple[str, ...]:
    """Returns the names of the arguments that must not change when a run resumes from a checkpoint.

    With `ignore_data_skip`, the order of the samples may change.
    """
    return ("optim",) if args.ignore_data_skip else ("optim", *OF_THE_DATA)
