"""The fields, in small groups. A field's meaning stands under the field; docs and forms are made from it.

Names and defaults are Hugging Face's. A group knows nothing of the others: what must agree across groups is checked in
`agree.py`. Every field here is honoured by the loop; what is not yet is in `notyet.py`. These are plain dataclasses:
pydantic checks what inherits them all, and a check of each by itself would cost every import, and serve nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field


def _whole(value: object) -> object:
    """`5e8` is a good integer: JSON has one kind of number. `5.5` and `true` stay what they are, and are refused."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _value(value: object) -> object:
    """`IntervalStrategy.STEPS` is "steps", whoever's enum it is."""
    return value.value if isinstance(value, Enum) else value


MOST = 2**53 - 1
"""The largest whole number that JSON carries to everyone unchanged; SQL and tensors take it, too."""
Whole = Annotated[int, BeforeValidator(_whole), Field(ge=-MOST, le=MOST)]
Count = Annotated[Whole, Field(ge=1)]
NotNegative = Annotated[Whole, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]

Named = BeforeValidator(_value)
Strategy = Annotated[Literal["no", "steps", "epoch"], Named]
SaveStrategy = Annotated[Literal["no", "steps", "epoch", "best"], Named]
LogLevel = Literal["debug", "detail", "info", "warning", "error", "critical", "passive"]
ScheduleNames = Literal[
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
    "reduce_lr_on_plateau",
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "warmup_stable_decay",
    "greedy",
]
ScheduleName = Annotated[ScheduleNames, Named]
OptimizerNames = Literal[
    "adamw_torch",
    "adamw_torch_fused",
    "adafactor",
    "sgd",
    "adagrad",
    "rmsprop",
    "lion_32bit",
    "schedule_free_adamw",
    "schedule_free_sgd",
    "adamw_torch_4bit",
    "adamw_torch_8bit",
    "adamw_bnb_8bit",
    "adamw_8bit",
    "paged_adamw_32bit",
    "paged_adamw_8bit",
    "ademamix",
    "ademamix_8bit",
    "paged_ademamix_32bit",
    "paged_ademamix_8bit",
    "lion_8bit",
    "paged_lion_32bit",
    "paged_lion_8bit",
    "rmsprop_bnb",
    "rmsprop_bnb_8bit",
    "rmsprop_bnb_32bit",
]
OptimizerName = Annotated[OptimizerNames, Named]

OURS = frozenset({"logging_dir", "max_nan_steps", "keep_last", "keep_best", "save_in_background"})
"""Fields that the reference does not have, or, as logging_dir, no longer has."""

OTHER_DEFAULTS = {
    "restore_callback_states_from_checkpoint": "a resume is the same run, and what callbacks know is part of it",
}
"""Fields whose default is not the reference's, with the reason."""

CONFIG = ConfigDict(extra="forbid", allow_inf_nan=False, defer_build=True)


@dataclass
class Output:
    output_dir: str | None = None
    """Where checkpoints and results go. None is `trainer_output`. In a job the server chooses it."""


@dataclass
class Duration:
    per_device_train_batch_size: Count = 8
    """Samples per device and micro-batch."""
    num_train_epochs: Annotated[float, Field(ge=0)] = 3.0
    """How often to go through the training data; a fraction stops within an epoch. `max_steps` wins over it."""
    max_steps: Whole = -1
    """Optimizer steps in all; -1 lets `num_train_epochs` decide."""
    gradient_accumulation_steps: Count = 1
    """Micro-batches whose gradients make one optimizer step."""


@dataclass
class LearningRate:
    learning_rate: Annotated[float, Field(ge=0)] = 5e-5
    """The rate after warm-up, from which the schedule starts."""
    lr_scheduler_type: ScheduleName = "linear"
    """How the rate moves over the steps."""
    lr_scheduler_kwargs: dict[str, Any] | None = None
    """Further arguments of the schedule, such as `num_cycles` or `min_lr`."""
    warmup_steps: Annotated[float, Field(ge=0)] = 0
    """Steps in which the rate rises from 0; below 1 it is a share of all steps."""


