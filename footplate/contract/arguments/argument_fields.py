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


def _plain(value: object) -> object:
    """Converts a path to text, and an object with `to_dict`, such as Accelerate's AcceleratorConfig, to a dict."""
    if isinstance(value, type):
        raise NotImplementedError(
            f"Tried passing in a callable to `accelerator_config`: {value.__name__} is a class. Pass an object of it, "
            "a dict or the path of a JSON file"
        )
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    to_dict: Any = getattr(value, "to_dict", None)
    return to_dict() if to_dict is not None else value


MOST = 2**53 - 1
"""The largest whole number that every JSON parser keeps exact. SQL and tensors can hold it, too."""
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

OURS = frozenset({"logging_dir", "max_nan_steps", "keep_last", "keep_best", "save_in_background"})
"""Fields that Hugging Face does not have, or, like logging_dir, no longer has."""

OTHER_DEFAULTS = {
    "restore_callback_states_from_checkpoint": "a resume is the same run, so callbacks continue to count",
}
"""Fields whose default differs from Hugging Face's, with the reason."""

Settings = Annotated[dict[str, Any] | str | None, BeforeValidator(_plain)]
"""A dict, or the path of a JSON file that holds one."""
Parallelism = Annotated[dict[str, int] | None, BeforeValidator(sizes)]

CONFIG = ConfigDict(extra="forbid", allow_inf_nan=False, defer_build=True)


