"""The training loop in the order in which a callback sees it.

    on_init_end                                 the Trainer is built
    on_train_begin
      [evaluation, if eval_on_start is set]
      for every epoch:
        on_epoch_begin
        for every optimizer step:
          on_step_begin
            for every micro-batch but the last: forward, backward; on_substep_end
            forward, backward of the last one; gradients are clipped
          on_pre_optimizer_step
            optimizer.step()
          on_optimizer_step
            schedule, zero_grad, global_step + 1
          on_step_end                           may set should_log, should_evaluate, should_save, should_training_stop
          on_log                                if should_log
          on_prediction_step*, on_log, on_evaluate      if should_evaluate
          on_save(checkpoint=...)               if should_save, after the checkpoint is committed
        on_epoch_end                            then on_log, on_evaluate and on_save as above
      on_log                                    the metrics of the run
      [the best model is loaded]
    on_train_end                                also when training raises

    on_predict                                  after predict()
    on_push_begin                               before a checkpoint or the model is uploaded to the hub

A callback may have a method `figures()`, whose values are added to each log of the loss.

Every event gets (args, state, control, **kwargs): model, processing_class, optimizer, lr_scheduler, train_dataloader,
eval_dataloader, and metrics, logs or checkpoint if the event has them. It may return the control.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from typing import Any

from footplate.contract.arguments import TrainingArguments
from footplate.trainer.state import ExportableState as ExportableState
from footplate.trainer.state import TrainerControl, TrainerState, watched_metric

log = logging.getLogger("footplate.trainer")

Control = TrainerControl | None


class TrainerCallback:
    """The base of callbacks: override the events that you need. A callback may change nothing but the control."""

    def on_init_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Control: ...
    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Control: ...
    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Control: ...
    def on_epoch_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Control: ...
    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Control: ...
    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Control: ...
    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kw: Any) -> Control: ...
    def on_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Control: ...
    def on_substep_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Control: ...
    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Control: ...
    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Control: ...
    def on_predict(
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: Any, **kwargs: Any
    ) -> Control: ...
    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Control: ...
    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Control: ...
    def on_prediction_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Control: ...
    def on_push_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Control: ...


EVENTS = tuple(name for name in vars(TrainerCallback) if name.startswith("on_"))
Listener = Callable[..., Control]


def _plain_event(event: str) -> Callable[[CallbackHandler, Any, TrainerState, TrainerControl], TrainerControl]:
    """Returns the CallbackHandler's method for an event that resets no flag and has no further arguments."""

    def call(handler: CallbackHandler, args: Any, state: TrainerState, control: TrainerControl) -> TrainerControl:
        return handler.call_event(event, args, state, control)

    return call


