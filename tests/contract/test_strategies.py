"""Processes that a spec requests, strategies for them, and combinations that are refused."""

import pytest

from footplate.contract.machine import Resources
from footplate.contract.spec import JobSpec
from tests.contract.specs import TOY, places, problems_of
from tests.trainer.distributed import tutorials


@pytest.mark.parametrize(
    ("resources", "world", "strategy"),
    [
        ({}, 1, "single"),
        ({"gpus_per_node": 0}, 1, "single"),
        ({"processes_per_node": 2}, 2, "ddp"),
        ({"gpus_per_node": 4}, 4, "ddp"),
        ({"gpus_per_node": 2, "processes_per_node": 1}, 1, "single"),
        ({"gpus_per_node": 2, "strategy": "fsdp"}, 2, "fsdp"),
        ({"gpus_per_node": 1, "strategy": "ddp"}, 1, "ddp"),
    ],
)
def test_the_default_strategy_of_several_processes_is_ddp(resources, world, strategy):
    spec = JobSpec.parse({**TOY, "resources": resources})
    assert (spec.resources.world_size, spec.resources.strategy.type) == (world, strategy)
    assert JobSpec.parse(spec.as_json()) == spec


def test_the_number_of_processes_is_nodes_times_processes_per_node():
    assert Resources(nodes=3, processes_per_node=2).world_size == 6
    assert Resources(nodes=3, gpus_per_node=4).processes == 4


@pytest.mark.parametrize(
    ("resources", "pointer", "names"),
    [
        ({"strategy": "single", "processes_per_node": 2}, "/strategy", "processes_per_node the job has 2"),
        ({"strategy": "single", "gpus_per_node": 4}, "/strategy", "gpus_per_node the job has 4"),
        ({"gpus_per_node": 2, "processes_per_node": 4}, "/processes_per_node", "/resources/gpus_per_node is 2"),
        ({"strategy": "ddp"}, "/strategy", "one process"),
        ({"strategy": "fsdp", "gpus_per_node": 1}, "/strategy", "one process"),
    ],
)  # fmt: skip
def test_a_strategy_that_contradicts_the_number_of_processes_names_both(resources, pointer, names):
    (problem,) = problems_of({**TOY, "resources": resources})
    assert (problem.pointer, problem.code) == (f"/resources{pointer}", "disagreement")
    assert names in problem.detail
    assert problem.hint


@pytest.mark.parametrize(
    ("training", "pointer", "code"),
    [
        ({"auto_find_batch_size": True}, "/training/auto_find_batch_size", "disagreement"),
        ({"save_in_background": True}, "/training/save_in_background", "disagreement"),
        (
            {"accelerator_config": {"split_batches": True}, "per_device_train_batch_size": 7},
            "/training/per_device_train_batch_size",
            "does_not_divide",
        ),
    ],
)
def test_arguments_for_a_single_process_are_refused_for_several_processes(training, pointer, code):
    assert places({**TOY, "training": training}) == []
    assert places({**TOY, "training": training, "resources": {"processes_per_node": 2}}) == [(pointer, code)]


def test_merging_an_adapter_is_refused_with_a_sharded_model():
    spec = {
        "model": {"use": "hf/causal-lm", "args": {"path": "models://a", "peft": {"r": 2, "merge": True}}},
        "data": "data://a.txt",
        "resources": {"processes_per_node": 2},
    }
    assert places(spec) == []

    (problem,) = problems_of({**spec, "resources": {"processes_per_node": 2, "strategy": "fsdp"}})

    assert (problem.pointer, problem.code) == ("/model/args/peft/merge", "disagreement")
    assert "/resources/strategy/type is fsdp" in problem.detail


