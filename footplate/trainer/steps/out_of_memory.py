"""Handles out-of-memory errors. `auto_find_batch_size` splits micro-batches; otherwise the error gets advice."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from footplate.trainer.batch_errors import shapes_of
from footplate.trainer.data import batch_length, count_items
from footplate.trainer.named import NamedOptimizers
from footplate.trainer.steps.step import Step

log = logging.getLogger("footplate.trainer")


class FittingStep(Step):
    """Splits micro-batches until they fit into memory, and repeats the step with the same samples.

    The loss of each slice is weighted by its share of the labels, so that the loss curve does not change.
    """

    slices = 1
    """The number of slices of a micro-batch. It only grows, because a size that did not fit is not tried again."""

    def accumulate(self, window: list[Any], items: Tensor | int | None) -> None:
        while True:
            try:
                return self._accumulate_slices(window, items)
            except (RuntimeError, MemoryError) as error:
                longest = max(map(batch_length, window))
                if not is_out_of_memory(error) or self.slices >= longest:
                    raise
                self._use_more_slices(longest)

    def _use_more_slices(self, longest: int) -> None:
        from accelerate.utils.memory import clear_device_cache

        self.tally.forget_step()
        self.zero()
        if isinstance(self.optimizer, NamedOptimizers):
            self.optimizer.forget_step()
        self.slices = min(2 * self.slices, longest)
        gc.collect()
        clear_device_cache()
        size = -(-longest // self.slices)
        log.warning(
            "out of memory: micro-batches of %d samples are now split into %d slices of at most %d samples. The "
            "effective batch size stays the same",
            longest,
            self.slices,
            size,
        )
        # Only the state gets the new size. The loader keeps its batch size, also if `train` is called again.
        self.trainer.state.train_batch_size = size

    def _accumulate_slices(self, window: list[Any], items: Tensor | int | None) -> None:
        trainer, events = self.trainer, self.trainer.callback_handler
        slices = [item for batch in window for item in self._with_shares(batch)]
        for number, (sliced, share) in enumerate(slices, start=1):
            self.gradient_state.sync_gradients = number == len(slices)
            # `training_step` divides a mean loss by the number of accumulation steps. A slice needs a larger number.
            trainer.current_gradient_accumulation_steps = len(window) if share == 1 else len(window) / share
            self.tally.add(self.micro_step(sliced, items))
            self.count(sliced)
            if number < len(slices):
                trainer.control = events.on_substep_end(trainer.args, trainer.state, trainer.control)

    def _with_shares(self, batch: Any) -> list[tuple[Any, float]]:
        """Returns the slices of a batch, each with its share of the batch's labels.

        A slice in which all labels are ignored is left out, because its mean loss would be 0 / 0. Without labels for
        each token, the share is that of the samples.
        """
        if self.slices == 1:
            return [(batch, 1.0)]
        slices = cut(batch, self.slices)
        counts = [_labels_in(part, shifts=self.trainer._loss_shifts_labels) for part in slices]
        if not any(counts):
            counts = [batch_length(part) for part in slices]
        return [(part, count / sum(counts)) for part, count in zip(slices, counts, strict=True) if count]


def _labels_in(batch: Any, *, shifts: bool) -> int:
    """Returns the number of labels that are not ignored, or 0 if the batch has no labels for each token."""
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    if not isinstance(labels, Tensor) or labels.dim() < 2 or labels.is_floating_point():
        return 0
    return int(count_items([batch], labels.device, shifts=shifts) or 0)


def is_out_of_memory(error: BaseException) -> bool:
    from accelerate.utils.memory import should_reduce_batch_size

    return isinstance(error, MemoryError) or (isinstance(error, Exception) and should_reduce_batch_size(error))


def cut(batch: Any, slices: int) -> list[Any]:
    """Splits a batch into slices of samples. A value that does not have one entry per sample is in every slice."""
    samples = batch_length(batch)
    size = -(-samples // min(slices, samples))
    return [batch] if slices == 1 else [_slice(batch, at, at + size, samples) for at in range(0, samples, size)]


def _slice(value: Any, start: int, end: int, samples: int) -> Any:
    if isinstance(value, Tensor):
        return value[start:end] if value.dim() and value.shape[0] == samples else value
    if isinstance(value, Mapping):
        return {name: _slice(item, start, end, samples) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        if value and isinstance(value[0], Tensor):
            return type(value)(_slice(item, start, end, samples) for item in value)
        return value[start:end] if len(value) == samples else value
    return value


def explain(error: BaseException, window: list[Any]) -> None:
    """Adds the shapes of the step's batches and advice to an out-of-memory error."""
    if not is_out_of_memory(error):
        return
    shapes = [shapes_of(batch) for batch in window if isinstance(batch, Mapping)]
    error.add_note(
        f"The step had {len(window)} micro-batches: {'; '.join(shapes[:4])}. Use auto_find_batch_size=True, a "
        "smaller per_device_train_batch_size with more gradient_accumulation_steps, bf16, activation_checkpointing"
    )


def find_executable_batch_size(
    function: Callable[..., Any] | None = None, starting_batch_size: int = 128, auto_find_batch_size: bool = False
) -> Any:
    """Calls a script's function with smaller and smaller batch sizes until it does not run out of memory."""
    if function is None:
        return partial(
            find_executable_batch_size,
            starting_batch_size=starting_batch_size,
            auto_find_batch_size=auto_find_batch_size,
        )
    if auto_find_batch_size:
        from accelerate.utils.memory import find_executable_batch_size as smaller_until_it_fits

        return smaller_until_it_fits(function=function, starting_batch_size=starting_batch_size)
    return partial(function, batch_size=starting_batch_size)
