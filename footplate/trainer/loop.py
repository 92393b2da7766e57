"""Training from beginning to end: preparation, epochs, steps, and the results.

One step is in steps/step.py. callbacks.py lists the events and what each may request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from footplate.contract.errors import DatasetError
from footplate.trainer import batch_errors, callback_tensors, reporting, resuming, saving
from footplate.trainer.data import Epoch
from footplate.trainer.internals import Run
from footplate.trainer.model_changes import changed_for_training
from footplate.trainer.placed_models import set_model
from footplate.trainer.plan import DataPosition, StepPlan, resumed
from footplate.trainer.search import trial_state
from footplate.trainer.seeds import data_seed, seed_all
from footplate.trainer.state import TrainerState, TrainOutput
from footplate.trainer.steps import make_step
from footplate.trainer.steps.out_of_memory import explain as explain_memory
from footplate.trainer.steps.step import Step
from footplate.trainer.trial_save import try_saving

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer

log = logging.getLogger("footplate.trainer")


def train(
    trainer: Trainer,
    resume_from_checkpoint: str | Path | bool | None = None,
    trial: Any = None,
    ignore_keys_for_eval: list[str] | None = None,
) -> TrainOutput:
    """Trains to the end, or until a callback stops it. True resumes from the newest complete checkpoint."""
    internals = trainer._footplate
    trainer.is_in_train = True
    internals.run = Run(ignore_keys_for_eval)
    trainer._hp_search_setup(trial)
    try:
        if trainer.model_init is not None:
            seed_all(trainer.args)
            set_model(trainer, trainer.call_model_init(trial))
            trainer.optimizer = trainer.lr_scheduler = None
        with changed_for_training(trainer):
            internals.memory.start("train")
            folder = resuming.find(trainer, resume_from_checkpoint)
            output: TrainOutput = trainer._inner_training_loop(
                batch_size=trainer._train_batch_size,
                args=trainer.args,
                resume_from_checkpoint=None if folder is None else str(folder),
                trial=trial,
                ignore_keys_for_eval=ignore_keys_for_eval,
            )
            return output
    except BaseException as error:
        internals.strategy.peers.report_failure(error)
        raise
    finally:
        trainer.is_in_train = False


def inner_training_loop(
    trainer: Trainer,
    batch_size: int | None = None,
    args: Any = None,
    resume_from_checkpoint: str | None = None,
    trial: Any = None,
    ignore_keys_for_eval: list[str] | None = None,
) -> TrainOutput:
    """Trains from a checkpoint or from the first step, after the model was made and the checkpoint was verified."""
    args, internals = trainer.args, trainer._footplate
    run, peers = internals.run, internals.strategy.peers
    folder = None if resume_from_checkpoint is None else Path(resume_from_checkpoint)
    loader = trainer.get_train_dataloader()
    plan = StepPlan(*trainer.set_initial_training_values(args, loader))
    rng: dict[str, Any] | None = None
    trainer.state, position = TrainerState(), DataPosition()
    if folder is not None:
        trainer.state, old_args = resuming.load_state(trainer, folder)
        trainer._load_callback_state()
        if args.restore_callback_states_from_checkpoint is not False:
            tensors = peers.from_main(lambda: callback_tensors.read(folder))
            callback_tensors.restore(trainer.callback_handler.callbacks, tensors)
        rng = resuming.stored_rng(folder, peers)
        places = rng.get("places", {})
        plan, position = resumed(trainer, plan, internals.strategy.plain_loader(loader), old_args, places)
    run.plan = plan
    state = _with_plan(trainer, plan)
    peers.from_main(lambda: try_saving(trainer, resumes=folder is not None))
    _prepare(trainer, plan.max_steps, loader, folder)

    _log_beginning(trainer, plan, folder)
    run.start_time, run.first_step, run.first_token = time.time(), state.global_step, state.num_input_tokens_seen
    run.last_logged_step = state.global_step
    internals.model_divides_by_items = None
    step = run.step = make_step(trainer)
    trainer.model_wrapped.zero_grad()
    try:
        trainer.control = trainer.callback_handler.on_train_begin(args, state, trainer.control)
        if args.eval_on_start:
            trainer._evaluate(None, run.ignore_keys, skip_scheduler=True)
        run_epochs(trainer, step, loader, rng, position)
        output = _finish(trainer, run.plan)
    except BaseException as error:
        saving.finish_save_after_error(trainer)
        try:
            trainer.control = trainer.callback_handler.on_train_end(args, state, trainer.control)
        except Exception as another:
            error.add_note(f"and then on_train_end raised {another!r}")
        raise
    trainer.control = trainer.callback_handler.on_train_end(args, state, trainer.control)
    return output


def _log_beginning(trainer: Trainer, plan: StepPlan, folder: Path | None) -> None:
    args, batch_size = trainer.args, trainer.get_total_train_batch_size(trainer.args)
    log.info("***** Running training *****")
    log.info("  Num examples = %s, epochs = %s, optimization steps = %s", plan.examples, plan.epochs, plan.max_steps)
    log.info(
        "  Batch size = %d per device, %d in all with parallelism and %d accumulated micro-batches",
        args.per_device_train_batch_size,
        batch_size,
        args.gradient_accumulation_steps,
    )
    if folder is not None:
        log.info("  Resuming from %s at step %d", folder, trainer.state.global_step)


def _with_plan(trainer: Trainer, plan: StepPlan) -> TrainerState:
    """Sets the fields of the Trainer's state that follow from the arguments and the plan, and returns the state."""
    state = trainer.state
    reporting.note_process(trainer, state)
    state.compute_steps(trainer.args, plan.max_steps)
    state.max_steps, state.num_train_epochs = plan.max_steps, plan.epochs
    state.train_batch_size = trainer._train_batch_size
    vars(state).update(trial_state(trainer))
    return state