@pytest.mark.parametrize(
    ("args", "resources", "place"),
    [
        ({}, {}, None),
        ({"double_quantization": True}, {"processes_per_node": 2}, None),
        ({"quantization": "int8", "double_quantization": True}, {}, "/model/args/double_quantization"),
        ({"quantization": None, "double_quantization": True}, {}, "/model/args/double_quantization"),
        ({"peft": None}, {}, "/model/args/quantization"),
        ({"from_scratch": True}, {}, "/model/args/quantization"),
        ({"peft": {"r": 2, "merge": True}}, {}, "/model/args/peft/merge"),
        ({}, {"processes_per_node": 2, "strategy": "fsdp"}, "/model/args/quantization"),
    ],
)
def test_a_quantized_model_needs_an_adapter_and_cannot_be_sharded(args, resources, place):
    model = {"path": "models://a", "quantization": "nf4", "peft": {"r": 2}, **args}
    spec = {"model": {"use": "hf/causal-lm", "args": model}, "data": "data://a.txt", "resources": resources}

    assert places(spec) == ([] if place is None else [(place, "disagreement")])


@pytest.mark.parametrize(
    ("trainer", "training", "peft", "strategy", "refused"),
    [
        ("trl/dpo", {}, None, "fsdp", True),
        ("trl/kto", {}, None, "fsdp", True),
        ("trl/kto", {}, None, "ddp", False),
        ("trl/dpo", {}, {"r": 2}, "fsdp", False),
        ("trl/sft", {}, None, "fsdp", False),
        ("trl/grpo", {}, None, "fsdp", False),
        ("trl/grpo", {"beta": 0.1}, None, "fsdp", True),
        ("trl/rloo", {}, None, "fsdp", True),
    ],
)
def test_a_trainer_with_a_reference_model_is_refused_with_fsdp(trainer, training, peft, strategy, refused):
    rewards = {"reward_funcs": ["equals"]} if trainer in ("trl/grpo", "trl/rloo") else {}
    spec = {
        "trainer": trainer,
        "model": {"use": "hf/causal-lm", "args": {"path": "models://a", "peft": peft}},
        "data": "data://a.jsonl",
        "training": {**training, **rewards},
        "resources": {"processes_per_node": 2, "strategy": strategy},
    }

    assert places(spec) == ([("/trainer", "disagreement")] if refused else [])


ZERO = {"zero_optimization": {"stage": 2}}


@pytest.mark.parametrize(
    ("config", "training", "pointer", "names"),
    [
        ({**ZERO, "train_micro_batch_size_per_gpu": 4}, {}, "/train_micro_batch_size_per_gpu",
         "/training/per_device_train_batch_size is 8"),
        ({**ZERO, "gradient_accumulation_steps": 1}, {"gradient_accumulation_steps": 3}, "/gradient_accumulation_steps",
         "/training/gradient_accumulation_steps is 3"),
        ({**ZERO, "train_batch_size": 15}, {}, "/train_batch_size", "16 samples"),
        ({**ZERO, "gradient_clipping": 0.5}, {}, "/gradient_clipping", "/training/max_grad_norm is 1.0"),
        ({**ZERO, "bf16": {"enabled": False}}, {"bf16": True}, "/bf16/enabled", "/training/bf16 is True"),
        ({**ZERO, "optimizer": {"type": "Adam", "params": {"lr": 1}}}, {}, "/optimizer/params/lr",
         "/training/learning_rate is 5e-05"),
        ({**ZERO, "optimizer": {"type": "Lamb"}}, {}, "/optimizer", "Lamb, but optim is adamw"),
        ({**ZERO, "scheduler": {"type": "WarmupLR"}}, {}, "/scheduler", "lr_scheduler_type"),
        ({**ZERO, "fp16": {"enabled": True}}, {}, "/fp16", "loss scale"),
        ({**ZERO, "communication_data_type": "auto"}, {}, "/communication_data_type", "no argument sets"),
        ({"zero_optimisation": {"stage": 2}}, {}, "/zero_optimisation", "'zero_optimization'"),
        ({}, {}, "", "there is none"),
    ],
)  # fmt: skip
def test_a_deepspeed_config_that_contradicts_an_argument_is_refused_naming_both(config, training, pointer, names):
    strategy = {"type": "deepspeed", "config": config}
    body = {**TOY, "training": training, "resources": {"processes_per_node": 2, "strategy": strategy}}
    (problem,) = problems_of(body)
    assert problem.pointer == f"/resources/strategy/config{pointer}"
    assert names in problem.detail
    assert problem.hint


