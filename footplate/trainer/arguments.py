"""TrainingArguments with the properties that need torch. The fields and their checks are in footplate/contract."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import GetPydanticSchema
from pydantic.dataclasses import dataclass

from footplate.contract import arguments as contract_arguments
from footplate.contract.arguments import deepspeed
from footplate.contract.arguments.argument_fields import CONFIG
from footplate.contract.arguments.parallelism import sizes
from footplate.trainer.accelerator_config import AcceleratorConfig
from footplate.trainer.launcher import Place, launched_on_cpu, launched_precision, set_launched_arguments
from footplate.trainer.names import Choice, HubStrategy, IntervalStrategy, OptimizerNames, SaveStrategy, SchedulerType

if TYPE_CHECKING:
    import torch
    from accelerate.state import PartialState


class ParallelMode(Choice):
    NOT_PARALLEL = "not_parallel"
    NOT_DISTRIBUTED = "not_distributed"
    DISTRIBUTED = "distributed"
    TPU = "tpu"


_CHOICES: dict[str, type[Choice]] = {
    "eval_strategy": IntervalStrategy,
    "logging_strategy": IntervalStrategy,
    "save_strategy": SaveStrategy,
    "lr_scheduler_type": SchedulerType,
    "optim": OptimizerNames,
    "hub_strategy": HubStrategy,
}


def _checked_as(kind: Any) -> GetPydanticSchema:
    """Makes pydantic check a field by the type `kind` instead of by the field's hint."""
    return GetPydanticSchema(lambda _, schema_of: schema_of(kind))


