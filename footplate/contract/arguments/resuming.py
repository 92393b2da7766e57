"""What stays as it was when training continues from a checkpoint, because the checkpoint means nothing otherwise."""

from __future__ import annotations

from footplate.contract.arguments.training import TrainingArguments

OF_THE_DATA = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "seed",
    "data_seed",
    "dataloader_drop_last",
    "train_sampling_strategy",
)
"""Where in the data a step is."""


def fixed(args: TrainingArguments) -> tuple[str, ...]:
    """Arguments that cannot be others than those of the run that wrote the checkpoint. `optim` says what the
    optimizer's state means; who skips no data has no place in it to keep."""
    return ("optim",) if args.ignore_data_skip else ("optim", *OF_THE_DATA)
