"""Chooses the strategy from the arguments, the launcher and the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from footplate.contract.arguments import TrainingArguments
from footplate.trainer.launcher import Place
from footplate.trainer.strategies import launcher_arguments, parallelism
from footplate.trainer.strategies.fsdp_settings import FsdpSettings

if TYPE_CHECKING:
    from footplate.trainer.strategies.single import BuildArguments, Single


def choose(args: TrainingArguments, model: Any = None, build: BuildArguments = dict) -> Single:
    """Returns the strategy that the arguments, the launcher's environment variables and the model require.

    `build` may change the arguments with which the strategy makes its Accelerator. Only the chosen strategy's modules
    are imported.
    """
    place = Place.here(args.local_rank)
    launcher_arguments.refuse(place.world)
    config: Any = args.parallelism_config or _as_loaded(model)
    if config is not None:
        parallelism.refuse(config, args, place.world)
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
