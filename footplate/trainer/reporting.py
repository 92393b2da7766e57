"""Writes logs and metrics to the log history, to callbacks, to standard output and to JSON files."""

from __future__ import annotations

import datetime
import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.loss_total import LossSum
from footplate.trainer.named import NamedOptimizers
from footplate.trainer.samplers import Batches
from footplate.trainer.state import TrainerState, as_lists

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer

LEVEL_LOGGERS = ["footplate"]
"""The loggers whose level `log_level` sets."""


def log(trainer: Trainer, logs: dict[str, Any], start_time: float | None = None) -> None:
    """Adds the values to the log history, and calls `on_log`."""
    if trainer.state.epoch is not None:
        logs["epoch"] = trainer.state.epoch
    if trainer.args.include_num_input_tokens_seen != "no":
        logs["num_input_tokens_seen"] = trainer.state.num_input_tokens_seen
        if start_time is not None:
            tokens = trainer.state.num_input_tokens_seen - trainer._footplate.run.first_token
            logs.update(speed_metrics("train", start_time, tokens=tokens))
    trainer.state.log_history.append({**logs, "step": trainer.state.global_step})
    trainer.control = trainer.callback_handler.on_log(trainer.args, trainer.state, trainer.control, logs)


def log_training(trainer: Trainer) -> None:
    """Logs the steps since the last log: mean loss, gradient norm, learning rate."""
    run = trainer._footplate.run
    step, since = run.step, trainer.state.global_step - run.last_logged_step
    loss_sum = take_loss(trainer)
    run.loss_taken += loss_sum.total
    run.last_logged_step = trainer.state.global_step
    logs: dict[str, Any] = {"loss": loss_sum.total / since}
    if step.grad_norm is not None:
        logs["grad_norm"] = float(step.grad_norm)
    logs["learning_rate"] = float(step.learning_rate)
    if isinstance(step.optimizer, NamedOptimizers):
        logs.update(step.optimizer.logs())
    if loss_sum.not_finite:
        # The logged loss may leave out steps with NaN, as in Hugging Face's Trainer, so their number is logged.
        logs["nan_steps"] = len(loss_sum.not_finite)
        _warn_of_nan(trainer, logs["nan_steps"], since)
    logs.update(trainer.callback_handler.figures())
    trainer.store_flos()
    trainer.log(logs, run.start_time)


def _warn_of_nan(trainer: Trainer, nan_steps: int, since: int) -> None:
    """Warns at the first log of a run whose loss was NaN, because a logged loss that leaves NaN out looks good."""
    is_first = not any("nan_steps" in entry for entry in trainer.state.log_history)
    if is_first and trainer.is_world_process_zero():
        note = "; the logged loss leaves such steps out" if trainer.args.logging_nan_inf_filter else ""
        logging.getLogger("footplate.trainer").warning(
            "The loss was NaN or infinite in %d of the %d steps up to step %d%s. The weights "
            "may be NaN now. Check the data for NaN, or lower learning_rate. max_nan_steps=1 ends such a run",
            nan_steps, since, trainer.state.global_step, note,
        )  # fmt: skip


def take_loss(trainer: Trainer) -> LossSum:
    """Returns the training loss since the last call, averaged over all processes."""
    return trainer._footplate.run.step.tally.take().joined(trainer._footplate.strategy.peers)


def floating_point_ops(trainer: Trainer, inputs: dict[str, Any]) -> int:
    """Returns the operations in forward and backward of one micro-batch.

    These are 6 per parameter and token if the model has `num_parameters`, else 0.
    """
    count: Any = getattr(trainer.model, "num_parameters", None)
    name = trainer._footplate.model_signature.main_input
    if count is None or name not in inputs:
        return 0
    return int(6 * inputs[name].numel() * count(exclude_embeddings=True))


def store_flos(trainer: Trainer) -> None:
    """Adds the floating point operations of all processes to the state, and resets the counter."""
    trainer.state.total_flos += trainer._footplate.strategy.readers.total(trainer.current_flos)
    trainer.current_flos = 0.0


def count_flos(trainer: Trainer, batch: Any) -> None:
    trainer.current_flos += float(trainer.floating_point_ops(batch))


def count_flos_of_tokens(trainer: Trainer, per_token: int, batch: Any) -> None:
    tokens = batch.get(trainer._footplate.model_signature.main_input) if isinstance(batch, Mapping) else None
    if tokens is not None:
        trainer.current_flos += float(per_token * tokens.numel())


