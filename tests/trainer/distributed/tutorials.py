"""DeepSpeed's JSON from tutorials: the pages of transformers and DeepSpeed, and well-known training scripts."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]

_BATCHES: Config = {
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
}  # fmt: skip
_HALVES: Config = {
    "fp16": {
        "enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2,
        "min_loss_scale": 1,
    },
    "bf16": {"enabled": "auto"},
}  # fmt: skip
_ADAMW: Config = {
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}}
}
_CPU: Config = {"device": "cpu", "pin_memory": True}
_ZERO_2: Config = {
    "stage": 2, "allgather_partitions": True, "allgather_bucket_size": 2e8, "overlap_comm": True,
    "reduce_scatter": True, "reduce_bucket_size": 2e8, "contiguous_gradients": True,
}  # fmt: skip
_ZERO_3: Config = {
    "stage": 3, "overlap_comm": True, "contiguous_gradients": True, "sub_group_size": 1e9,
    "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto",
    "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
    "stage3_gather_16bit_weights_on_model_save": True,
}  # fmt: skip
_REST: Config = {**_BATCHES, **_HALVES, "steps_per_print": 2000, "wall_clock_breakdown": False}

TRAINED: dict[str, Config] = {
    "transformers: zero 1": {**_REST, "zero_optimization": {"stage": 1}},
    "transformers: zero 2": {**_REST, **_ADAMW, "zero_optimization": {**_ZERO_2, "round_robin_gradients": True}},
    "transformers: zero 2, offloaded": {
        **_REST, **_ADAMW, "zero_optimization": {**_ZERO_2, "offload_optimizer": _CPU},
    },
    "transformers: zero 3": {**_REST, **_ADAMW, "zero_optimization": _ZERO_3},
    "transformers: zero 3, offloaded": {
        **_REST, **_ADAMW, "zero_optimization": {**_ZERO_3, "offload_optimizer": _CPU, "offload_param": _CPU},
    },
    "llama factory: zero 0": {
        **_BATCHES, **_HALVES, "zero_allow_untested_optimizer": True,
        "zero_optimization": {**_ZERO_2, "stage": 0, "overlap_comm": False, "round_robin_gradients": True},
    },
    "llama factory: zero 2, offloaded": {
        **_BATCHES, **_HALVES, "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            **_ZERO_2, "offload_optimizer": _CPU, "allgather_bucket_size": 5e8, "reduce_bucket_size": 5e8,
            "overlap_comm": False, "round_robin_gradients": True,
        },
    },
    "accelerate: zero 2": {
        **_BATCHES, "bf16": {"enabled": "auto"}, "steps_per_print": 1e30,
        "zero_optimization": {
            "stage": 2, "offload_optimizer": {"device": "none", "nvme_path": None},
            "offload_param": {"device": "none", "nvme_path": None}, "stage3_gather_16bit_weights_on_model_save": False,
        },
    },
    "deepspeed: zero 1, sizes": {
        "train_batch_size": 16, "steps_per_print": 1,
        "zero_optimization": {"stage": 1, "reduce_bucket_size": 5e8, "allgather_bucket_size": 5e8},
    },
    "deepspeed: zero 3, all of it on the host": {
        **_BATCHES, "communication_data_type": "fp32", "wall_clock_breakdown": True,
        "zero_optimization": {
            "stage": 3, "contiguous_gradients": True, "stage3_max_live_parameters": 1e9,
            "stage3_max_reuse_distance": 1e9, "stage3_prefetch_bucket_size": 1e7,
            "stage3_param_persistence_threshold": 1e5, "reduce_bucket_size": 1e7, "sub_group_size": 1e9,
            "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"},
        },
    },
}  # fmt: skip
"""Settings that train. `make soak` runs each in single precision and in bfloat16, stopped and continued."""

_NVME: Config = {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": True}
_WARM_UP: Config = {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}

REFUSED: dict[str, tuple[Config, str, str]] = {
    "transformers: WarmupLR": (
        {**_REST, "scheduler": {"type": "WarmupLR", "params": _WARM_UP}, "zero_optimization": _ZERO_2},
        "scheduler", "constant_with_warmup",
    ),
    "transformers: WarmupDecayLR": (
        {**_REST, "scheduler": {"type": "WarmupDecayLR", "params": _WARM_UP}, "zero_optimization": _ZERO_2},
        "scheduler", '"linear"',
    ),
    "transformers: fp16": ({**_BATCHES, "fp16": {"enabled": True}}, "fp16", "use bf16"),
    "transformers: NVMe": (
        {**_REST, "zero_optimization": {**_ZERO_3, "offload_optimizer": _NVME}},
        "zero_optimization.offload_optimizer.device", '"cpu"',
    ),
    "deepspeed: OneBitAdam": ({**_BATCHES, "optimizer": {"type": "OneBitAdam"}}, "optimizer", "OneBitAdam"),
    "deepspeed: a fused Adam": (
        {**_BATCHES, "optimizer": {"type": "AdamW", "params": {"lr": "auto", "torch_adam": True}}},
        "optimizer.params.torch_adam", "leave it out",
    ),
    "deepspeed: ZeRO++": (
        {**_BATCHES, "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}},
        "zero_optimization.zero_hpz_partition_size", "not tested",
    ),
    "deepspeed: an older offload": (
        {**_BATCHES, "zero_optimization": {"stage": 2, "cpu_offload": True}},
        "zero_optimization.cpu_offload", "offload_optimizer",
    ),
    "deepspeed: CPUAdam": (
        {**_BATCHES, "zero_force_ds_cpu_optimizer": True}, "zero_force_ds_cpu_optimizer", "torch's AdamW",
    ),
    "deepspeed: activation checkpointing": (
        {**_BATCHES, "activation_checkpointing": {"partition_activations": True}},
        "activation_checkpointing", "activation_checkpointing",
    ),
    "deepspeed: flops profiler": ({**_BATCHES, "flops_profiler": {"enabled": True}}, "flops_profiler", "not tested"),
    "deepspeed: autotuning": ({**_BATCHES, "autotuning": {"enabled": True}}, "autotuning", "not tested"),
    "deepspeed: elasticity": ({**_BATCHES, "elasticity": {"enabled": True}}, "elasticity", "not tested"),
    "deepspeed: Apex": ({**_BATCHES, "amp": {"enabled": True}}, "amp", "bf16"),
    "axolotl: compile": ({**_BATCHES, "compile": {"disable": False}}, "compile", "torch_compile"),
    "bf16's master weights": (
        {**_BATCHES, "bf16": {"enabled": "auto", "bf16_master_weights_and_grads": True}},
        "bf16.bf16_master_weights_and_grads", "not tested",
    ),
}  # fmt: skip
"""Settings that a POST refuses, with the place and the text of the answer."""