@dataclass
class Optimizer:
    optim: OptimizerName = "adamw_torch_fused"
    """Which optimizer. Those of bitsandbytes and torchao need the extra of that name."""
    optim_args: str | None = None
    """Further arguments of the optimizer, such as "momentum=0.9, nesterov=true"."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Decay of the weights; biases and norms are left out."""
    adam_beta1: Fraction = 0.9
    """Decay of AdamW's first moment."""
    adam_beta2: Fraction = 0.999
    """Decay of AdamW's second moment."""
    adam_epsilon: Annotated[float, Field(ge=0)] = 1e-8
    """Keeps AdamW from dividing by zero."""
    max_grad_norm: Annotated[float, Field(ge=0)] = 1.0
    """Gradients are scaled down to this norm; 0 leaves them alone."""


@dataclass
class Precision:
    bf16: bool = False
    """Compute in bfloat16 under autocast; the weights stay as they are."""
    fp16: bool = False
    """Compute in float16 under autocast, with a loss scale that leaves out steps which overflow."""
    bf16_full_eval: bool = False
    """Outside of training, evaluate with the weights themselves in bfloat16: half the memory. They come back."""
    fp16_full_eval: bool = False
    """The same in float16."""
    tf32: bool | None = None
    """Allow TF32 on GPUs that have it; None leaves torch's own setting."""


@dataclass
class Regularization:
    label_smoothing_factor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """How much of each label is spread over all classes."""
    neftune_noise_alpha: Annotated[float, Field(ge=0)] | None = None
    """Noise on the embeddings in training (NEFTune); 5 to 15 are usual."""


@dataclass
class Activations:
    activation_checkpointing: bool | None = None
    """Compute activations again in backward instead of keeping them: less memory, some 20 % slower."""
    activation_checkpointing_kwargs: dict[str, Any] | str | None = None
    """`every_n_layers`, and what torch.utils.checkpoint takes."""
    gradient_checkpointing: bool | None = None
    """The older name of `activation_checkpointing`."""
    gradient_checkpointing_kwargs: dict[str, Any] | str | None = None
    """The older name of `activation_checkpointing_kwargs`."""


@dataclass
class Compilation:
    torch_compile: bool = False
    """Compile the model's forward."""
    torch_compile_backend: str | None = None
    """With which backend; naming one compiles."""
    torch_compile_mode: str | None = None
    """`default`, `reduce-overhead`, `max-autotune`; naming one compiles."""


@dataclass
class Kernels:
    use_liger_kernel: bool = False
    """Train a model of transformers with Liger's kernels. Needs a GPU, and the extra `liger`."""
    liger_kernel_config: dict[str, bool] | None = None
    """Which: `rope`, `rms_norm`, `swiglu`, `cross_entropy`, `fused_linear_cross_entropy`. None leaves it to Liger."""


@dataclass
class Further:
    use_cache: bool = False
    """Whether the model keeps its keys and values from one forward to the next: `model.config.use_cache`."""
    torch_empty_cache_steps: Count | None = None
    """Steps between calls that give cached memory back to the device. Slower; helps against fragmentation."""
    auto_find_batch_size: bool = False
    """Where a micro-batch does not fit into memory, cut it in halves until it does. The effective batch, the curve and
    the place in the data stay what they are: accumulation is raised instead."""


@dataclass
class Logging:
    logging_strategy: Strategy = "steps"
    """When to log the training loss."""
    logging_steps: Annotated[float, Field(ge=0)] = 500
    """Optimizer steps between logs; below 1 a share of all steps."""
    logging_first_step: bool = False
    """Log the first step too."""
    logging_nan_inf_filter: bool = True
    """Leave losses that are NaN or infinite out of the logged loss. How many steps had one is logged as `nan_steps`."""
    max_nan_steps: Count | None = None
    """End training with an error, which names the steps, once so many in a row had a loss that is NaN or infinite. It
    looks every so many steps, since looking waits for the device: the run ends before twice as many are lost, and a
    stretch that is over by then is borne."""
    include_num_input_tokens_seen: Literal["no", "all", "non_padding"] | bool = "no"
    """Count input tokens, all or without padding, and log how many per second. True is `all`."""
    disable_tqdm: bool | None = None
    """No progress bar; plain lines instead. None shows a bar on a terminal only."""


