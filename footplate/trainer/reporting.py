"""What the Trainer tells: logs into its history and to who listens, metrics to the screen and to files."""

from __future__ import annotations

import datetime
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from footplate.trainer import checkpoint as files
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.evaluate import speed_metrics
from footplate.trainer.loss_total import Taken
from footplate.trainer.named import NamedOptimizers
from footplate.trainer.parts import Parts
from footplate.trainer.samplers import Batches
from footplate.trainer.state import as_lists


class Reporting(Parts):
    if TYPE_CHECKING:  # of the other parts
        is_world_process_zero: Callable[[], bool]

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        """Into the history, and to whoever listens."""
        if self.state.epoch is not None:
            logs["epoch"] = self.state.epoch
        if self.args.include_num_input_tokens_seen != "no":
            logs["num_input_tokens_seen"] = self.state.num_input_tokens_seen
            if start_time is not None:
                tokens = self.state.num_input_tokens_seen - self._first_token
                logs.update(speed_metrics("train", start_time, tokens=tokens))
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, logs)

    def _log_training(self) -> None:
        step, since = self._step, self.state.global_step - self._last_logged_step
        taken = self._take_loss()
        self._loss_taken += taken.total
        self._last_logged_step = self.state.global_step
        logs: dict[str, Any] = {"loss": taken.total / since}
        if step.grad_norm is not None:
            logs["grad_norm"] = float(step.grad_norm)
        logs["learning_rate"] = float(step.learning_rate)
        if isinstance(step.optimizer, NamedOptimizers):
            logs.update(step.optimizer.logs())
        if taken.not_finite:
            # The loss above may leave them out, as the reference does; nobody should have to guess that.
            logs["nan_steps"] = len(taken.not_finite)
        logs.update(self.callback_handler.figures())
        self.store_flos()
        self.log(logs, self._started)

    def _take_loss(self) -> Taken:
        """Since the last time, and of all processes."""
        return self._step.tally.take().joined(self.strategy.peers)

    def store_flos(self) -> None:
        """Into the state, and the count begins again."""
        self.state.total_flos += self.strategy.readers.total(self.current_flos)
        self.current_flos = 0.0

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Of one micro-batch, forward and backward: 6 per parameter and token, where the model can count itself."""
        count: Any = getattr(self.model, "num_parameters", None)
        name = self.anatomy.main_input
        if count is None or name not in inputs:
            return 0
        return int(6 * inputs[name].numel() * count(exclude_embeddings=True))

    def count_flos(self, batch: Any) -> None:
        self.current_flos += float(self.floating_point_ops(batch))

    def count_flos_of_tokens(self, per_token: int, batch: Any) -> None:
        tokens = batch.get(self.anatomy.main_input) if isinstance(batch, Mapping) else None
        if tokens is not None:
            self.current_flos += float(per_token * tokens.numel())

    def count_tokens(self, batch: Any) -> None:
        """All of them, or those that are not padding."""
        tokens = batch.get(self.anatomy.main_input) if isinstance(batch, Mapping) else None
        if tokens is None:
            raise ValueError(
                f"include_num_input_tokens_seen counts the elements of {self.anatomy.main_input!r}, and the batch has "
                "none: set main_input_name on the model's class"
            )
        pad = getattr(self.processing_class, "pad_token_id", None)
        if self.args.include_num_input_tokens_seen == "all":
            count = tokens.numel()
        elif "attention_mask" in batch:
            count = int(batch["attention_mask"].sum())
        else:
            count = tokens.numel() if pad is None else int((tokens != pad).sum())
        self.state.num_input_tokens_seen += count

    def describe_step(self) -> str:
        """Which data the step at hand saw."""
        epoch, first, count = self._last_batches
        numbers = getattr(self.callback_handler.train_dataloader, "batch_sampler", None)
        samples = numbers.samples(first, count) if isinstance(numbers, Batches) else []
        shown = ", ".join(map(str, samples[:32])) + (", …" if len(samples) > 32 else "")
        which = f" (samples {shown})" if samples else ""
        return f"saw batches {first} to {first + count - 1} of epoch {epoch}{which}"

    def log_metrics(self, split: str, metrics: dict[str, Any]) -> None:
        """Prints the metrics, aligned."""
        if not self.is_world_process_zero():
            return
        told = self.metrics_format(metrics)
        keys, values = max(map(len, told)), max(len(str(value)) for value in told.values())
        print(f"***** {split} metrics *****")
        for key in sorted(told):
            print(f"  {key: <{keys}} = {told[key]!s:>{values}}")

    @staticmethod
    def metrics_format(metrics: dict[str, Any]) -> dict[str, Any]:
        """For people: times as h:mm:ss.ss, floating point operations in GF, four digits."""
        return {name: _readable(name, value) for name, value in metrics.items()}

    def save_metrics(self, split: str, metrics: dict[str, Any], combined: bool = True) -> None:
        """Writes `<split>_results.json`, and adds to `all_results.json`."""
        if not self.is_world_process_zero():
            return
        folder = Path(self.args.output_dir or ".")
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / f"{split}_results.json", metrics)
        if combined:
            path = folder / "all_results.json"
            before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            _write(path, {**before, **metrics})

    def save_state(self) -> None:
        if not self.is_world_process_zero():
            return
        folder = Path(self.args.output_dir or ".")
        folder.mkdir(parents=True, exist_ok=True)
        self.state.save_to_json(folder / files.STATE)


def set_log_level(args: TrainingArguments) -> None:
    if (args.log_level if args.should_log else args.log_level_replica) != "passive":
        logging.getLogger("footplate").setLevel(args.get_process_log_level())


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
