"""Trainer: what happens, in order. The loop is in loop.py, a step in step.py, the order of events in callbacks.py."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader, Sampler, SequentialSampler

from contract import arguments as contract_arguments
from worker.trainer import checkpoint as files
from worker.trainer import evaluate, losses, optimizers, saving, schedules
from worker.trainer.arguments import TrainingArguments
from worker.trainer.callbacks import CallbackHandler, TrainerCallback, default_callbacks
from worker.trainer.collators import default_data_collator
from worker.trainer.data import Collator, DropUnused, has_length, make_loader
from worker.trainer.loop import Plan, run_epochs
from worker.trainer.metrics import Metric, make_metric
from worker.trainer.samplers import EpochSampler
from worker.trainer.state import (
    EvalLoopOutput,
    EvalPrediction,
    PredictionOutput,
    TrainerControl,
    TrainerState,
    TrainOutput,
)
from worker.trainer.step import Step
from worker.trainer.strategies.single import Single

log = logging.getLogger("footplate.trainer")


def set_seed(seed: int) -> None:
    """Python, NumPy and torch on every device."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


class Trainer:
    """Trains a model on a dataset, with the reference's names: subclass it and override what you need.

    Beside the reference's: `metrics`, names or factories of metrics that stream through an evaluation;
    `checkpoint_stamp`, what to write into every checkpoint's manifest; `on_save_failed`, told when a disk is full;
    `relied_on`, which checkpoints somebody outside may come back to, so that rotation leaves them.
    """

    loss_is_scaled_for_ga: bool = False
    """Set it where your `compute_loss` already divides by the whole window of micro-batches."""

    model: nn.Module
    """The user's own."""
    model_wrapped: nn.Module
    """What is called in a step: the model, in whatever the strategy put around it."""
    _signature: list[str]

    def __init__(
        self,
        model: nn.Module | None = None,
        args: contract_arguments.TrainingArguments | None = None,
        data_collator: Collator | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Callable[..., nn.Module] | None = None,
        compute_loss_func: Callable[..., Tensor] | None = None,
        compute_metrics: Callable[[EvalPrediction], dict[str, Any]] | None = None,
        callbacks: Sequence[TrainerCallback | type[TrainerCallback]] | None = None,
        optimizers: tuple[Optimizer | None, LRScheduler | None] = (None, None),
        optimizer_cls_and_kwargs: tuple[type[Optimizer], dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None = None,
        *,
        metrics: Sequence[str | Callable[[], Metric]] = (),
        tokenizer: Any = None,
    ) -> None:
        self.args = TrainingArguments.of(args or TrainingArguments())
        set_seed(self.args.seed)
        self.strategy = Single(self.args)
        self.accelerator = self.strategy.accelerator
        self.model_init = model_init
        if (model is None) == (model_init is None):
            raise ValueError("a Trainer needs a model or a model_init, and only one of them")
        self.compute_loss_func, self.compute_metrics = compute_loss_func, compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.metrics = list(metrics)
        for metric in self.metrics:
            make_metric(metric)
        self._take_model(model if model is not None else self.call_model_init())
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.processing_class = processing_class if processing_class is not None else tokenizer
        self.data_collator = data_collator or partial(default_data_collator, first=self._signature[0])
        self.optimizer: Any
        self.lr_scheduler: Any
        self.optimizer, self.lr_scheduler = optimizers
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self.made_schedule = False
        self.checkpoint_stamp: dict[str, Any] = {}
        self.on_save_failed: Callable[[saving.SaveFailed], None] = _warn_that_saving_failed
        self.relied_on: Callable[[], set[Path]] = set
        self._failed_saves = 0
        self.is_in_train = False
        self.state, self.control = TrainerState(), TrainerControl()
        self.current_gradient_accumulation_steps = self.args.gradient_accumulation_steps
        self.callback_handler = CallbackHandler(
            [*default_callbacks(self.args), *(callbacks or ())],
            self.model,
            self.processing_class,
            self.optimizer,
            self.lr_scheduler,
        )
        self.control = self.callback_handler.on_init_end(self.args, self.state, self.control)

    # Training

    def train(
        self,
        resume_from_checkpoint: str | Path | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Trains to the end, or to where a callback stops it. True resumes from the newest complete checkpoint."""
        self.is_in_train = True
        self._ignore_keys_for_eval = ignore_keys_for_eval
        try:
            return self._train(resume_from_checkpoint)
        finally:
            self.is_in_train = False

    def _train(self, resume_from: str | Path | bool | None) -> TrainOutput:
        args = self.args
        if self.model_init is not None:
            set_seed(args.seed)
            self._take_model(self.call_model_init())
            self.optimizer = self.lr_scheduler = None
        files.sweep(Path(args.output_dir or "."))
        folder = saving.find(self, resume_from)
        loader = self.get_train_dataloader()
        plan = Plan.of(args, loader, self.get_total_train_batch_size(args), self.num_examples(loader))
        self.state = self._new_state(plan, folder)
        self._prepare(plan.max_steps, loader, folder)
        restore_rng = saving.rng_restorer(folder) if folder else None

        started, self._first_step = time.perf_counter(), self.state.global_step
        self._last_logged_step, self._loss_taken = self.state.global_step, 0.0
        self._step = Step(self)
        self.model_wrapped.zero_grad()
        self.control = self.callback_handler.on_train_begin(args, self.state, self.control)
        try:
            if args.eval_on_start:
                self._evaluate(follow=False)
            run_epochs(self, plan, self._step, loader, restore_rng)
            return self._finish(plan, started)
        finally:
            # Also when training raises: a progress bar or a tracker that is left open loses what it holds.
            self.control = self.callback_handler.on_train_end(args, self.state, self.control)

    def _new_state(self, plan: Plan, folder: Path | None) -> TrainerState:
        state = saving.load_state(self, folder) if folder else TrainerState()
        state.compute_steps(self.args, plan.max_steps)
        state.max_steps, state.num_train_epochs = plan.max_steps, plan.epochs
        state.train_batch_size = self._train_batch_size
        return state

    def _prepare(self, max_steps: int, loader: Any, folder: Path | None) -> None:
        """Weights before Accelerate sees the model, so that it places them; optimizer and schedule after."""
        self.strategy.forget()
        if folder is not None:
            self._load_from_checkpoint(str(folder))
        if self.made_schedule:
            self.lr_scheduler = None
        self.create_optimizer()
        self.model_wrapped, self.optimizer = self.strategy.prepare(self.model, self.optimizer)
        self.create_scheduler(max_steps)
        self.strategy.prepare_schedule(self.lr_scheduler)
        if folder is not None:
            saving.load_optimizer(self, folder)
        events = self.callback_handler
        events.model, events.optimizer, events.lr_scheduler = self.model, self.optimizer, self.lr_scheduler
        events.train_dataloader = loader

    def _finish(self, plan: Plan, started: float) -> TrainOutput:
        steps = self.state.global_step - self._first_step
        total = self._loss_taken + self._step.take_loss()
        samples = plan.samples * steps / max(plan.max_steps, 1)
        figures = evaluate.speed_metrics("train", started, samples=samples, steps=steps)
        figures["total_flos"] = self.state.total_flos
        figures["train_loss"] = total / max(steps, 0.001)
        self.log(figures)
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self._load_from_checkpoint(self.state.best_model_checkpoint)
        return TrainOutput(self.state.global_step, figures["train_loss"], figures)

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Forward and backward of one micro-batch. Returns its share of the step's loss, detached."""
        inputs = self._prepare_inputs(inputs)
        # What an overridden compute_loss is taken to return; ours says it anew for every output.
        self._loss_is_scaled = self.loss_is_scaled_for_ga
        with self.compute_loss_context_manager():
            loss: Tensor = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        if not self._loss_is_scaled:
            loss = loss / self.current_gradient_accumulation_steps
        self.strategy.backward(loss)
        return loss.detach()

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The model's own loss, `compute_loss_func`'s, or the one that fits logits and labels."""
        labels = inputs.get("labels")
        if self.compute_loss_func is not None or not self._takes_labels:
            inputs = {name: value for name, value in inputs.items() if name != "labels"}
        if self.model_accepts_loss_kwargs and num_items_in_batch is not None:
            inputs = {**inputs, "num_items_in_batch": num_items_in_batch}
        outputs = model(**inputs)
        if self.compute_loss_func is not None:
            loss, scaled = self.compute_loss_func(outputs, labels, num_items_in_batch=num_items_in_batch), True
        else:
            loss, scaled = losses.loss_and_how(outputs, labels, num_items_in_batch, shifts=self.shifts_labels)
            scaled = scaled or (self.model_accepts_loss_kwargs and num_items_in_batch is not None)
        self._loss_is_scaled = scaled or self.loss_is_scaled_for_ga
        return (loss, outputs) if return_outputs else loss

    def compute_loss_context_manager(self) -> AbstractContextManager[Any]:
        return self.autocast_smart_context_manager()

    def autocast_smart_context_manager(self, cache_enabled: bool = True) -> AbstractContextManager[Any]:
        """Nothing: Accelerate puts autocast around `forward` itself."""
        return _NOTHING

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Tensor | int | None]:
        """The micro-batches of one step, and how many labels count in them, where the loss needs to know."""
        window = [batch for _, batch in zip(range(num_batches), epoch_iterator, strict=False)]
        return window, self._get_num_items_in_batch(window, device) if self._counts_items else None

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Tensor | int | None:
        labels = [batch.get("labels") for batch in batch_samples]
        if not labels or any(each is None for each in labels):
            return None
        if self.shifts_labels:
            labels = [each[..., 1:] for each in labels]
        return torch.stack([losses.items(each) for each in labels]).sum().to(device, non_blocking=True)

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return self.strategy.to_device(inputs)  # type: ignore[no-any-return]

    def log_evaluate_save(self) -> None:
        """Does what the control asks for after a step or an epoch, in this order."""
        if self.control.should_log and self.state.global_step > self._last_logged_step:
            self._log_training()
        if self.control.should_evaluate:
            is_best = self._determine_best_metric(self._evaluate(), trial=None)
            if self.args.save_strategy == "best":
                self.control.should_save = is_best
        if self.control.should_save:
            self._save_or_go_on()

    def _log_training(self) -> None:
        step, since = self._step, self.state.global_step - self._last_logged_step
        total = step.take_loss()
        self._loss_taken += total
        self._last_logged_step = self.state.global_step
        logs = {"loss": total / since}
        if step.grad_norm is not None:
            logs["grad_norm"] = float(step.grad_norm)
        logs["learning_rate"] = float(step.learning_rate)
        self.log(logs)

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        """Into the history, and to whoever listens."""
        if self.state.epoch is not None:
            logs["epoch"] = self.state.epoch
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, logs)

    # Evaluation

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Loss and metrics of the evaluation data; of each set under its own name where there are several."""
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(data, dict):
            found: dict[str, float] = {}
            for name, each in data.items():
                found |= self.evaluate(each, ignore_keys, f"{metric_key_prefix}_{name}")
            return found
        started = time.perf_counter()
        output = self.evaluation_loop(
            self.get_eval_dataloader(data),
            description="Evaluation",
            # Nobody would read the predictions, so they are not kept; streaming metrics see every batch all the same.
            prediction_loss_only=True if self.compute_metrics is None else None,
            ignore_keys=ignore_keys,
            metric_key_prefix=metric_key_prefix,
        )
        output.metrics.update(self._eval_speed(metric_key_prefix, started, output.num_samples))
        self.log(output.metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, output.metrics)
        return output.metrics

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Predictions as arrays, with the labels and metrics where there are labels."""
        started = time.perf_counter()
        output = self.evaluation_loop(
            self.get_test_dataloader(test_dataset),
            description="Prediction",
            ignore_keys=ignore_keys,
            metric_key_prefix=metric_key_prefix,
        )
        output.metrics.update(self._eval_speed(metric_key_prefix, started, output.num_samples))
        self.control = self.callback_handler.on_predict(self.args, self.state, self.control, output.metrics)
        return PredictionOutput(output.predictions, output.label_ids, output.metrics)

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        loss_only = self.args.prediction_loss_only
        keep = not (loss_only if prediction_loss_only is None else prediction_loss_only)
        return evaluate.run(
            self, dataloader, loss_only=loss_only, keep=keep, ignore_keys=ignore_keys, prefix=metric_key_prefix
        )

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor | None, Any, Any]:
        """(loss, logits, labels) of one batch, without gradients; each may be None."""
        inputs = self._prepare_inputs(inputs)
        labels: Any = tuple(inputs[name] for name in self.label_names if inputs.get(name) is not None)
        has_labels = len(labels) == len(self.label_names) > 0
        with torch.no_grad(), self.compute_loss_context_manager():
            if has_labels:
                loss, outputs = self.compute_loss(model, inputs, return_outputs=True)
            else:
                loss, outputs = None, model(**inputs)
        labels = None if not has_labels else labels[0] if len(labels) == 1 else labels
        if prediction_loss_only:
            return loss, None, None
        if ignore_keys is None:
            ignore_keys = getattr(getattr(model, "config", None), "keys_to_ignore_at_inference", [])
        logits = losses.predictions(outputs, ignore_keys, has_labels)
        if self.preprocess_logits_for_metrics is not None:
            logits = self.preprocess_logits_for_metrics(logits, labels)
        return loss, logits, labels

    def _evaluate(self, *, follow: bool = True) -> dict[str, float]:
        metrics = self.evaluate(ignore_keys=self._ignore_keys_for_eval)
        if follow and isinstance(self.lr_scheduler, ReduceLROnPlateau):
            self.lr_scheduler.step(self._metric_for_best(metrics))
        return metrics

    def _metric_for_best(self, metrics: dict[str, float]) -> float:
        name = str(self.args.metric_for_best_model)
        name = name if name.startswith("eval_") else f"eval_{name}"
        if name not in metrics:
            raise KeyError(f"metric_for_best_model is {name!r}, and the evaluation has: {', '.join(metrics)}")
        return metrics[name]

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any = None) -> bool:
        """Notes the best evaluation so far. A NaN is never the best."""
        if self.args.metric_for_best_model is None:
            return False
        value, best = self._metric_for_best(metrics), self.state.best_metric
        better = value == value and (best is None or (value > best if self.args.greater_is_better else value < best))
        if better:
            self.state.best_metric, self.state.best_global_step = value, self.state.global_step
        return better

    def _eval_speed(self, prefix: str, started: float, samples: int) -> dict[str, float]:
        steps = evaluate.steps_for(samples, self.args.eval_batch_size)
        return evaluate.speed_metrics(prefix, started, samples=samples, steps=steps)

    # Data

    def get_train_dataloader(self) -> Any:
        if self.train_dataset is None:
            raise ValueError("training needs a train_dataset")
        sampler = self._get_train_sampler(self.train_dataset)
        return self._loader(self.train_dataset, self._train_batch_size, sampler)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(dataset, str):
            dataset = self.eval_dataset[dataset]
        if dataset is None:
            raise ValueError("evaluation needs an eval_dataset")
        return self._loader(dataset, self.args.eval_batch_size, self._get_eval_sampler(dataset))

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        return self._loader(test_dataset, self.args.eval_batch_size, self._get_eval_sampler(test_dataset))

    def _loader(self, dataset: Any, batch_size: int, sampler: Sampler[int] | None) -> Any:
        collator = self.data_collator
        if self.args.remove_unused_columns and not self._open_ended:
            collator = DropUnused(collator, [*self._signature, "label", "label_ids", "labels", *self.label_names])
        return self.strategy.prepare_loader(make_loader(dataset, self.args, collator, batch_size, sampler))

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int] | None:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if not has_length(dataset):
            return None
        in_order = self.args.train_sampling_strategy == "sequential"
        return SequentialSampler(dataset) if in_order else EpochSampler(dataset, self.data_seed)

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[int] | None:
        return SequentialSampler(eval_dataset) if has_length(eval_dataset) else None

    @property
    def data_seed(self) -> int:
        return self.args.seed if self.args.data_seed is None else self.args.data_seed

    @property
    def _train_batch_size(self) -> int:
        return self.args.train_batch_size

    def get_total_train_batch_size(self, args: contract_arguments.TrainingArguments) -> int:
        return self._train_batch_size * args.gradient_accumulation_steps

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        dataset = getattr(dataloader, "dataset", None)
        if has_length(dataset):
            return len(dataset)  # type: ignore[arg-type]
        return len(dataloader) * self._train_batch_size if has_length(dataloader) else 0

    # Model, optimizer, schedule

    def _take_model(self, model: nn.Module) -> None:
        self.model = self.model_wrapped = model.to(self.strategy.device)
        self._signature, open_ended = losses.forward_takes(model)
        # `forward(**batch)` takes everything; `forward(x, **kwargs)` names what it wants.
        self._open_ended = open_ended and not self._signature
        self._signature = self._signature or ["x"]
        self._takes_labels = "labels" in self._signature or open_ended
        self.shifts_labels = losses.shifts_labels(model)
        takes_count = "num_items_in_batch" in self._signature or (open_ended and hasattr(model, "loss_function"))
        self.model_accepts_loss_kwargs = bool(getattr(model, "accepts_loss_kwargs", takes_count))
        found = [name for name in self._signature if "label" in name or name in ("start_positions", "end_positions")]
        self.label_names = self.args.label_names or found or ["labels"]
        self._counts_items = (
            self.model_accepts_loss_kwargs or self.compute_loss_func is not None or not self._takes_labels
        )

    def call_model_init(self, trial: Any = None) -> nn.Module:
        if self.model_init is None:
            raise ValueError("this Trainer was given a model, and no model_init to make another")
        takes_trial = self.model_init.__code__.co_argcount == 1 if hasattr(self.model_init, "__code__") else False
        return self.model_init(trial) if takes_trial else self.model_init()

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        self.create_optimizer()
        self.create_scheduler(num_training_steps, self.optimizer)

    def create_optimizer(self) -> Any:
        if self.optimizer is None:
            made, kwargs = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(self.args, self.model)
            decay = self.get_decay_parameter_names(self.model)
            self.optimizer = made(optimizers.parameter_groups(self.model, decay, self.args.weight_decay), **kwargs)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> Any:
        if self.lr_scheduler is None:
            self.made_schedule = True
            self.lr_scheduler = schedules.make_schedule(
                self.args.lr_scheduler_type,
                self.strategy.plain_optimizer(optimizer if optimizer is not None else self.optimizer),
                warmup=self.args.get_warmup_steps(num_training_steps),
                total=num_training_steps,
                kwargs=self.args.lr_scheduler_kwargs,
            )
        return self.lr_scheduler

    @staticmethod
    def get_optimizer_cls_and_kwargs(
        args: contract_arguments.TrainingArguments, model: nn.Module | None = None
    ) -> tuple[type[Optimizer], dict[str, Any]]:
        return optimizers.optimizer_class(args)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        return optimizers.decay_parameter_names(model)

    def get_num_trainable_parameters(self) -> int:
        return sum(each.numel() for each in self.model.parameters() if each.requires_grad)

    def get_learning_rates(self) -> list[float]:
        return [group["lr"] for group in self._the_optimizer().param_groups]

    def get_optimizer_group(self, param: str | nn.Parameter | None = None) -> Any:
        groups = self._the_optimizer().param_groups
        if param is None:
            return [group["params"] for group in groups]
        wanted = dict(self.model.named_parameters())[param] if isinstance(param, str) else param
        return next((group for group in groups if any(each is wanted for each in group["params"])), None)

    def _the_optimizer(self) -> Any:
        if self.optimizer is None:
            raise ValueError("there is no optimizer yet: call create_optimizer() or train() first")
        return self.optimizer

    # Callbacks

    def add_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        self.callback_handler.add_callback(callback)

    def pop_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> TrainerCallback | None:
        return self.callback_handler.pop_callback(callback)

    def remove_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        self.callback_handler.remove_callback(callback)

    # Files

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """The model's weights, with its config and the processor where they can save themselves."""
        folder = Path(output_dir or self.args.output_dir or ".")
        folder.mkdir(parents=True, exist_ok=True)
        self._save(str(folder))

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        folder = Path(output_dir or self.args.output_dir or ".")
        save_pretrained: Any = getattr(self.model, "save_pretrained", None)
        if save_pretrained is not None:
            save_pretrained(folder, state_dict=state_dict)
        else:
            files.save_weights(self.model, folder / files.MODEL, state_dict)
        if hasattr(self.processing_class, "save_pretrained"):
            self.processing_class.save_pretrained(folder)

    def save_state(self) -> None:
        folder = Path(self.args.output_dir or ".")
        folder.mkdir(parents=True, exist_ok=True)
        self.state.save_to_json(folder / files.STATE)

    def _save_checkpoint(self, model: nn.Module, trial: Any = None) -> files.Checkpoint | None:
        return saving.save(self)

    def _save_or_go_on(self) -> None:
        try:
            saved = self._save_checkpoint(self.model, trial=None)
        except files.CannotSave as error:
            self._failed_saves += 1
            go_on = self._failed_saves <= saving.FAILURES_BORNE
            self.control.should_save = False
            self.on_save_failed(saving.SaveFailed(self.state.global_step, str(error), self._failed_saves, go_on))
            if not go_on:
                raise
        else:
            self._failed_saves = 0
            self.control = self.callback_handler.on_save(self.args, self.state, self.control, saved)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        files.load_weights(model if model is not None else self.model, Path(resume_from_checkpoint))

    def is_local_process_zero(self) -> bool:
        return self.args.local_process_index == 0

    def is_world_process_zero(self) -> bool:
        return self.args.process_index == 0


_NOTHING: AbstractContextManager[Any] = nullcontext()


def _warn_that_saving_failed(failed: saving.SaveFailed) -> None:
    what_next = "training goes on" if failed.will_go_on else "giving up"
    log.warning("%s (%d in a row): %s", failed.error, failed.failures_in_a_row, what_next)
