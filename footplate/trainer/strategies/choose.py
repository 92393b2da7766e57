"""Chooses the strategy from the arguments, the launcher and the model, or refuses a combination that cannot work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from footplate.contract.arguments import TrainingArguments
from footplate.contract.arguments.fsdp import SHARDED
from footplate.contract.errors import NotAvailableYet
from footplate.trainer.launcher import Place, refuse_unsupported
from footplate.trainer.strategies.fsdp_settings import FsdpSettings

if TYPE_CHECKING:
    from footplate.trainer.strategies.single import BuildArguments, Single


def choose(args: TrainingArguments, model: Any = None, build: BuildArguments = dict) -> Single:
    """Returns the strategy that the arguments, the launcher's environment variables and the model require.

    `build` may change the arguments with which the strategy makes its Accelerator. Only the chosen strategy's modules
    are imported.
    """
    place = Place.here(args.local_rank)
    refuse_unsupported(place.world)
    config: Any = args.parallelism_config or _as_loaded(model)
    if config is not None:
        refuse_parallelism(config, args, place.world)
        if config.tp_size > 1:
            from footplate.trainer.strategies.tensor_parallel import TensorParallel

            return TensorParallel(args, place, config, build=build)
        if config.cp_size > 1:
            from footplate.trainer.strategies.context_parallel import ContextParallel

            return ContextParallel(args, place, config.cp_size, build=build)
    if args.fsdp:
        _refuse_one("fsdp", place)
        if FsdpSettings.of(args).version == 1:
            from footplate.trainer.strategies.fsdp1 import Fsdp1

            return Fsdp1(args, place, build=build)
        from footplate.trainer.strategies.fsdp import Fsdp

        return Fsdp(args, place, build=build)
    if args.deepspeed:
        if not place.is_launched:
            _refuse_one("deepspeed", place)
        from footplate.trainer.strategies.deepspeed import DeepSpeed

        return DeepSpeed(args, place, build=build)
    if place.world == 1:
        from footplate.trainer.strategies.single import Single

        return Single(args, build=build)
    from footplate.trainer.strategies.ddp import Ddp

    return Ddp(args, place, build=build)


def _as_loaded(model: Any) -> Any:
    """Returns the parallelism of a model that transformers has split while loading it, or None."""
    size = getattr(model, "tp_size", None)
    if not isinstance(size, int) or size < 2:
        return None
    from accelerate import ParallelismConfig

    return ParallelismConfig(tp_size=size, dp_shard_size=model.config.distributed_config.dp_size)


def _refuse_one(name: str, place: Place) -> None:
    if place.world == 1:
        raise ValueError(
            f"{name} shards a model over processes, but there is only one: start the script with torchrun "
            f"--nproc-per-node 2 or more, or leave {name} out"
        )


def refuse_parallelism(config: Any, args: TrainingArguments, world: int) -> None:
    """Refuses a `parallelism_config` that cannot work, before any connection is opened."""
    if config.sp_size > 1:
        raise NotAvailableYet(
            f"parallelism_config has sp_size {config.sp_size}, which needs DeepSpeed and is not supported",
            hint="split long samples with cp_size instead",
        )
    if config.cp_size > 1:
        _refuse_beside_context_parallel(args, config, world)
        return
    if config.dp_replicate_size > 1 and (args.fsdp or config.dp_shard_size > 1):
        raise NotAvailableYet(
            f"parallelism_config has dp_replicate_size {config.dp_replicate_size}, which makes copies of a sharded "
            "model. Hybrid sharding is not supported",
            hint=f"leave dp_replicate_size out, and set dp_shard_size to "
            f"{config.dp_replicate_size * config.dp_shard_size}",
        )
    if config.total_size not in (1, world):
        sizes = ", ".join(f"{name}_size {size}" for name, size in config._sizes.items() if size > 1)
        raise ValueError(
            f"parallelism_config has {sizes}, which needs {config.total_size} processes, but {world} are running: "
            f"start {config.total_size} with torchrun --nproc-per-node, or change the sizes"
        )
    if config.tp_size > 1:
        _refuse_beside_tensor_parallel(args, config)
    elif config.dp_shard_size > 1 and not args.fsdp:
        raise ValueError(
            f"parallelism_config has dp_shard_size {config.dp_shard_size}, which needs FSDP, but fsdp is not "
            "set: set fsdp=True"
        )


def _refuse_beside_tensor_parallel(args: TrainingArguments, config: Any) -> None:
    prefix = f"parallelism_config has tp_size {config.tp_size}, but"
    if args.deepspeed:
        raise ValueError(f"{prefix} deepspeed shards the model in another way: leave deepspeed or tp_size out")
    if args.fp16:
        raise ValueError(f"{prefix} fp16's loss scale is not shared among its processes: use bf16, which has none")
    settings = FsdpSettings.of(args)
    if settings.state_dict_type == SHARDED:
        raise ValueError(
            f"{prefix} checkpoints cannot be sharded with tp_size: leave fsdp_config's state_dict_type out"
        )
    if settings.version == 1:
        raise ValueError(f"{prefix} FSDP 1 does not support split parameters: leave fsdp_config's version out")
    if args.fsdp and config.dp_shard_size == 1:
        raise ValueError(
            f"{prefix} fsdp has no other processes to shard over: give dp_shard_size too, or leave fsdp out"
        )


def _refuse_beside_context_parallel(args: TrainingArguments, config: Any, world: int) -> None:
    prefix = f"parallelism_config has cp_size {config.cp_size}, but"
    if world % config.cp_size:
        raise ValueError(
            f"{prefix} there are {world} processes, which is not a multiple of cp_size: change --nproc-per-node of "
            "torchrun, or cp_size"
        )
    excluded = {
        f"tp_size {config.tp_size} splits the model": config.tp_size > 1,
        f"dp_shard_size {config.dp_shard_size} shards the model": config.dp_shard_size > 1,
        "fsdp shards the model": args.fsdp,
        "deepspeed shards the model": args.deepspeed,
    }
    for conflict in (name for name, is_asked in excluded.items() if is_asked):
        raise NotAvailableYet(
            f"{prefix} {conflict}: with cp_size, each process must have the whole model",
            hint="leave one of them out; cp_size alone already gives each group of processes its own batches",
        )
    changes = {
        "torch_compile": args.torch_compile,
        "use_liger_kernel": args.use_liger_kernel,
        "neftune_noise_alpha": args.neftune_noise_alpha is not None,
    }
    for name in (name for name, is_asked in changes.items() if is_asked):
        raise NotAvailableYet(f"{prefix} {name} needs whole samples", hint="leave one of them out")
