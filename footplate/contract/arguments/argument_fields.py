"""The fields of TrainingArguments: types, defaults, and the meanings that docs and forms show.

Names and defaults are Hugging Face's. Rules between fields are in `consistency.py`, and unsupported names in
`not_supported.py`. The Trainer applies every field here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from footplate.contract import fields
from footplate.contract.arguments.parallelism import sizes


def _value(value: object) -> object:
    """Returns the value of an enum of any library: `IntervalStrategy.STEPS` is "steps"."""
    return value.value if isinstance(value, Enum) else value


def _path_as_text(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _plain(value: object) -> object:
    """Converts a path to text, and an object with `to_dict`, such as Accelerate's AcceleratorConfig, to a dict."""
    if isinstance(value, type):
        raise NotImplementedError(
            f"Tried passing in a callable to `accelerator_config`: {value.__name__} is a class. Pass an object of it, "
            "a dict or the path of a JSON file"
        )
    to_dict: Any = getattr(value, "to_dict", None)
    return to_dict() if to_dict is not None else _path_as_text(value)


MOST = 2**53 - 1
"""The largest whole number that every JSON parser keeps exact."""
Whole = Annotated[fields.Whole, Field(ge=-MOST, le=MOST)]
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
OfTorchao = Literal["adamw_torch_4bit", "adamw_torch_8bit"]
OfBitsandbytes = Literal[
    "adamw_bnb_8bit", "adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit", "ademamix", "ademamix_8bit",
    "paged_ademamix_32bit", "paged_ademamix_8bit", "lion_8bit", "paged_lion_32bit", "paged_lion_8bit",
    "rmsprop_bnb", "rmsprop_bnb_8bit", "rmsprop_bnb_32bit",
]  # fmt: skip
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
    OfTorchao,
    OfBitsandbytes,
]
OptimizerName = Annotated[OptimizerNames, Named]

Folder = Annotated[str | None, BeforeValidator(_path_as_text)]
Settings = Annotated[dict[str, Any] | str | None, BeforeValidator(_plain)]
"""A dict, or the path of a JSON file that contains a JSON object."""
Parallelism = Annotated[dict[str, int] | None, BeforeValidator(sizes)]

CONFIG = ConfigDict(extra="forbid", allow_inf_nan=False, defer_build=True)