@pytest.mark.parametrize("name", tutorials.REFUSED)
def test_an_untested_deepspeed_config_of_a_tutorial_is_refused_by_name(name):
    config, place, reason = tutorials.REFUSED[name]
    strategy = {"type": "deepspeed", "config": {"zero_optimization": {"stage": 2}, **config}}
    (problem,) = problems_of({**TOY, "resources": {"processes_per_node": 2, "strategy": strategy}})
    assert problem.pointer == f"/resources/strategy/config/{place.replace('.', '/')}"
    assert reason in problem.detail


@pytest.mark.parametrize("name", tutorials.TRAINED)
@pytest.mark.parametrize("training", [{}, {"bf16": True}])
def test_a_tested_deepspeed_config_of_a_tutorial_is_accepted(name, training):
    strategy = {"type": "deepspeed", "config": tutorials.TRAINED[name]}
    problems = problems_of({**TOY, "training": training, "resources": {"processes_per_node": 2, "strategy": strategy}})
    in_bf16_without_stages = bool(training) and "zero 0" in name
    assert [problem.pointer for problem in problems] == [
        "/resources/strategy/config/zero_optimization"
    ] * in_bf16_without_stages


def test_disabled_features_in_a_deepspeed_config_are_accepted():
    off = {"flops_profiler": {"enabled": False}, "dump_state": False, "amp": None}
    strategy = {"type": "deepspeed", "config": {**ZERO, **off}}
    assert places({**TOY, "resources": {"processes_per_node": 2, "strategy": strategy}}) == []


def test_auto_in_a_deepspeed_config_agrees_with_any_argument():
    auto = {
        "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto", "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"},
        "optimizer": {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")},
        "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"},
    }  # fmt: skip
    strategy = {"type": "deepspeed", "config": auto}
    training = {"bf16": True, "learning_rate": 1e-3, "gradient_accumulation_steps": 2}
    assert places({**TOY, "training": training, "resources": {"gpus_per_node": 4, "strategy": strategy}}) == []


@pytest.mark.parametrize(
    ("config", "training", "names"),
    [
        ({"min_num_param": 1}, {}, "'min_num_params'"),
        ({"version": []}, {}, ""),
        ({}, {"fp16": True}, "bf16"),
    ],
)
def test_a_wrong_fsdp_config_is_refused_at_submission(config, training, names):
    """The other cases are in tests/trainer/distributed/test_fsdp_settings.py."""
    resources = {"processes_per_node": 2, "strategy": {"type": "fsdp", "config": config}}
    (problem,) = problems_of({**TOY, "training": training, "resources": resources})
    assert (problem.pointer, problem.code) == ("/resources/strategy/config", "disagreement")
    assert names in problem.detail


def test_several_named_optimizers_are_refused_with_fsdp():
    optimizers = [{"id": "a", "params": [".*"], "use": "adam"}]
    body = {**TOY, "optimizers": optimizers, "resources": {"processes_per_node": 2, "strategy": "fsdp"}}
    assert places(body) == [("/optimizers", "disagreement")]


@pytest.mark.parametrize("loop", ["my:main", {"script": "train.py"}])
def test_the_only_strategies_of_a_loop_or_a_script_are_single_and_ddp(loop):
    spec = {"loop": loop, "code": {"bundle": "a" * 64}, "resources": {"processes_per_node": 2}}
    assert places(spec) == []
    assert JobSpec.parse(spec).resources.strategy.type == "ddp"

    (problem,) = problems_of({**spec, "resources": {"processes_per_node": 2, "strategy": "fsdp"}})

    assert (problem.pointer, problem.code) == ("/resources/strategy", "disagreement")
    assert 'use "ddp"' in problem.hint


def test_a_count_of_nodes_of_the_wrong_type_is_reported_once():
    assert places({**TOY, "resources": {"nodes": "two", "processes_per_node": True}}) == [
        ("/resources/nodes", "wrong_type"),
        ("/resources/processes_per_node", "wrong_type"),
    ]
