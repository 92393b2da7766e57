"""The rules for a job's processes and strategy: the number of processes, the Trainer's arguments, and contradictions.

    resources                                       processes on each node
    {}                                              one process on one slot
    {"processes_per_node": 2}                       two processes on two slots, each with a GPU if the node has GPUs
    {"gpus_per_node": 2}                            two processes, each with a GPU
    {"gpus_per_node": 2, "processes_per_node": 1}   one process that sees both GPUs

Several processes use DDP unless the spec names another strategy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from footplate.contract.arguments import TrainingArguments, deepspeed
from footplate.contract.arguments.fsdp import FsdpConfig
from footplate.contract.body import pointer_to
from footplate.contract.errors import Problem
from footplate.contract.fields import Json
from footplate.contract.machine import DeepSpeed, Fsdp

if TYPE_CHECKING:
    from footplate.contract.spec import JobSpec

STRATEGY = "/resources/strategy"
SET_PROCESSES = 'set the number of processes, such as "processes_per_node": 2 or "gpus_per_node": 2'


def strategy_arguments(strategy: Any) -> Json:
    """Returns the training arguments that are equivalent to the strategy in a spec's resources."""
    if strategy.type == "fsdp":
        return {"fsdp": True, "fsdp_config": strategy.config or None}
    if strategy.type == "deepspeed":
        return {"deepspeed": strategy.config}
    return {}


def shape_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yields a problem if strategy, number of processes and number of GPUs contradict each other."""
    resources = spec.resources
    kind, world = resources.strategy.type, resources.world_size
    processes, gpus = resources.processes_per_node or 0, resources.gpus_per_node or 0
    if processes > 1 and gpus and gpus != processes:
        detail = f"is {processes}, but /resources/gpus_per_node is {gpus}: each process needs a GPU of its own"
        yield Problem(
            "/resources/processes_per_node", "disagreement", detail, "leave it out, or write the same in both"
        )
    if kind == "single" and world > 1:
        field = "processes_per_node" if processes > 1 else "gpus_per_node" if gpus > 1 else "nodes"
        detail = f"is single, which is one process, but with /resources/{field} the job has {world} processes"
        hint = 'write "ddp"' + (', or "processes_per_node": 1 for one process that sees all GPUs' if gpus > 1 else "")
        yield Problem(f"{STRATEGY}/type", "disagreement", detail, hint)
    if kind in _SHARING and world == 1 and (kind == "fsdp" or not (processes or gpus)):
        detail = f"is {kind}, which shares the work among processes, but the job has one process"
        yield Problem(f"{STRATEGY}/type", "disagreement", detail, SET_PROCESSES)


_SHARING = ("ddp", "fsdp", "deepspeed")


def _of_deepspeed(config: Json, training: TrainingArguments, world: int) -> Iterator[Problem]:
    at = f"{STRATEGY}/config"
    if not config:
        hint = 'for example {"zero_optimization": {"stage": 2}}'
        yield Problem(at, "missing", "DeepSpeed needs a config, but there is none", hint)
    refusals = list(deepspeed.refusals(config, training))
    for name, why in refusals:
        yield Problem(at + pointer_to(*name.split(".")), "disagreement", why, "leave it out of the config")
    config = deepspeed.read(config)
    for entry in deepspeed.fill(config, training, per_process=training.per_device_train_batch_size, world=world):
        text = str(entry.written)[:60]
        detail = f"is {text}, but /training/{entry.name} is {entry.value}"
        if entry.path == "train_batch_size":
            size, accumulate = training.per_device_train_batch_size, training.gradient_accumulation_steps
            detail = (
                f"is {text}, but a step has {entry.value} samples: /training/per_device_train_batch_size is {size}, "
                f"gradient_accumulation_steps {accumulate}, over {world} processes"
            )
        yield Problem(at + pointer_to(*entry.path.split(".")), "disagreement", detail, 'write "auto" here')
    for path in deepspeed.autos(config):
        is_refused = any(path.startswith(f"{name}.") for name, _ in refusals)
        if path.removeprefix("zero_optimization.") not in deepspeed.OF_THE_MODEL and not is_refused:
            detail = "is auto, but no argument sets it"
            yield Problem(at + pointer_to(*path.split(".")), "disagreement", detail, "give a value")


def sharding_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yields the problems of FSDP's or DeepSpeed's config, and of spec fields that work with neither of them."""
    strategy = spec.resources.strategy
    if not isinstance(strategy, Fsdp | DeepSpeed):
        return
    kind = strategy.type
    if spec.loop is not None:
        detail = f"is {kind}, but a training loop or script of your own sets up the sharding itself"
        hint = 'use "ddp", and give your Accelerator an FSDP or DeepSpeed plugin'
        yield Problem(f"{STRATEGY}/type", "disagreement", detail, hint)
        return
    if isinstance(strategy, DeepSpeed):
        yield from _of_deepspeed(strategy.config, spec.training, spec.resources.world_size)
    else:
        try:
            FsdpConfig.read(strategy.config, spec.training)
        except (ValueError, TypeError) as error:
            hint = "the config takes the options of training.fsdp_config: docs/guides/strategies.md"
            yield Problem(f"{STRATEGY}/config", "disagreement", str(error)[:500], hint)
    if spec.optimizers:
        detail = f"several optimizers cannot be used with {kind}, which shards the model over the processes"
        yield Problem("/optimizers", "disagreement", detail, 'use "ddp", or one optimizer')
    if built_in_args(spec).get("quantization"):
        detail = f"needs whole weights in each process, but {STRATEGY}/type is {kind}, which shards the model"
        yield Problem("/model/args/quantization", "disagreement", detail, 'use "ddp", or leave quantization out')
    peft = built_in_args(spec).get("peft")
    if isinstance(peft, dict) and peft.get("merge") is True:
        detail = f"merges the adapter into the whole model, but {STRATEGY}/type is {kind}, which shards the model"
        hint = 'use "ddp", or leave merge out and merge the job\'s outputs'
        yield Problem("/model/args/peft/merge", "disagreement", detail, hint)
    if kind == "fsdp" and getattr(spec.training, "predict_with_generate", False):
        detail = f"needs the whole model in each process, but {STRATEGY}/type is fsdp, which shards the model"
        yield Problem("/training/predict_with_generate", "disagreement", detail, 'use "ddp", or leave it out')