@dataclass
class LogLevels:
    log_level: LogLevel = "passive"
    """What the logger `footplate` says at least, on the main process; `passive` leaves it as it is."""
    log_level_replica: LogLevel = "warning"
    """The same on every other process."""


@dataclass
class Tracking:
    report_to: str | list[str] | None = "none"
    """Trackers that get what is logged: `tensorboard`, `wandb`, `mlflow`, …, `all` that are installed, or `none`."""
    run_name: str | None = None
    """What trackers call this run; None is the last part of `output_dir`."""
    project: str = "huggingface"
    """What trackers that have projects call this one."""
    logging_dir: str | None = None
    """Where trackers that write files write them; None takes TENSORBOARD_LOGGING_DIR, or `output_dir/runs`."""
    trackio_space_id: str | None = None
    """The Space that trackio logs to live; None logs into a local folder."""
    trackio_bucket_id: str | None = None
    """The bucket that such a Space keeps its data in; None lets trackio choose."""
    trackio_static_space_id: str | Literal[False] | None = None
    """What to call the static copy that is made of a Space when training ends, and of local logs when a model is pushed
    to the hub; None makes a name up, False makes none."""


@dataclass
class Evaluation:
    eval_strategy: Strategy = "no"
    """When to evaluate."""
    eval_steps: Annotated[float, Field(ge=0)] | None = None
    """Optimizer steps between evaluations; None follows `logging_steps`; below 1 a share of all steps."""
    eval_delay: Annotated[float, Field(ge=0)] = 0
    """Steps (or epochs, as the strategy counts) before the first evaluation."""
    eval_on_start: bool = False
    """Evaluate once before the first step: finds what is broken while it is cheap."""
    per_device_eval_batch_size: Count = 8
    """Samples per device in evaluation."""
    prediction_loss_only: bool = False
    """Return the loss only; no predictions, no metrics."""
    eval_do_concat_batches: bool = True
    """Join the predictions of all batches; False keeps a list with one entry per batch."""
    eval_accumulation_steps: Count | None = None
    """Batches whose predictions stay on the device before they are moved to the host; None moves each as it comes."""
    include_for_metrics: list[str] = field(default_factory=list)
    """What else `compute_metrics` gets: `inputs`, `loss`."""
    batch_eval_metrics: bool = False
    """Call `compute_metrics` batch by batch, the last time with `compute_result=True`: memory stays flat."""
    label_names: list[str] | None = None
    """The batch's keys that are labels; None takes the arguments of `forward` that speak of labels."""


@dataclass
class BestModel:
    load_best_model_at_end: bool = False
    """After training, load the best checkpoint's weights. Saving and evaluating must then go together."""
    metric_for_best_model: str | None = None
    """The metric that decides, with or without `eval_`; `loss` when the best model is asked for."""
    greater_is_better: bool | None = None
    """Whether more of it is better; None means yes unless its name ends in `loss`."""


@dataclass
class Hub:
    push_to_hub: bool = False
    """Push checkpoints to the Hugging Face hub as they are saved, and the model when `save_model` is called."""
    hub_model_id: str | None = None
    """The repository, `name` or `owner/name`; None takes the name of `output_dir`."""
    hub_strategy: Annotated[Literal["end", "every_save", "checkpoint", "all_checkpoints"], Named] = "every_save"
    """`end`: nothing beside training. `every_save`: the model of each checkpoint. `checkpoint`: also all of it, as
    `last-checkpoint`, so that anyone can continue. `all_checkpoints`: each under its own name."""
    hub_token: str | None = None
    """With which to push; None takes the one that `hf auth login` left, or HF_TOKEN. Never written anywhere."""
    hub_private_repo: bool | None = None
    """Whether a repository that is made for it is private; None is what its owner has chosen."""
    hub_always_push: bool = False
    """Push a checkpoint also while the one before is still on its way."""
    hub_revision: str | None = None
    """The branch to push to; None is the main one."""


