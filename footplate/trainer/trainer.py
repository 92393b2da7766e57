"""The Trainer with Hugging Face's names and signatures. All of its methods can be overridden.

Most methods are functions of other modules: of loop.py for the loop, evaluation.py for evaluations, saving.py and
resuming.py for checkpoints. Their first parameter, `trainer`, is the object. The folder steps/ has a step, and
callbacks.py the events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from footplate.contract import arguments as contract_arguments
from footplate.trainer import (
    evaluation,
    evaluation_pass,
    hub,
    loading,
    loop,
    micro_batch,
    modelcard,
    optimizing,
    reporting,
    resuming,
    saving,
    search,
)  # fmt: skip
from footplate.trainer.argument_callbacks import callback_handler
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.callbacks import TrainerCallback
from footplate.trainer.collators.choose import choose_collator
from footplate.trainer.data import Collator, has_length
from footplate.trainer.internals import Internals
from footplate.trainer.losses.smoothing import label_smoother
from footplate.trainer.memory import MemoryMeter
from footplate.trainer.metrics.choose import BatchMetric, make_metric
from footplate.trainer.named import NamedOptimizer, NamedOptimizers, all_named
from footplate.trainer.names import HPSearchBackend
from footplate.trainer.optimizers.choose import optimizer_class
from footplate.trainer.optimizers.groups import decay_parameter_names
from footplate.trainer.overrides import Overrides, Shortcut, left_out_by, methods_of, refuse_overrides
from footplate.trainer.placed_models import set_attributes_of_the_model, set_model
from footplate.trainer.plan import StepPlan
from footplate.trainer.precision import use_tf32
from footplate.trainer.seeds import seed_all
from footplate.trainer.seeds import set_seed as set_seed
from footplate.trainer.state import TrainerControl, TrainerState
from footplate.trainer.strategies.choose import choose
from footplate.trainer.validate import validate


class Trainer:
    """Trains a model on a dataset, with Hugging Face's names: subclass it and override what you need.

    `metrics` is new: names or factories of metrics that stream through an evaluation. Everything else that is not
    Hugging Face's is in `_footplate`.
    """

    loss_is_scaled_for_ga: bool | None = None
    """True if your `compute_loss` already divides by the whole accumulation window. None detects this."""
    _footplate: Internals
    model: nn.Module
    model_wrapped: nn.Module
    accelerator: Any
    optimizer: Any
    lr_scheduler: Any
    state: TrainerState
    control: TrainerControl
    model_accepts_loss_kwargs: bool
    _loss_shifts_labels: bool
    can_return_loss: bool
    is_model_parallel: bool
    place_model_on_device: bool
    label_names: list[str]
    is_deepspeed_enabled: bool
    is_fsdp_enabled: bool
    is_fsdp_xla_enabled = is_fsdp_xla_v1_enabled = is_fsdp_xla_v2_enabled = False
    _signature_columns: list[str] | None = None
    """The columns of a sample that the collator receives. A subclass may set them."""
    _eval_dataloaders: dict[str | None, Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_overrides(cls)

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
        metrics: Sequence[str | Callable[[], BatchMetric]] = (),
        tokenizer: Any = None,
    ) -> None:
        refuse_overrides(type(self))
        self.args = TrainingArguments.of(args or TrainingArguments())
        memory = MemoryMeter(is_measured=not self.args.skip_memory_metrics)
        memory.start("init")
        internals = self._footplate = Internals(Overrides(self, _METHODS), memory, list(metrics))
        reporting.set_log_level(self.args)
        use_tf32(self.args.tf32)
        seed_all(self.args)
        internals.given_model = model
        self.create_accelerator_and_postprocess()
        self.model_init = model_init
        if (model is None) == (model_init is None):
            raise ValueError("a Trainer needs a model or a model_init, and only one of them")
        self.compute_loss_func, self.compute_metrics = compute_loss_func, compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        set_model(self, model if model is not None else self.call_model_init())
        set_attributes_of_the_model(self)
        self.label_smoother = label_smoother(self.args.label_smoothing_factor, self.model)
        self.train_dataset, self.eval_dataset, self._eval_dataloaders = train_dataset, eval_dataset, {}
        self.processing_class = processing_class if processing_class is not None else tokenizer
        for metric in internals.metrics:
            make_metric(metric, self.processing_class)
        first_argument = next(iter(internals.model_signature.arguments), "x")
        self.data_collator = data_collator or choose_collator(self.processing_class, first=first_argument)
        self.optimizer, self.lr_scheduler, self.optimizer_cls_and_kwargs = None, None, optimizer_cls_and_kwargs
        internals.named_optimizers = all_named(optimizers)
        if internals.named_optimizers:
            settings = {"specs": internals.named_optimizers, "max_grad_norm": self.args.max_grad_norm}
            self.optimizer_cls_and_kwargs = (lambda: NamedOptimizers), settings
        else:
            self.optimizer, self.lr_scheduler = optimizers
        self._validate_args()
        self._train_batch_size = self.args.train_batch_size
        self.is_in_train = False
        self.state, self.control = TrainerState(), TrainerControl()
        reporting.note_process(self, self.state)
        self.current_gradient_accumulation_steps: float = self.args.gradient_accumulation_steps
        self.current_flos = 0.0
        self.callback_handler = callback_handler(self, callbacks or ())
        self.hub_model_id: str | None = None
        if self.args.push_to_hub:
            self.init_hf_repo()
        self.control = self.callback_handler.on_init_end(self.args, self.state, self.control)
        memory.end_init()

    _validate_args = validate

    def create_accelerator_and_postprocess(self) -> None:
        """Chooses the strategy, which sets up Accelerate, the device and the communication between processes."""
        strategy = self._footplate.strategy = choose(
            self.args, self._footplate.given_model, self._build_accelerator_args
        )
        self.accelerator = strategy.accelerator
        self.is_deepspeed_enabled, self.is_fsdp_enabled = bool(self.args.deepspeed), bool(self.args.fsdp)

    def _build_accelerator_args(self, **kwargs: Any) -> dict[str, Any]:
        """Returns the arguments of the Accelerator that the strategy makes. An override may change them."""
        from accelerate.utils import DistributedDataParallelKwargs

        from footplate.trainer.strategies.single import ddp_options

        return {"kwargs_handlers": [DistributedDataParallelKwargs(**ddp_options(self.args))], **kwargs}

    @property
    def gather_function(self) -> Callable[[Any], Any]:
        """The function that gathers the tensors of all processes."""
        return self.accelerator.gather_for_metrics  # type: ignore[no-any-return]

    @property
    def deepspeed(self) -> Any:
        """DeepSpeed's engine during training, or None without DeepSpeed."""
        return self.model_wrapped if self.is_deepspeed_enabled and self.model_wrapped is not self.model else None

    @property
    def neftune_noise_alpha(self) -> float | None:
        return self.args.neftune_noise_alpha

    @property
    def hp_search_backend(self) -> HPSearchBackend | None:
        """The backend of the search that is under way. Only optuna is supported."""
        return None if self._footplate.search is None else HPSearchBackend.OPTUNA

    def call_model_init(self, trial: Any = None) -> nn.Module:
        if self.model_init is None:
            raise ValueError(
                "a new model cannot be made, because this Trainer was given a model: pass model_init instead of model"
            )
        return self.model_init(trial) if search.takes_trial(self.model_init) else self.model_init()

    # Training

    train = loop.train
    _inner_training_loop = loop.inner_training_loop

    def set_initial_training_values(
        self, args: contract_arguments.TrainingArguments, dataloader: Any
    ) -> tuple[int, int, int, float, int, int, int]:
        """Returns epochs, steps per epoch, examples, samples of the run, samples per step, batches per epoch, steps."""
        total = self.get_total_train_batch_size(args)
        return StepPlan.of(args, dataloader, total, self.num_examples(dataloader)).values()

    def end(self) -> None:
        """Closes trackers and the connections to other processes. Call it at the end of a script."""
        self.accelerator.end_training()

    def _get_output_dir(self, trial: Any) -> str:
        """Returns the folder in which checkpoints are written."""
        return str(self.args.output_dir or ".")

    # One micro-batch

    get_batch_samples = micro_batch.get_batch_samples
    _get_num_items_in_batch = micro_batch.num_items_in_batch
    training_step = micro_batch.training_step
    compute_loss = micro_batch.compute_loss

    @left_out_by(Shortcut.TRAINING_STEP, Shortcut.PREDICTION_STEP)
    def compute_loss_context_manager(self) -> AbstractContextManager[Any]:
        return self.autocast_smart_context_manager()

    @left_out_by(Shortcut.TRAINING_STEP, Shortcut.PREDICTION_STEP)
    def autocast_smart_context_manager(self, cache_enabled: bool = True) -> AbstractContextManager[Any]:
        """Returns a context that does nothing, because Accelerate already puts autocast around `forward`."""
        return _NOTHING

    @left_out_by(Shortcut.TRAINING_STEP, Shortcut.PREDICTION_STEP)
    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return self._prepare_input(inputs)  # type: ignore[no-any-return]

    @left_out_by(Shortcut.TRAINING_STEP, Shortcut.PREDICTION_STEP)
    def _prepare_input(self, data: Any) -> Any:
        """Moves the tensors of a batch, also nested ones, to the device."""
        return self._footplate.strategy.to_device(data)

    # Data

    get_train_dataloader = loading.get_train_dataloader
    get_eval_dataloader = loading.get_eval_dataloader
    get_test_dataloader = loading.get_test_dataloader
    _get_dataloader = loading.get_dataloader
    _set_signature_columns_if_needed = loading.set_signature_columns
    _remove_unused_columns = loading.remove_unused_columns
    _get_collator_with_removed_columns = loading.collator_of_columns
    _get_train_sampler = loading.train_sampler
    _get_eval_sampler = loading.eval_sampler

    def get_total_train_batch_size(self, args: contract_arguments.TrainingArguments) -> int:
        """Returns the number of samples of one optimizer step, over all processes."""
        strategy = self._footplate.strategy
        micro_batch_size = strategy.batch_size(self._train_batch_size)
        return micro_batch_size * args.gradient_accumulation_steps * strategy.readers.world

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        dataset: Any = getattr(dataloader, "dataset", None)
        if has_length(dataset):
            return len(dataset)
        return len(dataloader) * self._train_batch_size if has_length(dataloader) else 0

    def get_tp_size(self) -> int:
        return self._footplate.strategy.tensor_parallel

    def get_cp_size(self) -> int:
        return self._footplate.strategy.context_parallel

    def get_sp_size(self) -> int:
        return self._footplate.strategy.sequence_parallel

    # Optimizer and schedule

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        self.create_optimizer()
        self.create_scheduler(num_training_steps, self.optimizer)

    create_optimizer = optimizing.create_optimizer
    create_scheduler = optimizing.create_scheduler
    get_optimizer_cls_and_kwargs = staticmethod(optimizer_class)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        return decay_parameter_names(model)

    def get_num_trainable_parameters(self) -> int:
        elements = self._footplate.strategy.elements
        return sum(elements(parameter) for parameter in self.model.parameters() if parameter.requires_grad)

    get_learning_rates = optimizing.learning_rates
    get_optimizer_group = optimizing.optimizer_group
    _get_learning_rate = optimizing.first_learning_rate

    # Evaluation

    evaluate = evaluation.evaluate
    predict = evaluation.predict
    evaluation_loop = evaluation_pass.evaluation_loop
    prediction_step = evaluation.prediction_step
    _evaluate = evaluation.evaluate_in_training
    _determine_best_metric = evaluation.determine_best_metric

    # Search

    hyperparameter_search = search.hyperparameter_search
    _hp_search_setup = search.set_up_trial
    _report_to_hp_search = search.report_to_search

    # Logs

    log = reporting.log
    log_metrics = reporting.log_metrics
    save_metrics = reporting.save_metrics

    metrics_format = staticmethod(reporting.metrics_format)
    store_flos = reporting.store_flos
    floating_point_ops = reporting.floating_point_ops

    # Models and checkpoints

    save_model = saving.save_model
    _save = saving.write_model
    save_merged_model = saving.save_merged_model
    _save_checkpoint = saving.save
    _load_optimizer_and_scheduler = resuming.load_optimizer
    _load_callback_state = resuming.load_callback_states
    _load_from_checkpoint = resuming.load_weights
    save_state = saving.save_state

    def _load_best_model(self) -> None:
        self._load_from_checkpoint(str(self.state.best_model_checkpoint))

    # The hub

    init_hf_repo = hub.init_hf_repo
    push_to_hub = hub.push_to_hub
    create_model_card = modelcard.create_model_card
    push_in_progress = property(hub.push_in_progress, hub.forget_pushes)
    _push_from_checkpoint = hub.push_checkpoint
    _finish_current_push = hub.finish_current_push

    # Callbacks

    def add_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        self.callback_handler.add_callback(callback)

    def pop_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> TrainerCallback | None:
        return self.callback_handler.pop_callback(callback)

    def remove_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        self.callback_handler.remove_callback(callback)

    def is_local_process_zero(self) -> bool:
        return self.args.local_process_index == 0

    def is_world_process_zero(self) -> bool:
        return self.args.process_index == 0


_NOTHING: AbstractContextManager[Any] = nullcontext()
_METHODS = methods_of(Trainer)