@dataclass
class Fields:
    """The arguments of training with their types and defaults.

    This is a plain dataclass without checks. TrainingArguments, a pydantic dataclass, inherits from it and checks.
    """

    # Output

    output_dir: Folder = None
    """The folder for checkpoints and results. None is `trainer_output`. In a job, the server chooses the folder."""

    # Duration

    per_device_train_batch_size: Count = 8
    """Samples per device and micro-batch."""
    num_train_epochs: Annotated[float, Field(ge=0)] = 3.0
    """Passes over the training data. A fraction stops within an epoch. `max_steps`, if set, replaces this limit."""
    max_steps: Whole = -1
    """The number of optimizer steps of the run. -1 means that `num_train_epochs` decides."""
    gradient_accumulation_steps: Count = 1
    """The number of micro-batches whose gradients are added up for one optimizer step."""

    # Learning rate

    learning_rate: Annotated[float, Field(ge=0)] = 5e-5
    """The learning rate after the warm-up, from which the schedule starts."""
    lr_scheduler_type: ScheduleName = "linear"
    """The schedule of the learning rate over the steps."""
    lr_scheduler_kwargs: dict[str, Any] | None = None
    """Further arguments of the schedule, such as `num_cycles` or `min_lr`."""
    warmup_steps: Annotated[float, Field(ge=0)] = 0
    """Steps in which the learning rate rises from 0. A value below 1 is a share of all steps."""

    # Optimizer

    optim: OptimizerName = "adamw_torch_fused"
    """The optimizer. Optimizers of bitsandbytes and torchao need the extra of that name."""
    optim_args: str | None = None
    """Further arguments of the optimizer, such as "momentum=0.9, nesterov=true"."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """The weight decay, from which biases and norms are excluded."""
    adam_beta1: Fraction = 0.9
    """The decay rate of AdamW's first moment."""
    adam_beta2: Fraction = 0.999
    """The decay rate of AdamW's second moment."""
    adam_epsilon: Annotated[float, Field(ge=0)] = 1e-8
    """A small number that is added to AdamW's denominators, so that it never divides by zero."""
    max_grad_norm: Annotated[float, Field(ge=0)] = 1.0
    """The largest norm of the gradients. Larger gradients are scaled down to this norm. 0 turns clipping off."""

    # Regularization

    label_smoothing_factor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of each label that is spread over all classes."""
    neftune_noise_alpha: Annotated[float, Field(ge=0)] | None = None
    """The strength of the noise on embeddings in training (NEFTune). Values from 5 to 15 are usual."""

    # Precision

    bf16: bool = False
    """Compute in bfloat16 under autocast. The dtype of the weights does not change."""
    fp16: bool = False
    """Compute in float16 under autocast, with a loss scale that skips steps with an overflow."""
    bf16_full_eval: bool = False
    """Convert the weights to bfloat16 for evaluations outside of training, which halves the memory, and back
    afterwards."""
    fp16_full_eval: bool = False
    """The same as `bf16_full_eval`, in float16."""
    tf32: bool | None = None
    """Allow TF32 on GPUs that support it. None does not change torch's setting."""

    # Activations

    activation_checkpointing: bool | None = None
    """Compute activations again in backward instead of storing them. Needs less memory, and is about 20 % slower."""
    activation_checkpointing_kwargs: dict[str, Any] | str | None = None
    """`every_n_layers`, and the arguments of torch.utils.checkpoint."""
    gradient_checkpointing: bool | None = None
    """The older name of `activation_checkpointing`."""
    gradient_checkpointing_kwargs: dict[str, Any] | str | None = None
    """The older name of `activation_checkpointing_kwargs`."""

    # Compilation

    torch_compile: bool = False
    """Compile the model's forward."""
    torch_compile_backend: str | None = None
    """The compiler's backend. A value turns compilation on."""
    torch_compile_mode: str | None = None
    """The compiler's mode: `default`, `reduce-overhead` or `max-autotune`. A value turns compilation on."""

    # Kernels

    use_liger_kernel: bool = False
    """Use Liger's kernels in a transformers model. Needs a GPU and the extra `liger`."""
    liger_kernel_config: dict[str, bool] | None = None
    """Liger's kernels to switch on or off: `rope`, `rms_norm`, `swiglu`, `cross_entropy`, `fused_linear_cross_entropy`.
    None uses Liger's defaults."""

    # Memory

    use_cache: bool = False
    """The value of `model.config.use_cache`: True makes the model keep keys and values from one forward to the next."""
    torch_empty_cache_steps: Annotated[int, Field(ge=1, le=MOST, strict=True)] | None = None
    """Steps between calls that empty torch's cache of device memory. Slower, but reduces fragmentation."""
    auto_find_batch_size: bool = False
    """Split micro-batches that do not fit into memory until they fit. The effective batch, the loss curve and the
    position in the data stay the same, because more micro-batches are accumulated instead."""

    # Logging

    logging_strategy: Strategy = "steps"
    """The moments at which the training loss is logged."""
    logging_steps: Annotated[float, Field(ge=0)] = 500
    """Optimizer steps between logs. A value below 1 is a share of all steps."""
    logging_first_step: bool = False
    """Log the first step as well."""
    logging_nan_inf_filter: bool = True
    """Leave losses that are NaN or infinite out of the logged loss. `nan_steps` logs the number of such steps."""
    max_nan_steps: Count | None = None
    """End training with an error if the loss was NaN or infinite in this many steps in a row. The error names the
    steps. The check waits for the device, so it runs only once in this many steps."""
    include_num_input_tokens_seen: Literal["no", "all", "non_padding"] | bool = "no"
    """Count input tokens, with or without padding, and log the tokens per second. True means `all`."""
    disable_tqdm: bool | None = None
    """Print plain lines instead of a progress bar. None shows a bar if the output is a terminal."""

    log_level: LogLevel = "passive"
    """The lowest level that the logger `footplate` prints on the main process. `passive` does not change it."""
    log_level_replica: LogLevel = "warning"
    """The same as `log_level`, for all other processes."""

    # Tracking

    report_to: str | list[str] | None = "none"
    """Trackers that receive the logs: `tensorboard`, `wandb`, `mlflow`, …, `all` that are installed, or `none`."""
    run_name: str | None = None
    """The run's name in trackers. None is the last component of `output_dir`."""
    project: str = "huggingface"
    """The project's name in trackers that have projects."""
    logging_dir: Folder = None
    """The folder of trackers that write files. None means TENSORBOARD_LOGGING_DIR or `output_dir/runs`."""
    trackio_space_id: str | None = None
    """The Hugging Face Space to which trackio sends logs during training. None writes logs to a local folder."""
    trackio_bucket_id: str | None = None
    """The bucket in which trackio's Space stores its data. None lets trackio choose."""
    trackio_static_space_id: str | Literal[False] | None = None
    """The name of the static Space to which trackio's logs are copied, at the end of training or when the model is
    pushed. None generates a name. False makes no copy."""

    # Evaluation

    eval_strategy: Strategy = "no"
    """The moments at which the model is evaluated."""
    eval_steps: Annotated[float, Field(ge=0)] | None = None
    """Optimizer steps between evaluations. A value below 1 is a share of all steps. None uses `logging_steps`."""
    eval_delay: Annotated[float, Field(ge=0)] = 0
    """The number of steps, or of epochs for the strategy `epoch`, before the first evaluation."""
    eval_on_start: bool = False
    """Evaluate once before the first step, to find errors early."""
    per_device_eval_batch_size: Count = 8
    """Samples per device in evaluation."""
    prediction_loss_only: bool = False
    """Return the loss only, without predictions and metrics."""
    eval_do_concat_batches: bool = True
    """Join the predictions of all batches. False keeps a list with one entry per batch."""
    eval_accumulation_steps: Count | None = None
    """The number of batches after which predictions are moved to the host. None moves them after each batch."""
    include_for_metrics: list[str] = field(default_factory=list)
    """Additional data that `compute_metrics` receives: `inputs`, `loss`."""
    batch_eval_metrics: bool = False
    """Call `compute_metrics` for each batch, so that memory stays constant. The last call has `compute_result=True`."""
    label_names: list[str] | None = None
    """The keys of a batch that are labels. None detects them by the argument names of `forward`."""

    # Hub

    push_to_hub: bool = False
    """Push checkpoints to the Hugging Face hub as they are saved, and the model when `save_model` is called."""
    hub_model_id: str | None = None
    """The hub repository: `name` or `owner/name`. None uses the name of `output_dir`."""
    hub_strategy: Annotated[Literal["end", "every_save", "checkpoint", "all_checkpoints"], Named] = "every_save"
    """The files to push. `end` pushes nothing during training. `every_save` pushes the model of each checkpoint.
    `checkpoint` also pushes the whole checkpoint as `last-checkpoint`, so that training can be resumed elsewhere.
    `all_checkpoints` pushes every checkpoint under its own name."""
    hub_token: str | None = None
    """The hub token. None uses the token of `hf auth login` or HF_TOKEN. The token is never written to a file."""
    hub_private_repo: bool | None = None
    """Make a new repository private. None uses the owner's default."""
    hub_always_push: bool = False
    """Push a checkpoint even if the previous upload is not finished."""
    hub_revision: str | None = None
    """The branch to push to. None means the main branch."""

    # Best model

    load_best_model_at_end: bool = False
    """Load the best checkpoint's weights after training. Saves and evaluations must be at the same steps."""
    metric_for_best_model: str | None = None
    """The metric that ranks checkpoints, with or without `eval_`. None means `loss` if a ranking is needed."""
    greater_is_better: bool | None = None
    """True if a larger metric is better. None means True unless the metric's name ends with `loss` or `loss_exact`."""

    # Checkpoints

    save_strategy: SaveStrategy = "steps"
    """The moments at which a checkpoint is saved. `best` saves after each evaluation that is the best so far."""
    save_steps: Annotated[float, Field(ge=0)] = 500
    """Optimizer steps between checkpoints. A value below 1 is a share of all steps."""
    save_total_limit: Count | None = None
    """The number of checkpoints to keep. None keeps all. The best and the newest are never deleted. In a job,
    the newest checkpoint that the service has stored is kept too, because the job resumes from it if its node dies."""
    keep_last: Count | None = None
    """The number of newest checkpoints to keep in addition to the best ones. None uses `save_total_limit`."""
    keep_best: Count | None = None
    """The number of best checkpoints to keep in addition to the newest ones, ranked by `metric_for_best_model`."""
    save_only_model: bool = False
    """Save only the weights. Checkpoints are smaller, but training cannot resume from them."""
    save_in_background: bool = False
    """Write checkpoints in a thread, so that training waits only while the weights are copied. `on_save` is called at
    the end of the first step after the commit."""
    enable_jit_checkpoint: bool = False
    """Save a checkpoint and stop on SIGTERM, after the current step. A job does not need this,
    because a drain of its node saves a checkpoint anyway."""
    restore_callback_states_from_checkpoint: bool | None = None
    """The callbacks' state that a resume restores. None restores counters and keeps the callbacks' new arguments. True
    also restores the arguments, as Hugging Face does. False restores nothing."""
    ignore_data_skip: bool = False
    """Read the epoch's data from its beginning on resume, instead of from the position at which the run stopped."""

    # Reproducibility

    seed: NotNegative = 42
    """The seed of Python, NumPy and torch, for dropout, and for initial weights that the Trainer makes."""
    data_seed: NotNegative | None = None
    """The seed of the order of the data. None uses `seed`."""
    full_determinism: bool = False
    """Make torch use algorithms with bit-identical results. Training is slower."""

    # Hardware

    use_cpu: bool = False
    """Train on the CPU even if there is a GPU. In a job, set `gpus_per_node` to 0 instead."""

    # Data loading

    dataloader_drop_last: bool = False
    """Leave out an epoch's last batch if it is smaller than the others."""
    dataloader_num_workers: NotNegative = 0
    """The number of processes that load data. 0 loads data in the training process."""
    dataloader_pin_memory: bool = True
    """Copy batches to pinned memory, from which a GPU can read without making the host wait. No effect on a CPU."""
    dataloader_persistent_workers: bool = False
    """Keep loading processes running between epochs and between evaluations. If the training data is a stream that
    resumes at its position, each epoch starts new ones."""
    dataloader_prefetch_factor: Count | None = None
    """The number of batches that each loading process loads in advance."""
    dataloader_multiprocessing_context: Literal["fork", "spawn", "forkserver"] | None = None
    """The start method of loading processes. None uses torch's default."""
    dataloader_in_order: bool = True
    """Return batches in the order in which they were requested. False returns the first batch that is ready, so that a
    resume is not bit-exact."""
    remove_unused_columns: bool = True
    """Remove columns of the samples that the model's `forward` does not take."""
    train_sampling_strategy: Literal["random", "sequential", "group_by_length", "batch_rebalance"] = "random"
    """The order of the training data. `group_by_length` puts samples of similar length together. `batch_rebalance`
    makes micro-batches of similar cost."""
    length_column_name: str = "length"
    """The column with the samples' lengths, for strategies that need lengths. Without it, samples are measured."""

    # Several processes

    local_rank: Whole = -1
    """The process's index on its node, for launchers that pass it on the command line. The variable LOCAL_RANK, which
    torchrun sets, has priority."""
    average_tokens_across_devices: bool = True
    """Divide a loss that is summed over tokens by the number of tokens in all processes. False divides it by the number
    in each process."""
    log_on_each_node: bool = True
    """Log and print in the first process of every node. False logs only in the first process of the run."""
    save_on_each_node: bool = False
    """Write checkpoints in the first process of every node, for nodes without a shared file system."""
    eval_use_gather_object: bool = False
    """Allow predictions of any type in runs of several processes, by pickling them. False allows tensors only."""
    accelerator_config: Settings = None
    """Accelerate's settings for loaders: `split_batches`, `even_batches`, `non_blocking`,
    `gradient_accumulation_kwargs`. A dict, an AcceleratorConfig, or the path of a JSON file."""

    # DDP

    ddp_find_unused_parameters: bool | None = None
    """Search in every backward for parameters that were not used. None searches unless activations are recomputed."""
    ddp_bucket_cap_mb: Count | None = None
    """The size in MB of the buckets in which gradients are sent. None means torch's default of 25."""
    ddp_broadcast_buffers: bool | None = None
    """Copy the first process's buffers to all processes before every forward. None means True, as in torch."""
    ddp_static_graph: bool | None = None
    """True asserts that every step uses the same parameters, which lets torch optimise the communication."""
    ddp_backend: str | None = None
    """The communication backend: `nccl`, `gloo`, or one per device such as `cuda:nccl,cpu:gloo`. None chooses by the
    device."""
    ddp_timeout: Annotated[Whole, Field(ge=1)] = 1800
    """The number of seconds after which a process that waits for another process fails."""

    # Sharding

    fsdp: bool | str | list[str] | None = None
    """Shard parameters, gradients and optimizer state over the processes (FSDP). The older words (`full_shard`,
    `shard_grad_op`, `offload`, `auto_wrap`) are accepted."""
    fsdp_config: Settings = None
    """FSDP's options: `version`, `reshard_after_forward`, `transformer_layer_cls_to_wrap`, `min_num_params`,
    `cpu_offload`, `activation_checkpointing`, `state_dict_type` and more. A dict, or the path of a JSON file."""
    parallelism_config: Parallelism = None
    """Accelerate's ParallelismConfig, or a dict of its sizes, such as `tp_size`, `dp_shard_size` and `cp_size`: the
    numbers of processes that share a model or a sample. With `tp_size`, the model must already be split."""
    deepspeed: Settings = None
    """DeepSpeed's configuration: a dict or the path of a JSON file. Values that are `auto` are taken from the other
    arguments."""

    # Debugging

    debug: str | list[str] = ""
    """`underflow_overflow` ends training if an activation becomes NaN or infinite, and names the module."""
    skip_memory_metrics: bool = True
    """Do not measure memory. False adds the memory that training, evaluation and prediction used to their metrics."""

    # Flags of scripts and specs

    do_train: bool = False
    """A flag of scripts and specs: train. The Trainer itself does not use the flag."""
    do_eval: bool = False
    """A flag of scripts and specs: evaluate. Set automatically if `eval_strategy` is not `no`."""
    do_predict: bool = False
    """A flag of scripts and specs: predict the test data."""
    resume_from_checkpoint: Folder = None
    """The checkpoint folder that a script passes to `train()`. In a job, use the spec's field `resume_from`."""


@dataclass
class GenerationFields:
    """The fields that only Seq2SeqTrainingArguments has."""

    predict_with_generate: bool = False
    """Generate text in evaluation and prediction, so that metrics receive generated tokens."""
    generation_max_length: Count | None = None
    """The largest number of tokens of a generated text. None uses the model's generation config."""
    generation_num_beams: Count | None = None
    """The number of beams of the beam search. None uses the model's generation config."""
