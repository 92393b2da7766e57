"""The arguments that must not change when training resumes, because they give the checkpoint its meaning."""

from __future__ import annotations

from footplate.contract.arguments.training import TrainingArguments

OF_THE_DATA = (
    "seed",
    "data_seed",
    "dataloader_drop_last",
    "train_sampling_strategy",
)
"""Arguments that decide the order of the samples. A step of another size continues at the same sample."""


def fixed(args: TrainingArguments) -> tuple[str, ...]:
    """Returns the arguments that must equal those of the run that wrote the checkpoint.

    `optim` gives the optimizer's state its meaning. A run that skips no data does not need its place in the data.
    """
    return ("optim",) if args.ignore_data_skip else ("optim", *OF_THE_DATA)