def _prepare(trainer: Trainer, max_steps: int, loader: Any, folder: Path | None) -> None:
    """Loads the weights, makes the optimizer, lets the strategy prepare model and optimizer, and makes the schedule.

    The weights are loaded first, because the strategy may then wrap or shard the model.
    """
    internals = trainer._footplate
    internals.strategy.release(all_but=trainer.model)
    if folder is not None:
        trainer._load_from_checkpoint(str(folder))
    if internals.made_schedule:
        trainer.lr_scheduler = None
    trainer.create_optimizer()
    trainer.model_wrapped, trainer.optimizer = internals.strategy.prepare(trainer.model, trainer.optimizer)
    trainer.create_scheduler(max_steps)
    internals.strategy.accelerator.prepare(trainer.lr_scheduler)
    trainer._load_optimizer_and_scheduler(None if folder is None else str(folder))
    events = trainer.callback_handler
    events.model, events.optimizer, events.lr_scheduler = trainer.model, trainer.optimizer, trainer.lr_scheduler
    events.train_dataloader = loader


def run_epochs(trainer: Trainer, step: Step, loader: Any, rng: dict[str, Any] | None, position: DataPosition) -> None:
    """Trains from a position in the data to the end of the plan, or until a callback stops it.

    The plan's end may change during training. `rng` is the generators' state of the checkpoint. If the run continues
    within an epoch, the state is restored after the data is opened, because opening draws numbers. At an epoch's start,
    the state is restored before. If only the end of an epoch is left, its evaluation is made up for.
    """
    strategy, run = trainer._footplate.strategy, trainer._footplate.run
    loader = strategy.plain_loader(loader)
    for epoch in count(position.epoch):
        is_run_over = epoch >= run.plan.epochs or trainer.state.global_step >= run.plan.max_steps
        if is_run_over and not position.is_end_left:
            break
        trainer.control = trainer.callback_handler.on_epoch_begin(trainer.args, trainer.state, trainer.control)
        run.epoch = Epoch(
            loader,
            seed=data_seed(trainer.args),
            epoch=epoch,
            skip=position.batch,
            offset=position.offset,
            rng=rng,
        )
        batches = strategy.epoch(run.epoch, loader)
        if not position.is_end_left:
            _run_epoch(trainer, step, epoch, position.batch, batches)
        run.epoch.is_over = run.epoch.is_over or not trainer.control.should_training_stop
        run.epoch.has_ended = True
        trainer.control = trainer.callback_handler.on_epoch_end(trainer.args, trainer.state, trainer.control)
        log_evaluate_save(trainer)
        run.epoch, position, rng = None, DataPosition(), None
        if trainer.control.should_training_stop:
            break


