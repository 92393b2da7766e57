"""Tests that a file of `accelerate config` sets a spec's strategy, shape and precision. Contradictions are refused."""

import pytest

from footplate.contract.spec import JobSpec
from tests.contract.specs import TOY, places, problems_of

WRITTEN = {
    "compute_environment": "LOCAL_MACHINE", "debug": False, "distributed_type": "MULTI_GPU", "downcast_bf16": "no",
    "enable_cpu_affinity": False, "gpu_ids": "all", "machine_rank": 0, "main_training_function": "main",
    "mixed_precision": "bf16", "num_machines": 1, "num_processes": 2, "rdzv_backend": "static", "same_network": True,
    "tpu_env": [], "tpu_use_cluster": False, "tpu_use_sudo": False, "use_cpu": False,
}  # fmt: skip
"""A file that Accelerate 1.15 wrote for two GPUs."""
FSDP = {
    "fsdp_activation_checkpointing": False, "fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_min_num_params": 500,
    "fsdp_cpu_ram_efficient_loading": False, "fsdp_offload_params": True, "fsdp_reshard_after_forward": True,
    "fsdp_state_dict_type": "SHARDED_STATE_DICT", "fsdp_version": 2,
}  # fmt: skip
ZERO = {
    "deepspeed_multinode_launcher": "standard", "gradient_accumulation_steps": 4, "gradient_clipping": 0.5,
    "offload_optimizer_device": "cpu", "offload_param_device": "none", "zero3_init_flag": False, "zero_stage": 2,
}  # fmt: skip
PATH = "/resources/strategy/config"


def body(changes, training=None, **resources):
    strategy = {"type": "accelerate", "config": {**WRITTEN, **changes}}
    return {**TOY, "training": training or {}, "resources": {**resources, "strategy": strategy}}


def test_an_accelerate_config_becomes_the_strategy_the_processes_and_the_precision():
    spec = JobSpec.parse(body({}))

    assert (spec.resources.strategy.type, spec.resources.gpus_per_node, spec.training.bf16) == ("ddp", 2, True)
    assert JobSpec.parse(spec.as_json()) == spec


def test_an_fsdp_config_of_accelerate_becomes_the_fsdp_strategy():
    strategy = JobSpec.parse(body({"distributed_type": "FSDP", "fsdp_config": FSDP})).resources.strategy

    assert strategy.type == "fsdp"
    assert (strategy.config["cpu_offload"], strategy.config["min_num_params"]) == (True, 500)


def test_a_deepspeed_config_of_accelerate_becomes_strategy_and_training_arguments():
    spec = JobSpec.parse(body({"distributed_type": "DEEPSPEED", "deepspeed_config": ZERO, "use_cpu": True}))

    assert spec.resources.strategy.config["zero_optimization"] == {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    assert (spec.training.gradient_accumulation_steps, spec.training.max_grad_norm) == (4, 0.5)
    assert (spec.resources.processes_per_node, spec.resources.gpus_per_node) == (2, 0)


@pytest.mark.parametrize(
    ("config", "more", "pointer", "says"),
    [
        ({}, {"training": {"bf16": False}}, "/mixed_precision", "/training/bf16 is false"),
        ({"mixed_precision": "no"}, {"training": {"bf16": True}}, "/mixed_precision", "/training/bf16 is true"),
        ({"mixed_precision": "fp8"}, {}, "/mixed_precision", "available: no, bf16, fp16"),
        ({}, {"processes_per_node": 4}, "/num_processes", "processes_per_node to 2, but the spec has 4"),
        ({}, {"gpus_per_node": 0}, "/distributed_type", "/resources/gpus_per_node to 2, but the spec has 0"),
        ({"distributed_type": "NO"}, {}, "/distributed_type", "num_processes is 2"),
        ({"distributed_type": "MEGATRON_LM"}, {}, "/distributed_type", "available: NO, MULTI_CPU, MULTI_GPU, FSDP"),
        ({"num_processes": 3, "num_machines": 2, "distributed_type": "FSDP"}, {}, "/num_processes", "2 machines"),
        ({"distributed_type": "DEEPSPEED", "deepspeed_config": ZERO}, {"training": {"max_grad_norm": 1.0}},
         "/deepspeed_config/gradient_clipping", "/training/max_grad_norm to 0.5, but the spec has 1.0"),
        ({"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero3_init_flag": True}}, {},
         "/deepspeed_config/zero3_init_flag", "is not supported"),
        ({"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "x.json"}}, {},
         "/deepspeed_config/deepspeed_config_file", "is not supported"),
        ({"distributed_type": "FSDP", "fsdp_config": {**FSDP, "fsdp_version": 3}}, {}, "/fsdp_config", "1 or 2"),
        ({"fsdp_config": FSDP}, {}, "/fsdp_config", "distributed_type is MULTI_GPU"),
        ({"main_process_port": 29500}, {}, "/main_process_port", "is not supported"),
        ({"dynamo_config": {"dynamo_backend": "INDUCTOR"}}, {}, "/dynamo_config", "is not supported"),
        ({"mixed_precison": "no"}, {}, "/mixed_precison", "not a field of Accelerate"),
    ],
)  # fmt: skip
def test_an_accelerate_key_that_contradicts_the_spec_or_is_unsupported_is_named(config, more, pointer, says):
    result = {problem.pointer: problem.detail for problem in problems_of(body(config, **more))}

    assert says in result.get(PATH + pointer, ""), result


def test_a_precision_in_an_accelerate_config_is_refused_for_a_script():
    script = {"loop": {"script": "train.py"}, "code": {"bundle": "a" * 64}}
    strategy = {"type": "accelerate", "config": WRITTEN}
    plain = {"type": "accelerate", "config": {**WRITTEN, "mixed_precision": "no"}}

    assert places({**script, "resources": {"strategy": strategy}}) == [(PATH, "disagreement")]
    assert places({**script, "resources": {"strategy": plain}}) == []