@dataclass
class Fields:
    """The arguments of training with their types and defaults. Classes that inherit from this one check the values.

    This class is a plain dataclass, because the classes that inherit from it are dataclasses of pydantic.
    """

    # Output

    output_dir: str | None = None
    """The folder for checkpoints and results. None is `trainer_output`. In a job the server chooses it."""

    # Duration

    per_device_train_batch_size: Count = 8
    """Samples per device and micro-batch."""
    num_train_epochs: Annotated[float, Field(ge=0)] = 3.0
    """Passes over the training data. A fraction stops within an epoch. `max_steps` wins over it."""
    max_steps: Whole = -1
    """Optimizer steps in all. -1 lets `num_train_epochs` decide."""
    gradient_accumulation_steps: Count = 1
    """Micro-batches whose gradients make one optimizer step."""

    # Learning rate

    learning_rate: Annotated[float, Field(ge=0)] = 5e-5
    """The rate after warm-up, from which the schedule starts."""
    lr_scheduler_type: ScheduleName = "linear"
    """The course of the rate over the steps."""
    lr_scheduler_kwargs: dict[str, Any] | None = None
    """Further arguments of the schedule, such as `num_cycles` or `min_lr`."""
    warmup_steps: Annotated[float, Field(ge=0)] = 0
    """Steps in which the rate rises from 0. Below 1 it is a share of all steps."""

    # Optimizer

    optim: OptimizerName = "adamw_torch_fused"
    """The optimizer. Those of bitsandbytes and torchao need the extra of that name."""
    optim_args: str | None = None
    """Further arguments of the optimizer, such as "momentum=0.9, nesterov=true"."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Decay of the weights. Biases and norms are left out."""
    adam_beta1: Fraction = 0.9
    """Decay of AdamW's first moment."""
    adam_beta2: Fraction = 0.999
    """Decay of AdamW's second moment."""
    adam_epsilon: Annotated[float, Field(ge=0)] = 1e-8
    """A small number that keeps AdamW from dividing by zero."""
    max_grad_norm: Annotated[float, Field(ge=0)] = 1.0
    """The norm to which larger gradients are scaled down. 0 turns this off."""

    # Regularization

    label_smoothing_factor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The part of each label that is spread over all classes."""
    neftune_noise_alpha: Annotated[float, Field(ge=0)] | None = None
    """Noise on the embeddings in training (NEFTune). 5 to 15 are usual."""

    # Precision

    bf16: bool = False
    """Compute in bfloat16 under autocast. The weights stay as they are."""
    fp16: bool = False
    """Compute in float16 under autocast, with a loss scale that skips steps with an overflow."""
    bf16_full_eval: bool = False
    """Convert the weights to bfloat16 for evaluations outside of training, which halves the memory, and back
    afterwards."""
    fp16_full_eval: bool = False
    """The same as `bf16_full_eval`, in float16."""
    tf32: bool | None = None
    """Allow TF32 on GPUs that have it. None leaves torch's own setting."""

    # Activations

    activation_checkpointing: bool | None = None
    """Compute activations again in backward instead of keeping them. Needs less memory, and is some 20 % slower."""
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
    """The compiler's backend. Naming one turns compilation on."""
    torch_compile_mode: str | None = None
    """`default`, `reduce-overhead` or `max-autotune`. Naming one turns compilation on."""

    # Kernels

    use_liger_kernel: bool = False
    """Train a model of transformers with Liger's kernels. Needs a GPU, and the extra `liger`."""
    liger_kernel_config: dict[str, bool] | None = None
    """The kernels: `rope`, `rms_norm`, `swiglu`, `cross_entropy`, `fused_linear_cross_entropy`. None leaves it to
    Liger."""

    # Memory

    use_cache: bool = False
    """Keep the model's keys and values from one forward to the next: `model.config.use_cache`."""
    torch_empty_cache_steps: Annotated[int, Field(ge=1, le=MOST, strict=True)] | None = None
    """Steps between calls that return cached memory to the device. Slower, but helps against fragmentation."""
    auto_find_batch_size: bool = False
    """Halve a micro-batch that does not fit into memory until it fits. The effective batch, the loss curve and the
    place in the data stay the same, because accumulation is raised instead."""

    # Logging

    logging_strategy: Strategy = "steps"
    """The moments at which the training loss is logged."""
    logging_steps: Annotated[float, Field(ge=0)] = 500
    """Optimizer steps between logs. Below 1 it is a share of all steps."""
    logging_first_step: bool = False
    """Log the first step too."""
    logging_nan_inf_filter: bool = True
    """Leave losses that are NaN or infinite out of the logged loss. How many steps had one is logged as `nan_steps`."""
    max_nan_steps: Count | None = None
    """End training with an error if the loss was NaN or infinite in this many steps in a row. The error names the
    steps. The check
    waits for the device, so it runs once in that many steps. The run may go on for up to twice as many."""
    include_num_input_tokens_seen: Literal["no", "all", "non_padding"] | bool = "no"
    """Count input tokens, all or without padding, and log the number per second. True is `all`."""
    disable_tqdm: bool | None = None
    """Print plain lines instead of a progress bar. None shows a bar on a terminal only."""

    log_level: LogLevel = "passive"
    """The lowest level that the logger `footplate` prints on the main process. `passive` does not change it."""
    log_level_replica: LogLevel = "warning"
    """The same as `log_level`, for all other processes."""

    # Tracking

    report_to: str | list[str] | None = "none"
    """Trackers that receive the logs: `tensorboard`, `wandb`, `mlflow`, …, `all` that are installed, or `none`."""
    run_name: str | None = None
    """The run's name in trackers. None is the last part of `output_dir`."""
    project: str = "huggingface"
    """The project's name in trackers that have projects."""
    logging_dir: str | None = None
    """The folder of trackers that write files. None takes TENSORBOARD_LOGGING_DIR, or `output_dir/runs`."""
    trackio_space_id: str | None = None
    """The Space that trackio logs to live. None logs into a local folder."""
    trackio_bucket_id: str | None = None
    """The bucket in which such a Space stores its data. None lets trackio choose."""
    trackio_static_space_id: str | Literal[False] | None = None
    """The name of the static copy of a Space at the end of training, or of local logs when the model is pushed. None
    makes up a name. False makes no copy."""

    # Evaluation

    eval_strategy: Strategy = "no"
    """The moments at which the model is evaluated."""
    eval_steps: Annotated[float, Field(ge=0)] | None = None
    """Optimizer steps between evaluations. Below 1 it is a share of all steps. None follows `logging_steps`."""
    eval_delay: Annotated[float, Field(ge=0)] = 0
    """Steps (or epochs, as the strategy counts) before the first evaluation."""
    eval_on_start: bool = False
    """Evaluate once before the first step, to find errors early."""
    per_device_eval_batch_size: Count = 8
    """Samples per device in evaluation."""
    prediction_loss_only: bool = False
    """Return the loss only, without predictions and metrics."""
    eval_do_concat_batches: bool = True
    """Join the predictions of all batches. False keeps a list with one entry per batch."""
    eval_accumulation_steps: Count | None = None
    """Batches whose predictions stay on the device before they are moved to the host. None moves each one at once."""
    include_for_metrics: list[str] = field(default_factory=list)
    """Further inputs of `compute_metrics`: `inputs`, `loss`."""
    batch_eval_metrics: bool = False
    """Call `compute_metrics` for each batch, the last time with `compute_result=True`. Memory stays constant."""
    label_names: list[str] | None = None
    """The batch's keys that are labels. None takes the labels among the arguments of `forward`."""

    # Hub

    push_to_hub: bool = False
    """Push checkpoints to the Hugging Face hub as they are saved, and the model when `save_model` is called."""
    hub_model_id: str | None = None
    """The repository, `name` or `owner/name`. None takes the name of `output_dir`."""
    hub_strategy: Annotated[Literal["end", "every_save", "checkpoint", "all_checkpoints"], Named] = "every_save"
    """The amount to push. `end` pushes nothing during training. `every_save` pushes the model of each checkpoint.
    `checkpoint` also pushes the whole checkpoint as `last-checkpoint`, so that anyone can resume.
    `all_checkpoints` pushes each under its own name."""
    hub_token: str | None = None
    """The token to push with. None takes the token of `hf auth login`, or HF_TOKEN. It is never written anywhere."""
    hub_private_repo: bool | None = None
    """Make a new repository private. None is the owner's default."""
    hub_always_push: bool = False
    """Push a checkpoint even if the upload of the one before is not finished."""
    hub_revision: str | None = None
    """The branch to push to. None is the main one."""

    # Best model

    load_best_model_at_end: bool = False
    """Load the best checkpoint's weights after training. Needs saving and evaluating at the same steps."""
    metric_for_best_model: str | None = None
    """The metric that decides, with or without `eval_`. None is `loss` if the best model is needed."""
    greater_is_better: bool | None = None
    """True if more is better. None means True unless the metric's name ends in `loss`."""

    # Checkpoints

    save_strategy: SaveStrategy = "steps"
    """The moments at which a checkpoint is saved. `best` saves after each evaluation that is the best so far."""
    save_steps: Annotated[float, Field(ge=0)] = 500
    """Optimizer steps between checkpoints. Below 1 it is a share of all steps."""
    save_total_limit: Count | None = None
    """The number of checkpoints to keep. None keeps all. The best and the newest are never deleted. Nor is the newest
    that the service has stored, because the job would resume from it if its node died."""
    keep_last: Count | None = None
    """The number of newest checkpoints to keep, besides the best ones. None follows `save_total_limit`."""
    keep_best: Count | None = None
    """The number of best checkpoints to keep, besides the newest ones, ranked by `metric_for_best_model`."""
    save_only_model: bool = False
    """Save the weights only. Smaller, but training cannot resume from it."""
    save_in_background: bool = False
    """Write checkpoints in another thread, so that training waits for the copy only. `on_save` is called at the step
    after the commit."""
    enable_jit_checkpoint: bool = False
    """Save a checkpoint after the current step on SIGTERM, and stop. In a job, a drain does so by itself."""
    restore_callback_states_from_checkpoint: bool | None = None
    """The state of callbacks on resume. None restores what they have counted, and keeps their new arguments. True
    restores their arguments too, as in Hugging Face. False restores nothing."""
    ignore_data_skip: bool = False
    """Start the data of the epoch from the beginning on resume, instead of at the place where it stopped."""

    # Reproducibility

    seed: NotNegative = 42
    """The seed of Python, NumPy and torch, for dropout, and for initial weights that the Trainer makes."""
    data_seed: NotNegative | None = None
    """The seed of the order of the data. None takes `seed`."""
    full_determinism: bool = False
    """Ask torch for algorithms that give the same bits every time. Slower."""

    # Hardware

    use_cpu: bool = False
    """Stay on the CPU even if there is a GPU. In a job, ask for `gpus_per_node: 0`."""

    # Data loading

    dataloader_drop_last: bool = False
    """Leave out the last batch if it is smaller."""
    dataloader_num_workers: NotNegative = 0
    """Processes that load data. 0 loads in the training process."""
    dataloader_pin_memory: bool = True
    """Pin batches in memory, so that they reach a GPU without waiting. Has no effect on a CPU."""
    dataloader_persistent_workers: bool = False
    """Keep the loading processes from one epoch to the next, and those of an evaluation to the next evaluation."""
    dataloader_prefetch_factor: Count | None = None
    """Batches that each loading process keeps ready."""
    dataloader_multiprocessing_context: Literal["fork", "spawn", "forkserver"] | None = None
    """The start method of loading processes. None is torch's own choice."""
    dataloader_in_order: bool = True
    """Return batches in the order in which they were requested. False takes the first that is ready, so that no resume
    is exact."""
    remove_unused_columns: bool = True
    """Remove columns of the samples that the model's `forward` does not take."""
    train_sampling_strategy: Literal["random", "sequential", "group_by_length", "batch_rebalance"] = "random"
    """The order in which the training data is read: samples of similar length together, or batches of similar
    weight."""
    length_column_name: str = "length"
    """The column with a sample's length, for orders that need it. Without it, lengths are counted."""

    # Several processes

    local_rank: Whole = -1
    """The process's index on its node, for launchers that pass it on the command line. torchrun sets LOCAL_RANK, which
    wins."""
    average_tokens_across_devices: bool = True
    """Divide a loss of tokens by the mean number of tokens of all processes. False divides by each process's own."""
    log_on_each_node: bool = True
    """Log and print on the first process of every node. False leaves it to the first process of all."""
    save_on_each_node: bool = False
    """Write checkpoints on the first process of every node, for nodes that share no file system."""
    eval_use_gather_object: bool = False
    """Allow predictions of any kind, which are pickled to reach the other processes. False sends tensors only."""
    accelerator_config: Settings = None
    """The way in which batches are shared among processes: `split_batches`, `even_batches`, `non_blocking`,
    `gradient_accumulation_kwargs`. A dict, an AcceleratorConfig, or the path of a JSON file."""

    # DDP

    ddp_find_unused_parameters: bool | None = None
    """Search in every backward for parameters that had no part in it. None: unless activations are recomputed."""
    ddp_bucket_cap_mb: Count | None = None
    """The size in MB of the pieces in which gradients are sent. None is torch's 25."""
    ddp_broadcast_buffers: bool | None = None
    """Begin every forward with the first process's buffers. None does so, like torch."""
    ddp_static_graph: bool | None = None
    """Promise that the same parameters have a part in every step, so that torch may plan ahead."""
    ddp_backend: str | None = None
    """The communication backend: `nccl`, `gloo`, or one per device as `cuda:nccl,cpu:gloo`. None chooses by the
    device."""
    ddp_timeout: Annotated[Whole, Field(ge=1)] = 1800
    """Seconds after which a process stops waiting for another one and fails."""

    # Sharding

    fsdp: bool | str | list[str] | None = None
    """Shard parameters, gradients and optimizer state over the processes (FSDP). The older words (`full_shard`,
    `shard_grad_op`, `offload`, `auto_wrap`) are accepted."""
    fsdp_config: Settings = None
    """FSDP's options: `version`, `reshard_after_forward`, `transformer_layer_cls_to_wrap`, `min_num_params`,
    `cpu_offload`, `activation_checkpointing`, `state_dict_type` and more. A dict, or the path of a JSON file."""
    parallelism_config: Parallelism = None
    """The numbers of processes that share a model or a sample: Accelerate's ParallelismConfig, or its sizes by name,
    such as `tp_size`, `dp_shard_size` and `cp_size`. With a `tp_size` the model is loaded already sharded."""
    deepspeed: Settings = None
    """DeepSpeed's own configuration, a dict or the path of a JSON file. Values that are `auto` follow the other
    arguments."""

    # Debugging

    debug: str | list[str] = ""
    """`underflow_overflow` ends training if an activation becomes NaN or infinite, and names the module."""
    skip_memory_metrics: bool = True
    """Leave out memory metrics. False adds to the metrics how much memory each stage took."""

    # Flags of scripts and specs

    do_train: bool = False
    """A flag of scripts and specs: train. The Trainer itself does not read it."""
    do_eval: bool = False
    """A flag of scripts and specs: evaluate. Set automatically if `eval_strategy` is not `no`."""
    do_predict: bool = False
    """A flag of scripts and specs: predict the test data."""
    resume_from_checkpoint: str | None = None
    """The folder that a script passes to `train()`. In a job, use the spec's own `resume_from`."""


@dataclass
class Generation:
    """The fields that only Seq2SeqTrainingArguments has."""

    predict_with_generate: bool = False
    """Generate in evaluation and prediction, so that metrics see the model's own texts."""
    generation_max_length: Count | None = None
    """The longest text to generate. None takes the model's own limit."""
    generation_num_beams: Count | None = None
    """The number of beams in the search. None takes the model's own."""