@dataclass
class Checkpointing:
    save_strategy: SaveStrategy = "steps"
    """When to save a checkpoint; `best` saves whenever an evaluation is the best so far."""
    save_steps: Annotated[float, Field(ge=0)] = 500
    """Optimizer steps between checkpoints; below 1 a share of all steps."""
    save_total_limit: Count | None = None
    """How many to keep; None keeps all. The best and the newest are never deleted, nor is the newest that the service
    has stored, from which a job would go on if its node died now."""
    keep_last: Count | None = None
    """How many of the newest to keep, beside the best ones; None follows `save_total_limit`."""
    keep_best: Count | None = None
    """How many of the best to keep, beside the newest ones, as `metric_for_best_model` ranks them."""
    save_only_model: bool = False
    """Save the weights without what continuing needs: smaller, and nothing can resume from it."""
    save_in_background: bool = False
    """Training waits for the copy only; another thread writes. `on_save` is then told at the step after the commit."""
    enable_jit_checkpoint: bool = False
    """On SIGTERM save a checkpoint after the step at hand, and stop. In a job, a drain does so by itself."""
    restore_callback_states_from_checkpoint: bool = True
    """On resume give callbacks with state theirs back. True here, unlike the reference's: a resume is the same run."""
    ignore_data_skip: bool = False
    """On resume start the data of the epoch again, instead of where it stopped."""


@dataclass
class Reproducibility:
    seed: NotNegative = 42
    """Seeds Python, NumPy and torch, and so the initial weights where the model is made by the trainer, and dropout."""
    data_seed: NotNegative | None = None
    """Seeds the order of the data; None takes `seed`."""
    full_determinism: bool = False
    """Ask torch for algorithms that give the same bits every time. Slower."""


@dataclass
class Hardware:
    use_cpu: bool = False
    """Stay on the CPU even where there is a GPU. In a job, ask for `gpus_per_node: 0`."""


@dataclass
class DataLoading:
    dataloader_drop_last: bool = False
    """Leave out the last batch where it is smaller."""
    dataloader_num_workers: NotNegative = 0
    """Processes that load data; 0 loads in the training process."""
    dataloader_pin_memory: bool = True
    """Pin batches in memory, so that they reach a GPU without waiting. Nothing to do with on a CPU."""
    dataloader_persistent_workers: bool = False
    """Keep the loading processes from one epoch to the next, and those of an evaluation to the next evaluation."""
    dataloader_prefetch_factor: Count | None = None
    """Batches that each loading process keeps ready."""
    dataloader_multiprocessing_context: Literal["fork", "spawn", "forkserver"] | None = None
    """How loading processes are started; None is torch's own choice."""
    dataloader_in_order: bool = True
    """Batches come in the order in which they were asked for; False takes whichever is ready: no resume is exact."""
    remove_unused_columns: bool = True
    """Leave out of the samples what the model's `forward` does not take."""
    train_sampling_strategy: Literal["random", "sequential", "group_by_length", "batch_rebalance"] = "random"
    """In which order the training data is read: samples of like length together, or batches of like weight."""
    length_column_name: str = "length"
    """The column that holds a sample's length, for the orders that look at it; without it lengths are counted."""


@dataclass
class Debugging:
    debug: str | list[str] = ""
    """`underflow_overflow` ends training where an activation becomes NaN or infinite, and names the module."""
    skip_memory_metrics: bool = True
    """False adds to the metrics how much memory each stage took."""


@dataclass
class Generation:
    """Of Seq2SeqTrainingArguments alone."""

    predict_with_generate: bool = False
    """Generate in evaluation and prediction, so that metrics see what the model would say."""
    generation_max_length: Count | None = None
    """The longest text to generate; None takes the model's own."""
    generation_num_beams: Count | None = None
    """How many beams to search with; None takes the model's own."""


@dataclass
class Flags:
    do_train: bool = False
    """For scripts and specs: train. The Trainer itself does not read it."""
    do_eval: bool = False
    """For scripts and specs: evaluate. True by itself when `eval_strategy` is not `no`."""
    do_predict: bool = False
    """For scripts and specs: predict the test data."""
    resume_from_checkpoint: str | None = None
    """For scripts: the folder to hand to `train()`. In a job, the spec's own `resume_from` says it."""