def _run_epoch(trainer: Trainer, step: Step, epoch: int, batch: int, batches: Iterator[Any]) -> None:
    args, state, events = trainer.args, trainer.state, trainer.callback_handler
    internals, run = trainer._footplate, trainer._footplate.run
    accumulate, device = args.gradient_accumulation_steps, internals.strategy.device
    while size := run.plan.micro_batches(batch, accumulate):
        plan = run.plan
        window, items = trainer.get_batch_samples(batches, size, device)
        if not window:
            if batch == 0:
                _end_of_stream(trainer, plan.max_steps)
            break
        trainer.control = events.on_step_begin(args, state, trainer.control)
        run.batches = (epoch, batch, len(window))
        try:
            step.run(window, items)
        except (RuntimeError, MemoryError, IndexError, ValueError) as error:
            if (reason := batch_errors.explained(trainer, window, error)) is not None:
                raise reason from error
            explain_memory(error, window)
            raise
        batch += len(window)
        state.global_step += 1
        state.epoch = epoch + batch / plan.batches_per_epoch
        trainer.control = events.on_step_end(args, state, trainer.control)
        log_evaluate_save(trainer)
        if internals.background is not None and internals.background.checkpoint.done():
            saving.finish_save(trainer)
        if trainer.control.should_training_stop or trainer.control.should_epoch_stop:
            break


def _end_of_stream(trainer: Trainer, max_steps: int) -> None:
    """Ends training after a pass over a stream that gave no batch, because no further pass would give one."""
    step = trainer.state.global_step
    if step == 0:
        raise DatasetError("the training data is a stream that gave no batch: it is empty, or was already read")
    log.warning("the stream has no more batches: training ends at step %s of %s", step, max_steps)
    trainer.control.should_training_stop = True


def log_evaluate_save(trainer: Trainer) -> None:
    """Logs, evaluates and saves, in this order, if the control requests it after a step or an epoch."""
    control, run = trainer.control, trainer._footplate.run
    if control.should_log and trainer.state.global_step > run.last_logged_step:
        reporting.log_training(trainer)
    if trainer.control.should_evaluate:
        metrics = trainer._evaluate(None, run.ignore_keys)
        is_best = trainer._determine_best_metric(metrics, trial=None)
        if trainer.args.save_strategy == "best":
            trainer.control.should_save = is_best
    if trainer.control.should_save:
        saving.save_checkpoint(trainer)


def _finish(trainer: Trainer, plan: StepPlan) -> TrainOutput:
    internals, run, state = trainer._footplate, trainer._footplate.run, trainer.state
    steps = state.global_step - run.first_step
    total = run.loss_taken + reporting.take_loss(trainer).total
    samples = plan.samples * steps / max(plan.max_steps, 1)
    figures = reporting.speed_metrics("train", run.start_time, samples=samples, steps=steps)
    trainer.store_flos()
    figures["total_flos"] = state.total_flos
    figures["train_loss"] = total / max(steps, 0.001)
    figures.update(internals.memory.figures("train"))
    trainer.log(figures)
    saving.finish_save(trainer)
    if hasattr(trainer.optimizer, "eval"):
        # Schedule-free optimizers put their averaged weights into the model. If they did so after the best model is
        # loaded, its weights would be averaged with those of the last step.
        trainer.optimizer.eval()
    if trainer.args.load_best_model_at_end and state.best_model_checkpoint is not None:
        trainer._load_best_model()
    trainer._finish_current_push()
    return TrainOutput(state.global_step, figures["train_loss"], figures)
