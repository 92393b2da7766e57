"""Which strategy the arguments and the launcher ask for."""

from __future__ import annotations

from contract.arguments import TrainingArguments
from contract.errors import NotAvailableYet
from worker.trainer.strategies.place import Place
from worker.trainer.strategies.single import Single


def choose(args: TrainingArguments) -> Single:
    """What several processes need is imported where there are several."""
    place = Place.here(args.local_rank)
    for name in ("fsdp", "deepspeed"):
        if getattr(args, name):
            _refuse_one(name, place)
            raise NotAvailableYet(f"{name} is not available yet", hint="leave it out: the processes train with DDP")
    if place.world == 1:
        return Single(args)
    from worker.trainer.strategies.ddp import Ddp

    return Ddp(args, place)


def _refuse_one(name: str, place: Place) -> None:
    if place.world == 1:
        raise ValueError(
            f"{name} shares a model out among processes, and there is one: start the script with torchrun "
            f"--nproc-per-node 2 or more, or leave {name} out"
        )