def reference_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yields a problem for a trainer of TRL that keeps a second model, which TRL cannot shard with our strategies."""
    trainer, strategy = spec.trainer, spec.resources.strategy
    if trainer is None or not isinstance(strategy, Fsdp | DeepSpeed) or built_in_args(spec).get("peft"):
        return
    beta = trainer.args.get("beta", _BETA[trainer.use]) if trainer.use in _BETA else 0
    if trainer.use in _KEEP_A_REFERENCE or beta:
        detail = (
            f"{trainer.use} keeps a second model to compare with, but {STRATEGY}/type is {strategy.type}, which "
            "shards the model"
        )
        hint = 'use "ddp", or train an adapter (peft): TRL then compares with the model without it'
        yield Problem("/trainer/use", "disagreement", detail, hint)


_KEEP_A_REFERENCE = ("trl/dpo", "trl/kto")
_BETA = {"trl/grpo": 0.0, "trl/rloo": 0.05}
"""The defaults of `beta` of the trainers that keep a second model only if it is not 0."""


def built_in_args(spec: JobSpec) -> Json:
    """Returns the arguments of a model `hf/…`. Returns {} for other models, whose arguments may have any meaning."""
    return spec.model.args if spec.model is not None and spec.model.use.startswith("hf/") else {}


def several_processes_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yields the problems of arguments that do not work with this number of processes."""
    training, world = spec.training, spec.resources.world_size
    if world == 1:
        return
    for name, why in _ONE_PROCESS_DOES.items():
        if getattr(training, name):
            detail = f"{why}, but the job has {world} processes, which must all do the same"
            yield Problem(f"/training/{name}", "disagreement", detail, "leave it out")
    shares = training.accelerator_config
    if isinstance(shares, dict) and shares.get("split_batches"):
        for name in ("per_device_train_batch_size", "per_device_eval_batch_size"):
            if (size := getattr(training, name)) % world:
                detail = (
                    f"is {size}, which split_batches shares among {world} processes: it is not a multiple of {world}"
                )
                yield Problem(f"/training/{name}", "does_not_divide", detail, "change it, or leave split_batches out")


_ONE_PROCESS_DOES = {
    "auto_find_batch_size": "changes the batch size of one process",
    "save_in_background": "writes the checkpoint in a thread of one process",
}
