"""Translates a config that `accelerate config` wrote into the spec's own fields.

If the spec already has such a field, both values must be equal. The config also has fields for things that the service
does itself. Their default values are accepted, and other values are refused with a reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from footplate.contract.body import pointer_to
from footplate.contract.errors import Problem, did_you_mean

Json = dict[str, Any]

CONFIG = "/resources/strategy/config"
_TYPES = {"NO": "single", "MULTI_CPU": "ddp", "MULTI_GPU": "ddp", "FSDP": "fsdp", "DEEPSPEED": "deepspeed"}
_READ = (
    "distributed_type", "num_processes", "num_machines", "use_cpu", "mixed_precision", "gradient_accumulation_steps",
    "fsdp_config", "deepspeed_config",
)  # fmt: skip
_RENDEZVOUS = "leave it out: the server starts the processes and their rendezvous"
_OURS: dict[str, tuple[tuple[Any, ...], str]] = {
    "compute_environment": (("LOCAL_MACHINE",), "leave it out: the job runs on the server's nodes"),
    "debug": ((), "leave it out, and set ACCELERATE_DEBUG_MODE in env"),
    "downcast_bf16": (("no",), "leave it out: it is for TPUs"),
    "dynamo_config": (({"dynamo_backend": "NO"},), "leave it out, and set torch_compile in training"),
    "enable_cpu_affinity": ((), "leave it out: the node gives each process its share of CPUs"),
    "gpu_ids": (("all",), "leave it out: the server chooses the GPUs of a process"),
    "machine_rank": ((), _RENDEZVOUS),
    "main_process_ip": ((), _RENDEZVOUS),
    "main_process_port": ((), _RENDEZVOUS),
    "main_training_function": (("main",), "leave it out: the spec names what is trained"),
    "rdzv_backend": (("static", "c10d"), _RENDEZVOUS),
    "same_network": ((True,), _RENDEZVOUS),
    **dict.fromkeys(("tpu_env", "tpu_use_cluster", "tpu_use_sudo"), ((), "leave it out: the nodes have no TPUs")),
    "fp8_config": ((), "use bf16"),
    "megatron_lm_config": ((), "use fsdp or deepspeed"),
    "parallelism_config": ((), "use fsdp or deepspeed"),
}
"""The fields that are not translated. Each has the values that are accepted, and a hint for all other values."""
_OF_ZERO = (
    "zero_stage", "offload_optimizer_device", "offload_param_device", "gradient_accumulation_steps",
    "gradient_clipping", "deepspeed_multinode_launcher",
)  # fmt: skip
_NOT_OF_ZERO = {
    "deepspeed_config_file": 'write what the file holds into {"type": "deepspeed", "config": {…}}',
    "zero3_init_flag": "leave it out: each process makes the whole model before it is sharded",
    "zero3_save_16bit_model": "leave it out: checkpoints always hold the whole model",
}
_AUTO = dict.fromkeys(
    ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"), "auto"
)


def unfold(document: Json, origins: dict[str, str]) -> Iterator[Problem]:
    """Replaces the strategy `accelerate` by the spec's own fields, in place. Yields problems of Accelerate's config."""
    resources, training = document.get("resources"), document.get("training", {})
    strategy = resources.get("strategy") if isinstance(resources, dict) else None
    if not isinstance(strategy, dict) or strategy.get("type") != "accelerate" or not isinstance(training, dict):
        return
    if isinstance(config := strategy.get("config"), dict) and isinstance(resources, dict):
        reading = _ConfigReading(config, dict(resources), dict(training), origins)
        yield from reading.problems
        document["resources"] = reading.resources
        loop = document.get("loop")
        if not (isinstance(loop, dict) and "script" in loop):
            document["training"] = reading.training
        elif reading.training != training:
            detail = "sets training arguments, but a script sets these in its own Accelerator(…)"
            hint = "leave mixed_precision, gradient_accumulation_steps and gradient_clipping out"
            yield Problem(CONFIG, "disagreement", detail, hint)


class _ConfigReading:
    """Reads one of Accelerate's configs, and collects the changed sections of the spec and the problems."""

    def __init__(self, config: Json, resources: Json, training: Json, origins: dict[str, str]) -> None:
        self.resources, self.training, self.problems = resources, training, list(_not_taken(config))
        self._config, self._origins = config, origins
        kind = _word(config.get("distributed_type", "NO"))
        if kind not in _TYPES:
            detail = f"is {_short(config['distributed_type'])}, which is not available; available: {', '.join(_TYPES)}"
            self._add_problem("distributed_type", "not_available_yet", detail, did_you_mean(kind, _TYPES))
            return
        self._shape(kind)
        self._precision()
        steps = config.get("gradient_accumulation_steps")
        self._put(self.training, "/training/gradient_accumulation_steps", "gradient_accumulation_steps", steps)
        self.resources["strategy"] = {"type": _TYPES[kind], **self._sharing(kind)}
        origins["/resources/strategy/type"] = f"{CONFIG}/distributed_type"

    def _shape(self, kind: str) -> None:
        processes, machines = self._config.get("num_processes", 1), self._config.get("num_machines", 1)
        for name, count in (("num_processes", processes), ("num_machines", machines)):
            if isinstance(count, bool) or not isinstance(count, int) or not 0 < count < 2**16:
                self._add_problem(name, "wrong_type", "is not a whole number of 1 or more")
                return
        if processes % machines:
            detail = f"is {processes}, which cannot be divided equally among {machines} machines"
            self._add_problem("num_processes", "does_not_divide", detail)
        if machines > 1:
            self._put(self.resources, "/resources/nodes", "num_machines", machines)
        if kind != "NO":
            self._put(self.resources, "/resources/processes_per_node", "num_processes", processes // machines)
        elif processes > 1:
            detail = f"is NO, but num_processes is {processes}"
            self._add_problem("distributed_type", "disagreement", detail, "use MULTI_GPU")
        if self._config.get("use_cpu"):
            self._put(self.resources, "/resources/gpus_per_node", "use_cpu", 0)
        elif kind in ("MULTI_CPU", "MULTI_GPU"):
            gpus = processes // machines if kind == "MULTI_GPU" else 0
            self._put(self.resources, "/resources/gpus_per_node", "distributed_type", gpus)

    def _precision(self) -> None:
        word = str(_word(self._config.get("mixed_precision", "NO"))).lower()
        if word not in ("no", "bf16", "fp16"):
            detail = f"is {word[:40]}, available: no, bf16, fp16"
            self._add_problem("mixed_precision", "not_available_yet", detail, "use bf16")
            return
        for name in ("bf16", "fp16"):
            current = self.training.get(name)
            if current is not None and current is not (name == word) and "mixed_precision" in self._config:
                detail = f"is {word}, but /training/{name} is {_short(current)}"
                self._add_problem("mixed_precision", "disagreement", detail, "keep one of the two")
        if word != "no":
            self.training[word] = True
            self._origins[f"/training/{word}"] = f"{CONFIG}/mixed_precision"

    def _sharing(self, kind: str) -> Json:
        """Returns the config of the strategy that `kind` names. Adds a problem for a config of the other strategy."""
        for name, strategy in (("fsdp_config", "FSDP"), ("deepspeed_config", "DEEPSPEED")):
            section = self._config.get(name) or {}
            if not isinstance(section, dict):
                self._add_problem(name, "wrong_type", "is not an object")
            elif kind == strategy:
                self._origins[CONFIG] = f"{CONFIG}/{name}"
                return {"config": fsdp_config(section) if strategy == "FSDP" else self._of_zero(section)}
            elif section:
                detail = f"is for {strategy}, but distributed_type is {kind}"
                self._add_problem(name, "disagreement", detail, "keep one of the two")
        return {}

    def _of_zero(self, fields: Json) -> Json:
        for name, value in fields.items():
            if name not in _OF_ZERO and value not in (None, False, ""):
                hint = _NOT_OF_ZERO.get(name) or did_you_mean(name[:80], _OF_ZERO)
                where = f"deepspeed_config{pointer_to(name[:80])}"
                self._add_problem(where, "not_available_yet", f"is {_short(value)}, which is not supported", hint)
        names = {"gradient_accumulation_steps": "gradient_accumulation_steps", "gradient_clipping": "max_grad_norm"}
        for name, argument in names.items():
            value = None if fields.get(name) == "auto" else fields.get(name)
            self._put(self.training, f"/training/{argument}", f"deepspeed_config/{name}", value)
        return zero_config(fields)

    def _put(self, section: Json, pointer: str, key: str, value: Any) -> None:
        """Sets a field of the spec, or adds a problem if the field already has another value. None sets nothing."""
        name = pointer.rpartition("/")[2]
        if value is None:
            return
        current = section.get(name)
        if current is not None and current != value:
            detail = f"sets {pointer} to {_short(value)}, but the spec has {_short(current)}"
            self._add_problem(key, "disagreement", detail, "keep one of the two")
            return
        section[name] = value
        self._origins[pointer] = f"{CONFIG}/{key}"

    def _add_problem(self, key: str, code: str, detail: str, hint: str | None = None) -> None:
        self.problems.append(Problem(f"{CONFIG}/{key}", code, detail, hint))


def _not_taken(config: Json) -> Iterator[Problem]:
    for name, value in list(config.items())[:100]:
        if name in _READ:
            continue
        if name not in _OURS:
            pointer, hint = CONFIG + pointer_to(name[:80]), did_you_mean(name[:80], (*_READ, *_OURS))
            yield Problem(pointer, "unknown_field", "is not a field of Accelerate's config", hint)
        elif value and value not in _OURS[name][0]:
            detail = f"is {_short(value)}, which is not supported"
            yield Problem(f"{CONFIG}/{name}", "not_available_yet", detail, _OURS[name][1])


def fsdp_config(fields: Json) -> Json:
    """Returns the FSDP settings of Accelerate's config under the names of the argument fsdp_config."""
    options = {name.removeprefix("fsdp_"): value for name, value in fields.items() if value is not None}
    for older_name, newer_name in (("offload_params", "cpu_offload"), ("sharding_strategy", "reshard_after_forward")):
        if older_name in options:
            options.setdefault(newer_name, options.pop(older_name))
    return options


def zero_config(fields: Json) -> Json:
    """Returns a DeepSpeed config with ZeRO's stage and offloading. Its other values are `auto`."""
    zero: Json = {"stage": fields.get("zero_stage", 2)}
    for name in ("offload_optimizer", "offload_param"):
        if fields.get(f"{name}_device") not in (None, "none"):
            zero[name] = {"device": fields[f"{name}_device"]}
    return {**_AUTO, "zero_optimization": zero}


def _word(value: Any) -> str:
    """Returns the value in capitals. False becomes NO, because YAML reads an unquoted `no` as false."""
    return "NO" if value in (None, False) else str(value).upper()[:80]


def _short(value: Any) -> str:
    return json.dumps(value)[:60]