class CallbackHandler:
    """Calls the callbacks of an event in order. Adding or removing a callback updates the list for each event."""

    def __init__(self, callbacks: Iterable[Any], model: Any, processing_class: Any, optimizer: Any, lr_scheduler: Any):
        self.callbacks: list[TrainerCallback] = []
        self.model, self.processing_class = model, processing_class
        self.optimizer, self.lr_scheduler = optimizer, lr_scheduler
        self.train_dataloader: Any = None
        self.eval_dataloader: Any = None
        self._listeners: dict[str, list[Listener]] = {}
        for callback in callbacks:
            self.add_callback(callback)
        if not any(isinstance(callback, DefaultFlowCallback) for callback in self.callbacks):
            log.warning(
                "without a DefaultFlowCallback, nothing is logged, evaluated or saved, and max_steps stops training "
                "only at the end of an epoch"
            )
        self._find_listeners()

    def add_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        """Adds a callback after the others. Logs a warning if there is already a callback of the same class.

        Raises TypeError if the callback has no method of an event and so would never be called.
        """
        new_callback = callback() if isinstance(callback, type) else callback
        if not any(hasattr(new_callback, name) for name in (*EVENTS, "figures")):
            raise TypeError(
                f"{new_callback!r} has no event: a callback is a TrainerCallback, its class, or an object with methods "
                "such as on_step_end"
            )
        if any(type(own_callback) is type(new_callback) for own_callback in self.callbacks):
            log.warning("there is already a callback %s: both are called", type(new_callback).__name__)
        self.callbacks.append(new_callback)
        self._find_listeners()

    def pop_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> TrainerCallback | None:
        for own_callback in self.callbacks:
            if own_callback is callback or (isinstance(callback, type) and isinstance(own_callback, callback)):
                self.callbacks.remove(own_callback)
                self._find_listeners()
                return own_callback
        return None

    def remove_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        self.pop_callback(callback)

    def figures(self) -> dict[str, float]:
        """Returns the values that callbacks add to the log of a loss."""
        figures: dict[str, float] = {}
        for callback in self.callbacks:
            add_figures = getattr(callback, "figures", None)
            figures.update(add_figures() if add_figures is not None else {})
        return figures

    @property
    def callback_list(self) -> str:
        return "\n".join(type(callback).__name__ for callback in self.callbacks)

    def _find_listeners(self) -> None:
        self._listeners = {event: [] for event in EVENTS}
        for event in EVENTS:
            for callback in self.callbacks:
                method = getattr(callback, event, None)
                # Only callbacks that override the event are called, because the other calls would cost time.
                if method is not None and getattr(method, "__func__", method) is not getattr(TrainerCallback, event):
                    self._listeners[event].append(method)

    def call_event(
        self, event: str, args: TrainingArguments, state: TrainerState, control: TrainerControl, **extra: Any
    ) -> TrainerControl:
        listeners = self._listeners[event]
        if not listeners:
            return control
        kwargs = {
            "model": self.model,
            "processing_class": self.processing_class,
            "optimizer": self.optimizer,
            "lr_scheduler": self.lr_scheduler,
            "train_dataloader": self.train_dataloader,
            "eval_dataloader": self.eval_dataloader,
            **extra,
        }
        for listener in listeners:
            answer = listener(args, state, control, **kwargs)
            if answer is not None and answer is not control:
                if not hasattr(answer, "should_training_stop"):
                    name = getattr(listener, "__qualname__", repr(listener))
                    raise TypeError(f"{name} returned {answer!r:.80}: return the control that it received, or None")
                control = answer
        return control

    on_init_end = _plain_event("on_init_end")
    on_train_end = _plain_event("on_train_end")
    on_epoch_end = _plain_event("on_epoch_end")
    on_pre_optimizer_step = _plain_event("on_pre_optimizer_step")
    on_optimizer_step = _plain_event("on_optimizer_step")
    on_substep_end = _plain_event("on_substep_end")
    on_step_end = _plain_event("on_step_end")
    on_prediction_step = _plain_event("on_prediction_step")
    on_push_begin = _plain_event("on_push_begin")

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl) -> TrainerControl:
        control._new_training()
        return self.call_event("on_train_begin", args, state, control)

    def on_epoch_begin(self, args: Any, state: TrainerState, control: TrainerControl) -> TrainerControl:
        control._new_epoch()
        return self.call_event("on_epoch_begin", args, state, control)

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl) -> TrainerControl:
        control._new_step()
        return self.call_event("on_step_begin", args, state, control)

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: dict[str, float]
    ) -> TrainerControl:
        control.should_evaluate = False
        return self.call_event("on_evaluate", args, state, control, metrics=metrics)

    def on_predict(
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: dict[str, float]
    ) -> TrainerControl:
        return self.call_event("on_predict", args, state, control, metrics=metrics)

    def on_save(
        self, args: Any, state: TrainerState, control: TrainerControl, checkpoint: Any = None
    ) -> TrainerControl:
        control.should_save = False
        return self.call_event("on_save", args, state, control, checkpoint=checkpoint)

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: dict[str, Any]) -> TrainerControl:
        control.should_log = False
        return self.call_event("on_log", args, state, control, logs=logs)


class DefaultFlowCallback(TrainerCallback):
    """Sets the control's flags for logging, evaluation and saving from the arguments."""

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Control:
        step, is_last = state.global_step, state.global_step >= state.max_steps
        if (step == 1 and args.logging_first_step) or _is_due(args.logging_strategy, step, state.logging_steps):
            control.should_log = True
        if args.eval_strategy == "steps" and args.eval_delay <= step and (is_last or step % state.eval_steps == 0):
            control.should_evaluate = True
        if args.save_strategy == "steps" and (is_last or _is_due("steps", step, state.save_steps)):
            control.should_save = True
        if is_last:
            control.should_training_stop = True
        return control

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Control:
        if args.logging_strategy == "epoch":
            control.should_log = True
        if args.eval_strategy == "epoch" and args.eval_delay <= (state.epoch or 0):
            control.should_evaluate = True
        if args.save_strategy == "epoch":
            control.should_save = True
        return control


