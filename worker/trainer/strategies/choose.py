"""Which strategy the arguments and the launcher ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract.arguments import TrainingArguments
from contract.errors import NotAvailableYet
from worker.trainer.strategies.place import Place

if TYPE_CHECKING:
    from worker.trainer.strategies.single import Single


def choose(args: TrainingArguments) -> Single:
    """What several processes need is imported where there are several; Accelerate, where there is a Trainer."""
    place = Place.here(args.local_rank)
    if args.fsdp:
        _refuse_one("fsdp", place)
        from worker.trainer.strategies.fsdp import Fsdp
        from worker.trainer.strategies.fsdp_settings import FsdpSettings

        settings = FsdpSettings.of(args)
        if settings.version == 1:
            raise NotAvailableYet(
                "fsdp_config's version is 1, whose checkpoints cannot be gathered here",
                hint="leave version out: 2 shards the same, and transformers gives 1 up",
            )
        return Fsdp(args, place, settings)
    if args.deepspeed:
        if not place.is_launched:
            _refuse_one("deepspeed", place)
        from worker.trainer.strategies.deepspeed import DeepSpeed

        return DeepSpeed(args, place)
    if place.world == 1:
        from worker.trainer.strategies.single import Single

        return Single(args)
    from worker.trainer.strategies.ddp import Ddp

    return Ddp(args, place)


def _refuse_one(name: str, place: Place) -> None:
    if place.world == 1:
        raise ValueError(
            f"{name} shares a model out among processes, and there is one: start the script with torchrun "
            f"--nproc-per-node 2 or more, or leave {name} out"
        )
