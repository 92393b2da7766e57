"""Trainer: what happens, in order. The loop is in loop.py, a step in step.py, the order of events in callbacks.py.

Its other methods are parted by what they are about: loading, optimizing, evaluating, reporting, saving, hub (all .py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from footplate.contract import arguments as contract_arguments
from footplate.trainer import losses, saving
from footplate.trainer.argument_callbacks import Memory, watchers
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.background import Background
from footplate.trainer.callbacks import CallbackHandler, TrainerCallback, default_callbacks
from footplate.trainer.collators import choose_collator
from footplate.trainer.data import Collator, count_items
from footplate.trainer.declined import refuse_overrides
from footplate.trainer.evaluate import speed_metrics
from footplate.trainer.evaluating import Evaluating
from footplate.trainer.hub import Hub
from footplate.trainer.loading import Loading
from footplate.trainer.loop import Plan, run_epochs
from footplate.trainer.loss_scaling import divides_by_items, share_of_window
from footplate.trainer.metrics import Metric, make_metric
from footplate.trainer.model_changes import shaped
from footplate.trainer.model_signature import Anatomy
from footplate.trainer.named import FollowEpochs, NamedOptimizer, NamedOptimizers, all_named, backward_of
from footplate.trainer.optimizing import Optimizing
from footplate.trainer.overrides import Overrides, Shortcut, left_out_by, methods_of
from footplate.trainer.placed_models import is_model_parallel, may_move, refuse_what_cannot_learn, require_a_model
from footplate.trainer.precision import use_tf32
from footplate.trainer.reporting import Reporting, set_log_level
from footplate.trainer.saving import Saving
from footplate.trainer.search import Searching, takes_trial
from footplate.trainer.seeds import enable_full_determinism
from footplate.trainer.seeds import set_seed as set_seed
from footplate.trainer.state import TrainerControl, TrainerState, TrainOutput
from footplate.trainer.strategies.choose import choose
from footplate.trainer.tracker_callbacks import reporters
from footplate.trainer.trial_save import rehearse_saving
from footplate.trainer.validate import validate


class Trainer(Loading, Optimizing, Evaluating, Reporting, Saving, Hub, Searching):
    """Trains a model on a dataset, with the reference's names: subclass it and override what you need.

    Beside the reference's: `metrics`, names or factories of metrics that stream through an evaluation.
    """

    loss_is_scaled_for_ga: bool | None = None
    """Whether your `compute_loss` already divides by the whole window of micro-batches; None finds out."""

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
        compute_metrics: Callable[..., dict[str, Any]] | None = None,
        callbacks: Sequence[TrainerCallback | type[TrainerCallback]] | None = None,
        optimizers: tuple[Optimizer | None, LRScheduler | None] | Sequence[NamedOptimizer] = (None, None),
        optimizer_cls_and_kwargs: tuple[Any, dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None = None,
        *,
        metrics: Sequence[str | Callable[[], Metric]] = (),
        tokenizer: Any = None,
    ) -> None:
        refuse_overrides(type(self))
        self._overrides = Overrides(self, _METHODS)
        self.args = TrainingArguments.of(args or TrainingArguments())
        self._memory = Memory(is_measured=not self.args.skip_memory_metrics)
        self._memory.start()
        set_log_level(self.args)
        use_tf32(self.args.tf32)
        self._seed()
        self._given: nn.Module | None = model
        self.create_accelerator_and_postprocess()
        self.model_init = model_init
        if (model is None) == (model_init is None):
            raise ValueError("a Trainer needs a model or a model_init, and only one of them")
        self.compute_loss_func, self.compute_metrics = compute_loss_func, compute_metrics
        smoothing = self.args.label_smoothing_factor
        self.label_smoother = losses.LabelSmoother(smoothing) if smoothing else None
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.metrics = list(metrics)
        self._take_model(model if model is not None else self.call_model_init())
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.processing_class = processing_class if processing_class is not None else tokenizer
        for metric in self.metrics:
            make_metric(metric, self.processing_class)
        first = self.anatomy.first_argument
        self.data_collator = data_collator or choose_collator(self.processing_class, first=first)
        self._take_optimizers(optimizers, optimizer_cls_and_kwargs)
        self._validate_args()
        self._open_books()
        self.callback_handler = self._handler(callbacks or ())
        self.hub_model_id, self._pushes = None, []
        if self.args.push_to_hub:
            self.init_hf_repo()
        self.control = self.callback_handler.on_init_end(self.args, self.state, self.control)

    def _validate_args(self) -> None:
        validate(self)

    def create_accelerator_and_postprocess(self) -> None:
        """Chooses where and how this runs; everything that Accelerate does, it does for the strategy."""
        self.strategy = choose(self.args, self._given)
        self.accelerator = self.strategy.accelerator

    def _seed(self) -> None:
        (enable_full_determinism if self.args.full_determinism else set_seed)(self.args.seed)

    def _take_model(self, model: nn.Module) -> None:
        require_a_model(model)
        refuse_what_cannot_learn(model)
        self.is_model_parallel = is_model_parallel(model, self.strategy.device)
        self.place_model_on_device = self.strategy.moves_model = may_move(model, self.args, self.strategy.device)
        self.model = self.model_wrapped = self.strategy.place(model) if self.place_model_on_device else model
        self.anatomy = Anatomy.of(model)
        self.model_accepts_loss_kwargs = self.anatomy.takes_loss_arguments
        self.model_divides_by_items = None
        self.can_return_loss = self.anatomy.can_return_loss
        if getattr(model, "config", None) is not None and hasattr(model.config, "__dict__"):
            model.config.use_cache = self.args.use_cache  # type: ignore[union-attr]
        self.label_names = list(self.anatomy.labels) if self.args.label_names is None else self.args.label_names

    def _take_optimizers(self, optimizers: Any, cls_and_kwargs: Any) -> None:
        self.optimizer, self.lr_scheduler, self.optimizer_cls_and_kwargs = None, None, cls_and_kwargs
        named = all_named(optimizers)
        self.named_optimizers = list(named or ())
        if named is not None:
            self.optimizer_cls_and_kwargs = NamedOptimizers.factory(self.named_optimizers, self.args.max_grad_norm), {}
        else:
            self.optimizer, self.lr_scheduler = optimizers
        self.made_schedule = False

    def _open_books(self) -> None:
        """What this Trainer keeps of its runs, and what those who watch it put in their place."""
        self.checkpoint_stamp = {}
        self.on_save_failed = saving.warn_that_saving_failed
        self.relied_on = set
        self.where_is = str
        self._failed_saves = 0
        self._background = Background()
        self._train_batch_size = self.args.train_batch_size
        self._ignore_keys_for_eval = None
        self._eval_loaders = {}
        self._epoch = None
        self.is_in_train = False
        self.state, self.control = self._known_place(TrainerState()), TrainerControl()
        self.current_gradient_accumulation_steps = self.args.gradient_accumulation_steps
        self.current_flos = 0.0

    def _handler(self, callbacks: Sequence[Any]) -> CallbackHandler:
        """Ours first, then theirs: each sees what the ones before it have asked for."""
        if not isinstance(callbacks, Iterable):
            raise TypeError(f"callbacks is a {type(callbacks).__name__}: hand in a list of them")
        ours = [*default_callbacks(self.args), *([FollowEpochs()] if self.named_optimizers else [])]
        every = [*ours, *reporters(self), *watchers(self), *callbacks]
        return self.strategy.callback_handler(
            every, self.model, self.processing_class, self.optimizer, self.lr_scheduler
        )

    def call_model_init(self, trial: Any = None) -> nn.Module:
        if self.model_init is None:
            raise ValueError("this Trainer was given a model, and no model_init to make another")
        return self.model_init(trial) if takes_trial(self.model_init) else self.model_init()

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
        self._hp_search_setup(trial)
        try:
            if self.model_init is not None:
                self._seed()
                self._take_model(self.call_model_init(trial))
                self.optimizer = self.lr_scheduler = None
            with shaped(self):
                return self._train(resume_from_checkpoint)
        except BaseException as error:
            self.strategy.peers.failed(error)
            raise
        finally:
            self.is_in_train = False

    def _train(self, resume_from: str | Path | bool | None) -> TrainOutput:
        args = self.args
        self._memory.start()
        folder = saving.find(self, resume_from)
        loader = self.get_train_dataloader()
        plan = self._plan = Plan(*self.set_initial_training_values(args, loader))
        self.state = self._new_state(plan, folder)
        self.strategy.peers.first(lambda: rehearse_saving(self, resumes=folder is not None))
        self._prepare(plan.max_steps, loader, folder)
        rng = saving.StoredRng(folder, self.strategy.peers) if folder else None

        self._started, self._first_step = time.time(), self.state.global_step
        self._first_token = self.state.num_input_tokens_seen
        self._last_logged_step, self._loss_taken = self.state.global_step, 0.0
        self.model_divides_by_items = None
        self._step = self.strategy.make_step(self)
        self.model_wrapped.zero_grad()
        try:
            self.control = self.callback_handler.on_train_begin(args, self.state, self.control)
            if args.eval_on_start:
                self._evaluate(None, self._ignore_keys_for_eval, skip_scheduler=True)
            run_epochs(self, self._step, loader, rng)
            output = self._finish(self._plan)
        except BaseException as error:
            self._let_save_finish()
            self._end_after(error)
            raise
        self.control = self.callback_handler.on_train_end(args, self.state, self.control)
        return output

    def _end_after(self, error: BaseException) -> None:
        """A progress bar or a tracker that is left open loses what it holds. Why training failed stays what is told."""
        try:
            self.control = self.callback_handler.on_train_end(self.args, self.state, self.control)
        except Exception as another:
            error.add_note(f"and then on_train_end raised {another!r}")

    def set_initial_training_values(
        self, args: contract_arguments.TrainingArguments, dataloader: Any
    ) -> tuple[int, int, int, float, int, int, int]:
        """Epochs, steps in an epoch, examples, samples over the run, samples of a step, batches in an epoch, steps."""
        total = self.get_total_train_batch_size(args)
        return Plan.of(args, dataloader, total, self.num_examples(dataloader)).values()

    def _new_state(self, plan: Plan, folder: Path | None) -> TrainerState:
        state = self._known_place(saving.load_state(self, folder) if folder else TrainerState())
        state.compute_steps(self.args, plan.max_steps)
        state.max_steps, state.num_train_epochs = plan.max_steps, plan.epochs
        state.train_batch_size = self._train_batch_size
        vars(state).update(self._trial_state())
        return state

    def _prepare(self, max_steps: int, loader: Any, folder: Path | None) -> None:
        """Weights before Accelerate sees the model, so that it places them; optimizer and schedule after."""
        self.strategy.forget(all_but=self.model)
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

    def _finish(self, plan: Plan) -> TrainOutput:
        steps = self.state.global_step - self._first_step
        total = self._loss_taken + self._take_loss().total
        samples = plan.samples * steps / max(plan.max_steps, 1)
        figures = speed_metrics("train", self._started, samples=samples, steps=steps)
        self.store_flos()
        figures["total_flos"] = self.state.total_flos
        figures["train_loss"] = total / max(steps, 0.001)
        figures.update(self._memory.figures("train"))
        self.log(figures)
        if self._background.is_under_way:
            self._finish_save()
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self._load_best_model()
        self._finish_current_push()
        return TrainOutput(self.state.global_step, figures["train_loss"], figures)

    def end(self) -> None:
        """At the very end of a script: trackers are closed, processes let go of each other."""
        self.accelerator.end_training()

    def _get_output_dir(self, trial: Any) -> str:
        """The folder that checkpoints are written to."""
        return str(self.args.output_dir or ".")

    # One micro-batch

    @left_out_by(Shortcut.TRAINING_STEP)
    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Forward and backward of one micro-batch. Returns its share of the step's loss, detached."""
        if not self.model.training:
            model.train()
        inputs = self._prepare_inputs(inputs)
        self._loss_is_scaled = None
        with self.compute_loss_context_manager():
            loss: Tensor = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        if not self._is_scaled(num_items_in_batch):
            loss = loss / self.current_gradient_accumulation_steps
        backward_of(self.strategy, self.optimizer)(loss)
        return loss.detach()

    def _is_scaled(self, num_items: Tensor | int | None) -> bool:
        """Whether the loss at hand is already a share of the whole window's: as the user said, or as it came to be."""
        if self.loss_is_scaled_for_ga is not None:
            return self.loss_is_scaled_for_ga
        if self._loss_is_scaled is not None:
            return self._loss_is_scaled
        return self.compute_loss_func is not None or (self.model_accepts_loss_kwargs and num_items is not None)

    @left_out_by(Shortcut.TRAINING_STEP, Shortcut.PREDICTION_STEP, Shortcut.KNOWN_METRICS)
    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The model's own loss, `compute_loss_func`'s, or the one that fits logits and labels."""
        loss, outputs, self._loss_is_scaled = self.loss_of(model, inputs, num_items_in_batch)
        if self.strategy.loss_factor != 1 and self._is_scaled(num_items_in_batch) and torch.is_grad_enabled():
            loss = loss * self.strategy.loss_factor
        return (loss, outputs) if return_outputs else loss

    def loss_of(
        self, model: nn.Module, inputs: dict[str, Any], num_items: Tensor | int | None
    ) -> tuple[Tensor, Any, bool]:
        """(loss, outputs, whether the loss is already a share of the whole window's)."""
        batch, labels = inputs, inputs.get("labels")
        computes = self.compute_loss_func is not None or (self.label_smoother is not None and labels is not None)
        if computes or not self.anatomy.takes_labels:
            inputs = {name: value for name, value in inputs.items() if name != "labels"}
        scales_itself = False
        if self.model_accepts_loss_kwargs and num_items is not None:
            scales_itself = True
            if not computes and self._must_find_out_scaling():
                self.model_divides_by_items = divides_by_items(self, inputs, num_items)
            inputs = {**inputs, "num_items_in_batch": num_items}
        outputs = model(**inputs)
        if self.compute_loss_func is not None:
            return self.compute_loss_func(outputs, labels, num_items_in_batch=num_items), outputs, True
        anatomy = self.anatomy
        if self.label_smoother is not None and labels is not None:
            return self._smoothed(outputs, labels, num_items), outputs, num_items is not None
        loss, scaled = losses.loss_and_how(
            outputs, labels, num_items, shifts=anatomy.shifts_labels, family=anatomy.family, inputs=batch
        )
        if num_items is not None and not scaled and self.model_divides_by_items is False and torch.is_grad_enabled():
            share = share_of_window(loss, batch, num_items, shifts=anatomy.counts_shifted)
            return (loss, outputs, False) if share is None else (share, outputs, True)
        return loss, outputs, scaled or scales_itself

    def _must_find_out_scaling(self) -> bool:
        """In training, unless the window is one micro-batch of one process or `loss_is_scaled_for_ga` says it."""
        return (
            self.model_divides_by_items is None
            and self.loss_is_scaled_for_ga is None
            and (self.current_gradient_accumulation_steps != 1 or self.strategy.readers.world > 1)
            and self.is_in_train
            and torch.is_grad_enabled()
        )

    def _smoothed(self, outputs: Any, labels: Tensor, num_items: Tensor | int | None) -> Tensor:
        assert self.label_smoother is not None
        shifts = self.anatomy.shifts_labels
        return self.label_smoother(outputs, labels, shift_labels=shifts, num_items_in_batch=num_items)

    @left_out_by(Shortcut.TRAINING_STEP, Shortcut.PREDICTION_STEP)
    def compute_loss_context_manager(self) -> AbstractContextManager[Any]:
        return self.autocast_smart_context_manager()

    @left_out_by(Shortcut.TRAINING_STEP, Shortcut.PREDICTION_STEP)
    def autocast_smart_context_manager(self, cache_enabled: bool = True) -> AbstractContextManager[Any]:
        """Nothing: Accelerate puts autocast around `forward` itself."""
        return _NOTHING

    @left_out_by(Shortcut.COUNT_IN_ALL_PROCESSES)
    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Tensor | int | None]:
        """The micro-batches of one step, and how many labels count in them, where the loss needs to know."""
        window = [batch for _, batch in zip(range(num_batches), epoch_iterator, strict=False)]
        return window, self._get_num_items_in_batch(window, device)

    @left_out_by(Shortcut.COUNT_IN_ALL_PROCESSES)
    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Tensor | int | None:
        counts = self.model_accepts_loss_kwargs or self.compute_loss_func is not None or not self.anatomy.takes_labels
        return count_items(batch_samples, device, shifts=self.anatomy.counts_shifted) if counts else None

    @left_out_by(Shortcut.TRAINING_STEP, Shortcut.PREDICTION_STEP)
    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return self._prepare_input(inputs)  # type: ignore[no-any-return]

    @left_out_by(Shortcut.TRAINING_STEP, Shortcut.PREDICTION_STEP)
    def _prepare_input(self, data: Any) -> Any:
        """To the device, tensor by tensor."""
        return self.strategy.to_device(data)

    # Callbacks

    def add_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        self.callback_handler.add_callback(callback)

    def pop_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> TrainerCallback | None:
        return self.callback_handler.pop_callback(callback)

    def remove_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        self.callback_handler.remove_callback(callback)

    def _known_place(self, state: TrainerState) -> TrainerState:
        state.is_local_process_zero, state.is_world_process_zero = (
            self.is_local_process_zero(),
            self.is_world_process_zero(),
        )
        return state

    def is_local_process_zero(self) -> bool:
        return self.args.local_process_index == 0

    def is_world_process_zero(self) -> bool:
        return self.args.process_index == 0


_NOTHING: AbstractContextManager[Any] = nullcontext()
_METHODS = methods_of(Trainer)