def _is_due(strategy: str, step: int, every: int) -> bool:
    return strategy == "steps" and every > 0 and step % every == 0


class PrinterCallback(TrainerCallback):
    """Prints one line per log."""

    def on_log(
        self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> Control:
        if state.is_local_process_zero:
            print({name: value for name, value in logs.items() if name != "total_flos"}, flush=True)
        return None


class ProgressCallback(TrainerCallback):
    """Shows a progress bar of optimizer steps. Texts in logs are cut to `max_str_len` characters.

    Without a terminal, it prints one line per log instead, unless `disable_tqdm` is set.
    """

    def __init__(self, max_str_len: int = 100) -> None:
        self.bar: Any = None
        self.max_str_len = max_str_len

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Control:
        if not state.is_world_process_zero or not _has_bar(args):
            return None
        from tqdm.auto import tqdm  # type: ignore[import-untyped]

        self.bar = tqdm(total=state.max_steps, initial=state.global_step, dynamic_ncols=True)
        return None

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Control:
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)
        return None

    def on_log(
        self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> Control:
        if self.bar is not None:
            values = {name: self._cut(value) for name, value in logs.items() if name != "total_flos"}
            self.bar.write(str(values))
        elif not _has_bar(args):
            return PrinterCallback().on_log(args, state, control, logs)
        return None

    def _cut(self, value: Any) -> Any:
        is_long = isinstance(value, str) and len(value) > self.max_str_len
        return f"{value[: self.max_str_len]}…" if is_long else value

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Control:
        if self.bar is not None:
            self.bar.close()
            self.bar = None
        return None


def _has_bar(args: Any) -> bool:
    # SetFit passes its own arguments to callbacks, and they have no `disable_tqdm`.
    return sys.stderr.isatty() or getattr(args, "disable_tqdm", None) is not None


DEFAULT_CALLBACKS: list[type[TrainerCallback]] = [DefaultFlowCallback]
"""The callbacks that every Trainer has first."""
DEFAULT_PROGRESS_CALLBACK = ProgressCallback


def progress_callback(args: TrainingArguments) -> TrainerCallback:
    """Returns the callback that shows the logs: `ProgressCallback`, unless `disable_tqdm` asks for plain lines."""
    return PrinterCallback() if args.disable_tqdm else DEFAULT_PROGRESS_CALLBACK()


class EarlyStoppingCallback(TrainerCallback, ExportableState):
    """Stops if `metric_for_best_model` has not improved by the threshold for `early_stopping_patience` evaluations."""

    def __init__(self, early_stopping_patience: int = 1, early_stopping_threshold: float = 0.0) -> None:
        self.early_stopping_patience = early_stopping_patience
        self.early_stopping_threshold = early_stopping_threshold
        self.early_stopping_patience_counter = 0

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Control:
        if args.metric_for_best_model is None or args.eval_strategy == "no":
            raise ValueError(
                "early stopping needs evaluations and a metric to compare them: set metric_for_best_model, and set "
                'eval_strategy to "steps" or "epoch"'
            )
        return None

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: Any = None, **kwargs: Any
    ) -> Control:
        value = metrics.get(watched_metric(args))
        if value is None:
            # With several evaluation sets, only one of them has the metric.
            return None
        self.check_metric_value(args, state, control, value)
        if self.early_stopping_patience_counter >= self.early_stopping_patience:
            control.should_training_stop = True
        return control

    def check_metric_value(self, args: Any, state: TrainerState, control: TrainerControl, metric_value: float) -> None:
        """Counts an evaluation that does not improve on the best one before it. A subclass may count otherwise."""
        best = state.best_metric  # a NaN is never recorded as the best
        gain = None if best is None else (metric_value - best if args.greater_is_better else best - metric_value)
        if gain is None or gain > max(0.0, self.early_stopping_threshold):
            self.early_stopping_patience_counter = 0
        else:
            self.early_stopping_patience_counter += 1

    def state(self) -> dict[str, Any]:
        return {
            "args": {
                "early_stopping_patience": self.early_stopping_patience,
                "early_stopping_threshold": self.early_stopping_threshold,
            },
            "attributes": {"early_stopping_patience_counter": self.early_stopping_patience_counter},
        }
