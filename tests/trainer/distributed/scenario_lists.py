"""The scenarios that each start of several processes runs, by name. A start costs seconds, so it runs many of them."""

from __future__ import annotations

from typing import Any

from tests.trainer.distributed import scenarios, tutorials

SYNC_EACH = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
DDP_OPTIONS = {
    "ddp_backend": "cpu:gloo",
    "ddp_timeout": 90,
    "ddp_find_unused_parameters": False,
    "ddp_bucket_cap_mb": 3,
    "ddp_broadcast_buffers": False,
    "ddp_static_graph": True,
}
DDP: dict[str, dict[str, Any]] = {
    "ddp options": {"run": "process_group_options", **DDP_OPTIONS},
    "defaults": {"run": "process_group_options"},
    "uneven": {"run": "trained", "name": "uneven", **scenarios.UNEVEN},
    "means": {"run": "trained", "name": "means", "text": True, "ignore": 1, "means": True},
    "loss of the script": {"run": "scaled_by_the_script", **scenarios.UNCOUNTED},
    "uneven loss of the script": {
        "run": "scaled_by_the_script", **scenarios.UNCOUNTED, **scenarios.UNEVEN, "name": "uncounted-uneven"},
    "scaled by the script": {"run": "scaled_by_the_script", **scenarios.SAID_SCALED},
    "not scaled by the script": {"run": "scaled_by_the_script", **scenarios.SAID_NOT_SCALED},
    "averaged by each": {
        "run": "trained", "name": "each", "text": True, "ignore": 1, "average_tokens_across_devices": False},
    "named": {"run": "trained", "name": "named", "named": True},
    "stream": {"run": "resumed", "name": "stream", "at": 3, "stream": True, "samples": 91},
    "short stream": {"run": "resumed", "name": "short-stream", "at": 3, "stream": True, "samples": 3},
    "after an uneven round": {"run": "resumed", "name": "after-uneven", "at": 6, **scenarios.UNEVEN},
    "before an uneven round": {
        "run": "resumed", "name": "before-uneven", "at": 5, "text": True, "dropout": 0.1, **scenarios.UNEVEN,
        "samples": 83},
    "split": {
        "run": "trained", "name": "split", "per_device_train_batch_size": 8,
        "accelerator_config": {"split_batches": True}},
    "odd split": {
        "run": "trained", "name": "odd", "per_device_train_batch_size": 7,
        "accelerator_config": {"split_batches": True}},
    "evaluated by batch": {"run": "evaluated_by_batch"},
    "one sample": {"run": "evaluated", "name": "few", "samples": 9},
    "objects": {
        "run": "predicted_objects", "eval_use_gather_object": True, "eval_do_concat_batches": False},
    "objects refused": {"run": "predicted_objects"},
    "wrapped": {"run": "wrappers", "name": "wrapped"},
    "wrapped in half": {"run": "wrappers", "name": "wrapped-in-half", "fp16": True},
    "wrapped elsewhere": {"run": "wrappers", "name": "wrapped-elsewhere", "use_cpu": False},
    "synchronized": {"run": "synchronised"},
    "synchronized in each batch": {"run": "synchronised", "accelerator_config": SYNC_EACH},
    "full": {"run": "full_disk"},
    "tokens": {"run": "counted_tokens", "include_num_input_tokens_seen": "all"},
    "callback": {"run": "stopped_by_one", "how": "callback"},
    "signal": {"run": "stopped_by_one", "how": "signal"},
    "log": {"run": "stopped_by_one", "how": "log"},
    "nan": {"run": "nan_on_one"},
    "find batch size": {"run": "trained", "name": "find", "auto_find_batch_size": True},
    "background": {"run": "trained", "name": "background", "save_in_background": True},
}  # fmt: skip

STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {},
    "fsdp 2": {"fsdp": True},
    "fsdp 2 in pieces": {
        "fsdp": "shard_grad_op auto_wrap",
        "fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT", "min_num_params": 500}},
    "fsdp 1": {"fsdp": True, "fsdp_config": {"version": 1}},
}  # fmt: skip
"""The strategies that must give the results of one process in the conformance tests."""