@dataclass(config=CONFIG)
class TrainingArguments(contract_arguments.TrainingArguments):
    """The arguments that a script hands to the Trainer.

    The fields below are those of the contract. Their hints are Hugging Face's, because its HfArgumentParser, which
    libraries subclass, cannot read ours.
    """

    if not TYPE_CHECKING:
        # ruff: noqa: RUF036 - Hugging Face's parser reads a union of three types by the second type
        include_num_input_tokens_seen: Annotated[
            str | bool, _checked_as(Literal["no", "all", "non_padding"] | bool)
        ] = "no"
        report_to: Annotated[None | str | list[str], _checked_as(str | list[str] | None)] = "none"
        trackio_static_space_id: Annotated[None | str, _checked_as(str | Literal[False] | None)] = None
        debug: Annotated[None | str | list[str], _checked_as(str | list[str] | None)] = ""
        fsdp: Annotated[None | str | list[str], _checked_as(bool | str | list[str] | None)] = None
        lr_scheduler_kwargs: Annotated[dict[str, Any] | str | None, _checked_as(dict[str, Any] | None)] = None

    @classmethod
    def of(cls, args: contract_arguments.TrainingArguments) -> TrainingArguments:
        """Returns arguments of this class with the same values. An object of this class is returned as is."""
        if isinstance(args, cls):
            return args
        if not isinstance(args, contract_arguments.TrainingArguments):
            raise TypeError(_other_arguments(type(args)))
        return cls(**{field.name: getattr(args, field.name) for field in dataclasses.fields(args)})

    def __post_init__(self) -> None:
        precision = launched_precision()
        if precision in ("bf16", "fp16") and not (self.bf16 or self.fp16):
            setattr(self, precision, True)
        self.use_cpu = self.use_cpu or launched_on_cpu()
        self.dataloader_pin_memory = self.dataloader_pin_memory and not self.use_cpu
        set_launched_arguments(self)
        if self.save_strategy == "best" and self.metric_for_best_model is None and not self.load_best_model_at_end:
            raise ValueError(
                "`args.metric_for_best_model` must be provided when save_strategy is best: set it, for example to "
                '"loss"'
            )
        super().__post_init__()
        if "KUBEFLOW_TRAINER_SERVER_URL" in os.environ:
            self.report_to = list(dict.fromkeys([*(self.report_to or ()), "kubeflow"]))
        # Enums, as Hugging Face has them, because users' callbacks read `args.eval_strategy.value`.
        for name, choices in _CHOICES.items():
            setattr(self, name, choices(getattr(self, name)))
        self.accelerator_config = AcceleratorConfig.of(self.accelerator_config)  # type: ignore[assignment]
        if isinstance(self.parallelism_config, dict):
            from accelerate import ParallelismConfig

            self.parallelism_config = ParallelismConfig(**self.parallelism_config)

    def to_dict(self) -> dict[str, Any]:
        accelerator = AcceleratorConfig.of(self.accelerator_config).to_dict()
        # It belongs to a process. Libraries compare the rest with the default, also in processes that set it.
        accelerator.pop("use_configured_state", None)
        values: dict[str, Any] = _named_dtypes(super().to_dict())
        return {
            **values,
            "accelerator_config": accelerator,
            "parallelism_config": sizes(self.parallelism_config),
        }

    def to_sanitized_dict(self) -> dict[str, Any]:
        """Returns the values for trackers, with everything but numbers, texts and booleans converted to text."""
        values = {**self.to_dict(), "train_batch_size": self.train_batch_size, "eval_batch_size": self.eval_batch_size}
        return {name: value if type(value) in (bool, int, float, str) else str(value) for name, value in values.items()}

    @contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """Runs the `with` block in the main process first. The others then find its results, for example in a cache."""
        state = self.distributed_state
        with state.local_main_process_first() if local else state.main_process_first():
            yield

    @property
    def distributed_state(self) -> PartialState:
        """Accelerate's PartialState, which has this process's rank and device, and the number of processes."""
        from accelerate.state import PartialState

        return PartialState(cpu=self.device.type == "cpu")

    @property
    def deepspeed_plugin(self) -> Any:
        """Returns Accelerate's plugin, of which libraries read `zero_stage`, or None without DeepSpeed."""
        if not self.deepspeed:
            return None
        from accelerate.utils import DeepSpeedPlugin

        config = deepspeed.read(self.deepspeed)
        return DeepSpeedPlugin(hf_ds_config=config)

    @property
    def hf_deepspeed_config(self) -> Any:
        return None if self.deepspeed_plugin is None else self.deepspeed_plugin.hf_ds_config

    @property
    def mixed_precision(self) -> str:
        return "fp16" if self.fp16 else "bf16" if self.bf16 else "no"

    @property
    def default_optim(self) -> str:
        return "adamw_torch_fused"

    @property
    def _setup_devices(self) -> torch.device:
        return self.device

    @property
    def _n_gpu(self) -> int:
        return self.n_gpu

    @_n_gpu.setter
    def _n_gpu(self, count: int) -> None:
        """Accepts 0 and 1, which scripts set so that a process uses at most one GPU. Here no process ever uses more."""
        if count > 1:
            raise ValueError(f"_n_gpu = {count}: one process uses one GPU here. Start one process for each GPU")

    @property
    def ddp_timeout_delta(self) -> timedelta:
        return timedelta(seconds=self.ddp_timeout)

    @property
    def parallel_mode(self) -> ParallelMode:
        return ParallelMode.DISTRIBUTED if self.world_size > 1 else ParallelMode.NOT_PARALLEL

    @property
    def place_model_on_device(self) -> bool | None:
        """Returns None: the Trainer moves a model unless it is split or quantized. A subclass may return False."""
        return None

    @property
    def device(self) -> torch.device:
        import torch

        if not torch.cuda.is_available() or self.use_cpu:
            return torch.device("cpu")
        return self.place.gpu if self.world_size > 1 else torch.device("cuda")

    @property
    def n_gpu(self) -> int:
        """The number of GPUs of this process."""
        return int(self.device.type == "cuda")

    @property
    def place(self) -> Place:
        return Place.here(self.local_rank)

    @property
    def world_size(self) -> int:
        return self.place.world

    @property
    def process_index(self) -> int:
        return self.place.rank

    @property
    def local_process_index(self) -> int:
        return self.place.local_rank

    @property
    def should_save(self) -> bool:
        """True if this process writes files."""
        return (self.local_process_index if self.save_on_each_node else self.process_index) == 0

    @property
    def should_log(self) -> bool:
        return (self.local_process_index if self.log_on_each_node else self.process_index) == 0

    def _set(self, **values: Any) -> TrainingArguments:
        """Sets values that are checked together. Nothing is set if one of them is wrong."""
        checked = dataclasses.replace(self, **values)
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(checked, field.name))
        return self

    def set_training(
        self,
        learning_rate: float = 5e-5,
        batch_size: int = 8,
        weight_decay: float = 0,
        num_epochs: float = 3,
        max_steps: int = -1,
        gradient_accumulation_steps: int = 1,
        seed: int = 42,
        activation_checkpointing: bool = False,
        gradient_checkpointing: bool | None = None,
    ) -> TrainingArguments:
        checkpointing = activation_checkpointing if gradient_checkpointing is None else gradient_checkpointing
        return self._set(
            do_train=True,
            learning_rate=learning_rate,
            per_device_train_batch_size=batch_size,
            weight_decay=weight_decay,
            num_train_epochs=num_epochs,
            max_steps=max_steps,
            gradient_accumulation_steps=gradient_accumulation_steps,
            seed=seed,
            activation_checkpointing=checkpointing,
            gradient_checkpointing=checkpointing,
        )

    def set_evaluate(
        self,
        strategy: str = "no",
        steps: int = 500,
        batch_size: int = 8,
        accumulation_steps: int | None = None,
        delay: float | None = None,
        loss_only: bool = False,
    ) -> TrainingArguments:
        return self._set(
            do_eval=strategy != "no",
            eval_strategy=strategy,
            eval_steps=steps,
            per_device_eval_batch_size=batch_size,
            eval_accumulation_steps=accumulation_steps,
            eval_delay=delay or 0,
            prediction_loss_only=loss_only,
        )

    def set_testing(self, batch_size: int = 8, loss_only: bool = False) -> TrainingArguments:
        return self._set(do_predict=True, per_device_eval_batch_size=batch_size, prediction_loss_only=loss_only)

    def set_save(
        self, strategy: str = "steps", steps: int = 500, total_limit: int | None = None, on_each_node: bool = False
    ) -> TrainingArguments:
        values = {"save_strategy": strategy, "save_steps": steps, "save_total_limit": total_limit}
        return self._set(**values, save_on_each_node=on_each_node)

    def set_logging(
        self,
        strategy: str = "steps",
        steps: int = 500,
        report_to: str | list[str] = "none",
        level: str = "passive",
        first_step: bool = False,
        nan_inf_filter: bool = False,
        on_each_node: bool = False,
        replica_level: str = "passive",
    ) -> TrainingArguments:
        return self._set(
            logging_strategy=strategy,
            logging_steps=steps,
            report_to=report_to,
            log_level=level,
            logging_first_step=first_step,
            logging_nan_inf_filter=nan_inf_filter,
            log_on_each_node=on_each_node,
            log_level_replica=replica_level,
        )

    def set_push_to_hub(
        self,
        model_id: str,
        strategy: str = "every_save",
        token: str | None = None,
        private_repo: bool | None = None,
        always_push: bool = False,
        revision: str | None = None,
    ) -> TrainingArguments:
        return self._set(
            push_to_hub=True,
            hub_model_id=model_id,
            hub_strategy=strategy,
            hub_token=token,
            hub_private_repo=private_repo,
            hub_always_push=always_push,
            hub_revision=revision,
        )

    def set_optimizer(
        self,
        name: str = "adamw_torch",
        learning_rate: float = 5e-5,
        weight_decay: float = 0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        args: str | None = None,
    ) -> TrainingArguments:
        values = {"optim": name, "learning_rate": learning_rate, "weight_decay": weight_decay, "adam_beta1": beta1}
        return self._set(**values, adam_beta2=beta2, adam_epsilon=epsilon, optim_args=args)

    def set_lr_scheduler(
        self, name: str = "linear", num_epochs: float = 3.0, max_steps: int = -1, warmup_steps: float = 0
    ) -> TrainingArguments:
        values = {"num_train_epochs": num_epochs, "max_steps": max_steps, "warmup_steps": warmup_steps}
        return self._set(lr_scheduler_type=name, **values)

    def set_dataloader(
        self,
        train_batch_size: int = 8,
        eval_batch_size: int = 8,
        drop_last: bool = False,
        num_workers: int = 0,
        pin_memory: bool = True,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
        multiprocessing_context: str | None = None,
        in_order: bool = True,
        auto_find_batch_size: bool = False,
        ignore_data_skip: bool = False,
        sampler_seed: int | None = None,
    ) -> TrainingArguments:
        return self._set(
            per_device_train_batch_size=train_batch_size,
            per_device_eval_batch_size=eval_batch_size,
            dataloader_drop_last=drop_last,
            dataloader_num_workers=num_workers,
            dataloader_pin_memory=pin_memory,
            dataloader_persistent_workers=persistent_workers,
            dataloader_prefetch_factor=prefetch_factor,
            dataloader_multiprocessing_context=multiprocessing_context,
            dataloader_in_order=in_order,
            auto_find_batch_size=auto_find_batch_size,
            ignore_data_skip=ignore_data_skip,
            data_seed=sampler_seed,
        )

    def get_process_log_level(self) -> int:
        """Returns the log level of this process, for the script's own loggers."""
        name = self.log_level if self.should_log else self.log_level_replica
        if name == "passive":
            return logging.getLogger("footplate").getEffectiveLevel()
        return logging.getLevelNamesMapping()["DEBUG" if name == "detail" else name.upper()]

    @property
    def train_batch_size(self) -> int:
        return self.per_device_train_batch_size * max(1, self.n_gpu)

    @property
    def eval_batch_size(self) -> int:
        return self.per_device_eval_batch_size * max(1, self.n_gpu)


def _named_dtypes(value: Any) -> Any:
    """Replaces each `torch.dtype` by its name, because JSON has no dtypes."""
    if isinstance(value, dict):
        return {name: _named_dtypes(item) for name, item in value.items()}
    is_dtype = type(value).__module__ == "torch" and type(value).__name__ == "dtype"
    return str(value).removeprefix("torch.") if is_dtype else value


def _other_arguments(kind: type) -> str:
    """Returns the error message for arguments whose class does not derive from our TrainingArguments."""
    name = f"{kind.__module__}.{kind.__qualname__}"
    if kind.__module__.partition(".")[0] == "transformers":
        return f"args are a {name}: import TrainingArguments from footplate too"
    library = kind.__module__.partition(".")[0]
    base = next((parent for parent in kind.__mro__ if parent.__module__.partition(".")[0] == "transformers"), None)
    if base is None:
        return f"args are a {name}, which does not derive from footplate.TrainingArguments"
    return (
        f"args are a {name}, which derives from {base.__module__}.{base.__qualname__}: call footplate.install() before "
        f"{library if library != '__main__' else 'the script'} imports it, or derive from footplate.TrainingArguments"
    )