def count_tokens(trainer: Trainer, batch: Any) -> None:
    """Adds a batch's tokens to `num_input_tokens_seen`. `include_num_input_tokens_seen` decides if padding counts."""
    name = trainer._footplate.model_signature.main_input
    tokens = batch.get(name) if isinstance(batch, Mapping) else None
    if tokens is None:
        raise ValueError(
            f"include_num_input_tokens_seen counts the elements of {name!r}, but the batch has no {name!r}: set "
            "main_input_name on the model's class"
        )
    pad = getattr(trainer.processing_class, "pad_token_id", None)
    # The argument is "non_padding" or "all" here, or True if a script set it after the arguments were made.
    if trainer.args.include_num_input_tokens_seen != "non_padding":
        count = tokens.numel()
    elif "attention_mask" in batch:
        count = int(batch["attention_mask"].sum())
    elif pad is not None:
        count = int((tokens != pad).sum())
    else:
        if trainer.state.num_input_tokens_seen == trainer._footplate.run.first_token:
            logging.getLogger("footplate.trainer").warning(
                "Could not determine method to count non-padding tokens, so all tokens are counted: the batch has no "
                "attention_mask, and no tokenizer has a pad token. Give the Trainer a processing_class with one"
            )
        count = tokens.numel()
    trainer.state.num_input_tokens_seen += count


def describe_step(trainer: Trainer) -> str:
    """Returns text such as "saw batches 4 to 7 of epoch 0 (samples 12, 3)", for errors about the current step."""
    epoch, first_batch, count = trainer._footplate.run.batches
    numbers = getattr(trainer.callback_handler.train_dataloader, "batch_sampler", None)
    samples = numbers.samples(first_batch, count) if isinstance(numbers, Batches) else []
    numbers_text = ", ".join(map(str, samples[:32])) + (", …" if len(samples) > 32 else "")
    sample_numbers = f" (samples {numbers_text})" if samples else ""
    return f"saw batches {first_batch} to {first_batch + count - 1} of epoch {epoch}{sample_numbers}"


def log_metrics(trainer: Trainer, split: str, metrics: dict[str, Any]) -> None:
    """Prints the metrics in aligned columns."""
    if not trainer.is_world_process_zero():
        return
    texts = trainer.metrics_format(metrics)
    keys, values = max(map(len, texts)), max(len(str(value)) for value in texts.values())
    print(f"***** {split} metrics *****")
    for key in sorted(texts):
        print(f"  {key: <{keys}} = {texts[key]!s:>{values}}")


def save_metrics(trainer: Trainer, split: str, metrics: dict[str, Any], combined: bool = True) -> None:
    """Writes `<split>_results.json`, and adds to `all_results.json`."""
    if not trainer.is_world_process_zero():
        return
    folder = Path(trainer.args.output_dir or ".")
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / f"{split}_results.json", metrics)
    if combined:
        path = folder / "all_results.json"
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        _write(path, {**before, **metrics})


def note_process(trainer: Trainer, state: TrainerState) -> None:
    """Stores in the state whether this process is the first of its machine, and the first of all."""
    state.is_local_process_zero = trainer.is_local_process_zero()
    state.is_world_process_zero = trainer.is_world_process_zero()


def speed_metrics(
    prefix: str,
    start_time: float,
    *,
    samples: float | None = None,
    steps: float | None = None,
    tokens: float | None = None,
) -> dict[str, float]:
    """Returns the seconds since the start and the samples, steps and tokens per second, as Hugging Face rounds them."""
    seconds = max(time.time() - start_time, 1e-9)
    amounts = {"samples": samples, "steps": steps, "tokens": tokens}
    speeds = {f"{prefix}_{name}_per_second": round(n / seconds, 3) for name, n in amounts.items() if n is not None}
    return {f"{prefix}_runtime": round(seconds, 4), **speeds}


def set_log_level(args: TrainingArguments) -> None:
    if (args.log_level if args.should_log else args.log_level_replica) != "passive":
        for name in LEVEL_LOGGERS:
            logging.getLogger(name).setLevel(args.get_process_log_level())


def metrics_format(metrics: dict[str, Any]) -> dict[str, Any]:
    """Formats metrics for people: times as h:mm:ss.ss, floating point operations in GF, numbers with 4 digits."""
    return {name: _readable(name, value) for name, value in metrics.items()}


def _readable(name: str, value: Any) -> Any:
    if "_mem_" in name:
        return f"{value >> 20}MB"
    if "_runtime" in name:
        hundredths = int(abs(value - int(value)) * 100)
        return f"{datetime.timedelta(seconds=int(value))}.{hundredths:02d}"
    if name == "total_flos":
        return f"{int(value) >> 30}GF"
    return round(value, 4) if isinstance(value, float) else value


def _write(path: Path, metrics: dict[str, Any]) -> None:
    path.write_text(json.dumps(metrics, indent=4, sort_keys=True, default=as_lists), encoding="utf-8")