_AUTO = {"train_batch_size": "auto", "gradient_clipping": "auto"}
ZERO: dict[str, dict[str, Any]] = {
    f"zero {stage}": {"deepspeed": {"zero_optimization": {"stage": stage}, **_AUTO}} for stage in range(4)
}
# This setting reorders the parameters in the optimizer. A single process must still be able to resume.
ZERO["zero 2"]["deepspeed"]["zero_optimization"]["round_robin_gradients"] = True


PARTS: dict[str, dict[str, Any]] = {"tensor parallel": {"parallelism_config": {"tp_size": 2}}}


def conformance(strategies: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    runs: dict[str, dict[str, Any]] = {}
    for strategy, values in strategies.items():
        runs |= {
            f"{strategy}: curve": {"run": "trained", "name": strategy, "text": True, "ignore": 1, **values},
            f"{strategy}: resumed": {
                "run": "resumed", "name": f"{strategy}-again", "text": True, "dropout": 0.1, "at": 5, **values},
            f"{strategy}: for one": {
                "run": "trained", "name": f"{strategy}-for-one", "text": True, "stop_at": 3, **values},
            f"{strategy}: from one": {"run": "trained", "name": "from-one", "text": True, "resume": True, **values},
            f"{strategy}: evaluated": {"run": "evaluated", "name": f"{strategy}-eval", **values},
            f"{strategy}: best": {"run": "best", "name": f"{strategy}-best", "text": True, **values},
            f"{strategy}: generated": {"run": "generated", "name": f"{strategy}-says", **values},
            f"{strategy}: written": {"run": "written", "name": f"{strategy}-files", **values},
        }  # fmt: skip
    return runs


def best_adapters(strategies: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        f"{strategy}: best adapters": {
            "run": "best", "name": f"{strategy}-best-lora", "text": True, "lora": True, **values}
        for strategy, values in strategies.items()
    }  # fmt: skip


_ADAPTED = {"text": True, "lora": True, "max_steps": 4}
ADAPTERS: dict[str, dict[str, Any]] = {
    **{
        f"{strategy}: adapters": {"run": "resumed", "name": f"{strategy}-lora", "at": 2, **_ADAPTED, **values}
        for strategy, values in STRATEGIES.items()
        if strategy != "ddp"
    },
    "ddp: adapters": {"run": "trained", "name": "ddp-lora", **_ADAPTED},
    "ddp: merged": {"run": "merged", "name": "ddp-merged"},
    "fsdp 2: merged": {"run": "merged", "name": "fsdp-merged", "fsdp": True},
}

_FSDP_1 = STRATEGIES["fsdp 1"]
SWAPPED: dict[str, Any] = {
    "optim": "schedule_free_adamw", "lr_scheduler_type": "constant", "eval_strategy": "steps", "eval_steps": 3,
}  # fmt: skip
"""The optimizer of this run has other weights in evaluation than in training."""
OF_FSDP_1: dict[str, dict[str, Any]] = {
    "fsdp 1: shard_grad_op": {
        "run": "trained", "name": "grad-op", "text": True, "ignore": 1, "fsdp": "shard_grad_op",
        "fsdp_config": {"version": 1, "forward_prefetch": True, "backward_prefetch": "BACKWARD_PRE"}},
    "fsdp 1: from pieces": {"run": "trained", "name": "fsdp 2 in pieces-to-1", "text": True, "stop_at": 3,
        **STRATEGIES["fsdp 2 in pieces"]},
    "fsdp 1: pieces read": {"run": "trained", "name": "fsdp 2 in pieces-to-1", "text": True, "resume": True, **_FSDP_1},
    "fsdp 1: uneven": {"run": "trained", "name": "uneven-1", **scenarios.UNEVEN, **_FSDP_1},
    "fsdp 1: merged": {"run": "merged", "name": "fsdp-1-merged", **_FSDP_1},
    "fsdp 1: counted": {"run": "counted", "name": "fsdp-1-counted", **_FSDP_1},
    "fsdp 1: averaged": {"run": "averaged", "name": "fsdp-1-ema", **_FSDP_1},
    "fsdp 1: adagrad": {"run": "resumed", "name": "fsdp-1-adagrad", "optim": "adagrad", "at": 4, **_FSDP_1},
    "fsdp 2: adagrad": {"run": "resumed", "name": "fsdp-adagrad", "optim": "adagrad", "at": 4, "fsdp": True},
    "fsdp 2: adafactor": {"run": "resumed", "name": "fsdp-adafactor", "optim": "adafactor", "at": 4, "fsdp": True},
    "fsdp 2: swapped": {"run": "trained", "name": "fsdp-swapped", "fsdp": "shard_grad_op", **SWAPPED},
    "fsdp 2 in pieces: adafactor": {
        "run": "resumed", "name": "fsdp-pieces-adafactor", "optim": "adafactor", "at": 4,
        **STRATEGIES["fsdp 2 in pieces"]},
    "fsdp 1: adafactor": {"run": "trained", "name": "fsdp-1-adafactor", "optim": "adafactor", **_FSDP_1},
    "fsdp 1: schedule free": {
        "run": "trained", "name": "fsdp-1-free", "optim": "schedule_free_adamw", "lr_scheduler_type": "constant",
        **_FSDP_1},
}  # fmt: skip

ENDS: dict[str, dict[str, Any]] = {
    "everywhere": {"run": "failed_everywhere"},
    "on one": {"run": "failed_on_one", "ends": True},  # the error ends the process, so no scenario can follow
}

_TP = PARTS["tensor parallel"]
LLAMA: dict[str, Any] = {"text": True, "llama": True, "max_steps": 4}
LOADED: dict[str, dict[str, Any]] = {
    "loaded": {"run": "resumed", "name": "loaded", "at": 2, **LLAMA, **_TP},
    "loaded, nothing said": {"run": "trained", "name": "unsaid", "loaded_in": 2, **LLAMA},
    "loaded and written": {"run": "written", "name": "written", **LLAMA, **_TP},
    "in bf16": {"run": "trained", "name": "bf16", "bf16": True, **LLAMA, **_TP},
    "own sampler": {"run": "shuffled_per_rank", **_TP},
    "random data per rank": {"run": "noisy_per_rank", **_TP},
    "adapters in parts": {"run": "trained", "name": "lora", "text": True, "lora": True, **_TP},
    "whole": {"run": "trained", "name": "uncut", "text": True, "cuts": False, **_TP},
    "tokens in parts": {"run": "counted_tokens", "include_num_input_tokens_seen": "all", **_TP},
}

_CP: dict[str, Any] = {"parallelism_config": {"cp_size": 2}}
ODD: dict[str, Any] = {"text": True, "length": 13, "activation_checkpointing": True, "max_steps": 4}
CONTEXT: dict[str, dict[str, Any]] = {
    "cp: curve": {"run": "trained", "name": "cp", "text": True, "ignore": 1, **_CP},
    "cp: odd": {"run": "trained", "name": "cp-odd", **ODD, **_CP},
    "cp: smoothed": {"run": "trained", "name": "cp-smooth", "label_smoothing_factor": 0.1, **ODD, **_CP},
    "cp: llama": {"run": "resumed", "name": "cp-llama", "at": 2, "gradient_checkpointing": True, **LLAMA, **_CP},
    "cp: in bf16": {"run": "trained", "name": "cp-bf16", "bf16": True, **LLAMA, **_CP},
    "cp: resumed": {"run": "resumed", "name": "cp-again", "text": True, "at": 5, **_CP},
    "cp: for one": {"run": "trained", "name": "cp-for-one", "text": True, "stop_at": 3, **_CP},
    "cp: from one": {"run": "trained", "name": "from-one", "text": True, "resume": True, **_CP},
    "cp: best": {"run": "best", "name": "cp-best", "text": True, **_CP},
    "cp: tokens": {"run": "counted_tokens", "include_num_input_tokens_seen": "all", **_CP},
    "cp: adapters": {"run": "trained", "name": "cp-lora", "text": True, "lora": True, "max_steps": 2, **_CP},
    "cp: apart": {"run": "left_apart", "rehearses": False, **_CP},
    "cp: apart, rehearsed": {"run": "left_apart", "rehearses": True, **_CP},
    "cp: mixes positions": {"run": "tried_in_pieces", "how": "mixes positions", **_CP},
    "cp: adds to the loss": {"run": "tried_in_pieces", "how": "adds to the loss", **_CP},
    "cp: own loss function": {"run": "tried_in_pieces", "how": "own loss function", **_CP},
    "cp: random data per rank": {"run": "noisy_per_rank", **_CP},
    "cp: not a language model": {"run": "trained", "name": "cp-mlp", **_CP},
    "cp: named optimizers": {"run": "tried_in_pieces", "how": "named optimizers", **_CP},
}  # fmt: skip

_SQUARE: dict[str, Any] = {"parallelism_config": {"tp_size": 2, "dp_shard_size": 2}}
FOUR: dict[str, dict[str, Any]] = {
    "four: curve": {"run": "trained", "name": "curve", "text": True, "ignore": 1, "fsdp": True, **_SQUARE},
    "four: evaluated": {"run": "evaluated", "name": "evaluated", "fsdp": True, **_SQUARE},
    "four: from one": {"run": "trained", "name": "from-one", "text": True, "resume": True, "fsdp": True, **_SQUARE},
    "four: loaded": {"run": "resumed", "name": "loaded", "at": 2, **LLAMA, **_SQUARE},
    "four: unsharded": {"run": "trained", "name": "unsharded", "text": True, **_SQUARE},
    "four: sharded twice": {"run": "trained", "name": "twice", "fsdp": True, **LLAMA, **_SQUARE},
    "four: cp: curve": {"run": "trained", "name": "cp", "text": True, "ignore": 1, **_CP},
    "four: cp: uneven": {"run": "trained", "name": "cp-uneven", "text": True, **scenarios.UNEVEN, **_CP},
    "four: cp: of four": {"run": "trained", "name": "cp-four", **ODD, "parallelism_config": {"cp_size": 4}},
}

TUTORIALS: dict[str, dict[str, Any]] = {
    f"{name}{', in bf16' if bf16 else ''}": {
        "run": "resumed", "name": f"tutorial-{number}-{bf16}", "at": 2, "bf16": bf16, "deepspeed": config, **LLAMA}
    for number, (name, config) in enumerate(tutorials.TRAINED.items())
    for bf16 in (False, True)
    if not bf16 or config["zero_optimization"]["stage"]
}  # fmt: skip
FLOATS: dict[str, dict[str, Any]] = {
    f"{strategy}: floats": {"run": "evaluated_after", "name": f"{strategy}-floats", "bf16": True, **values}
    for strategy, values in ZERO.items()
    if strategy != "zero 0"
}

BEST_IN_BF16 = {
    f"{strategy}: best in bf16": {
        "run": "best", "name": f"{strategy}-best-bf16", "text": True, "bf16": True, **ZERO[strategy]}
    for strategy in ZERO
    if strategy != "zero 0"
}  # fmt: skip


def adapters_alone(strategy: str) -> dict[str, dict[str, Any]]:
    """Adapters without biases and norms leave one of the optimizer's two groups empty. DeepSpeed removes that group."""
    values = {"run": "resumed", "name": f"{strategy}-lora", "at": 2, "alone": True, **_ADAPTED, **ZERO[strategy]}
    return {f"{strategy}: adapters alone": values}


_IN_MATRIX = {"fsdp 1": _FSDP_1}
_IN_SHORT = {strategy: values for strategy, values in STRATEGIES.items() if strategy not in _IN_MATRIX}
LAUNCHES: dict[str, dict[str, dict[str, Any]]] = {
    "two": {**DDP, **conformance(_IN_SHORT), **best_adapters(_IN_SHORT), **ADAPTERS, **OF_FSDP_1, **ENDS},
    "parts": {**conformance(PARTS), **LOADED, **CONTEXT},
    "zero-2-adapters": adapters_alone("zero 2"),
    # Only `make faults` runs these two.
    "fsdp-1": {**conformance(_IN_MATRIX), **best_adapters(_IN_MATRIX)},
    "four": FOUR,
    # Only `make soak` runs these two.
    "zero": {**conformance(ZERO), **best_adapters(ZERO), **TUTORIALS, **FLOATS, **BEST_IN_BF16},
    "zero-3-adapters": adapters_alone("zero 3"),
}
"""The scenarios of each start of processes. A scenario has a name of its own, so that tests need only this name."""
LAUNCH_OF = {scenario: launch for launch, runs in LAUNCHES.items() for scenario in runs}
assert len(LAUNCH_OF) == sum(map(len, LAUNCHES.values())), "two scenarios have the same name"
