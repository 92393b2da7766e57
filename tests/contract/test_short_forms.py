"""Short forms are expanded to long ones, and a value given in two places must agree."""

import pytest

from footplate.contract.short_forms import LongForm, long_form
from footplate.contract.spec import JobSpec
from tests.contract.specs import TOY, places, problems_of

JOB = "job_" + "0" * 32
ZERO = {"type": "deepspeed", "config": {"a": 2}}
JSONL = {"use": "files/jsonl", "args": {"paths": ["data://x/train.jsonl"]}}


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({"model": "toy/mlp"}, {"model": {"use": "toy/mlp"}}),
        ({"metrics": ["f1", {"use": "mse"}]}, {"metrics": [{"use": "f1"}, {"use": "mse"}]}),
        ({"data": "toy/regression"}, {"data": {"train": {"use": "toy/regression"}}}),
        ({"data": {"use": "toy/regression", "args": {}}}, {"data": {"train": {"use": "toy/regression", "args": {}}}}),
        ({"data": "data://x/train.jsonl"}, {"data": {"train": JSONL}}),
        ({"data": "data://x.TSV"}, {"data": {"train": {"use": "files/csv", "args": {"paths": ["data://x.TSV"]}}}}),
        ({"data": "data://*.txt"}, {"data": {"train": {"use": "files/text", "args": {"paths": ["data://*.txt"]}}}}),
        ({"data": {"eval": "data://x/train.jsonl"}}, {"data": {"eval": JSONL}}),
        ({"data": {"eval": {"a": "data://x/train.jsonl"}}}, {"data": {"eval": {"a": JSONL}}}),
        ({"resources": {"strategy": "ddp"}}, {"resources": {"strategy": {"type": "ddp"}}}),
        ({"optimizers": [{"schedule": "constant"}]}, {"optimizers": [{"schedule": {"use": "constant"}}]}),
        ({"loop": "my_code:main"}, {"loop": {"use": "my_code:main"}}),
    ],
)  # fmt: skip
def test_a_short_form_is_expanded_to_the_long_form(short, long):
    assert long_form(short).document == long
    assert long_form(long).document == long


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("data://x.json", "no_reader"),
        ("data://x", "no_reader"),
        ("https://x/y.arrow", "no_reader"),
        ("train.jsonl", "path_without_root"),
        ("/etc/train.jsonl", "path_without_root"),
        ("./train.JSONL", "path_without_root"),
        ("train.zip", "no_reader"),
    ],
)
def test_a_path_without_a_reader_is_refused_with_the_known_suffixes(path, code):
    problem = problems_of({**TOY, "data": {"train": path}})[0]
    assert (problem.pointer, problem.code) == ("/data/train", code)
    assert ".jsonl" in problem.detail.lower()
    assert problem.hint


@pytest.mark.parametrize(
    ("training", "place"),
    [
        ({"report_to": "tensorboard"}, {"report_to": ["tensorboard"]}),
        ({"report_to": ["wandb", "mlflow"]}, {"report_to": ["mlflow", "wandb"]}),
        ({"report_to": "none"}, {"report_to": []}),
        ({"fsdp": "full_shard"}, {"resources": {"strategy": "fsdp"}}),
        ({"fsdp": True, "fsdp_config": {"a": 1}}, {"resources": {"strategy": {"type": "fsdp", "config": {"a": 1}}}}),
        ({"deepspeed": {"a": 1}}, {"resources": {"strategy": {"type": "deepspeed", "config": {"a": 1}}}}),
        ({"resume_from_checkpoint": JOB}, {"resume_from": {"job": JOB}}),
        ({"resume_from_checkpoint": f"{JOB}/best"}, {"resume_from": {"job": JOB, "checkpoint": "best"}}),
        ({"resume_from_checkpoint": False}, {}),
        ({"optim": "sgd"}, {"optimizers": [{"use": "sgd"}]}),
        ({"do_train": True, "do_eval": False}, {"data": {"train": "x"}}),
        ({"do_train": False, "do_predict": True}, {"data": {"test": "x"}}),
    ],
)
def test_a_value_with_its_own_field_may_also_be_given_in_training(training, place):
    assert long_form({**place, "training": training}).problems == []
    spec = long_form({"data": {"train": "x"}, "training": training})
    assert "do_train" in training or spec.problems == []


@pytest.mark.parametrize(
    ("training", "place", "sentence"),
    [
        ({"report_to": "wandb"}, {"report_to": ["tensorboard"]}, "/report_to"),
        ({"report_to": "none"}, {"report_to": ["tensorboard"]}, "/report_to"),
        ({"fsdp": "full_shard"}, {"resources": {"strategy": "ddp"}}, "/resources/strategy"),
        ({"deepspeed": {"a": 1}}, {"resources": {"strategy": ZERO}}, "/resources/strategy"),
        ({"resume_from_checkpoint": JOB}, {"resume_from": {"job": JOB, "checkpoint": "best"}}, "/resume_from"),
        ({"optim": "sgd"}, {"optimizers": [{"use": "adam"}, {"use": "sgd"}]}, "/optimizers"),
        ({"do_train": True}, {"data": {"eval": "x"}}, "/data/train"),
        ({"do_eval": False}, {"data": {"eval": "x"}}, "/data/eval"),
        ({"do_predict": True}, {"data": "x"}, "/data/test"),
    ],
)  # fmt: skip
def test_contradicting_values_in_training_and_in_their_own_field_are_both_named(training, place, sentence):
    (problem,) = long_form({**place, "training": training}).problems
    assert (problem.pointer, problem.code) == (f"/training/{next(iter(training))}", "disagreement")
    assert sentence in problem.detail


def test_training_values_with_a_field_of_their_own_are_copied_to_the_field():
    training = {"report_to": "wandb", "deepspeed": {"stage": 3}, "resume_from_checkpoint": f"{JOB}/best"}
    document = long_form({"training": training}).document
    assert document["report_to"] == ["wandb"]
    assert document["resources"]["strategy"] == {"type": "deepspeed", "config": {"stage": 3}}
    assert document["resume_from"] == {"job": JOB, "checkpoint": "best"}


TWO = {"processes_per_node": 2}


@pytest.mark.parametrize(
    ("training", "resources", "config"),
    [
        ({"fsdp": "full_shard offload"}, TWO, {"reshard_after_forward": "full_shard", "cpu_offload": True}),
        ({"fsdp": True, "fsdp_config": {"min_num_params": 5}}, TWO, {"min_num_params": 5}),
        ({"fsdp_config": {"min_num_params": 5}}, {**TWO, "strategy": "fsdp"}, {"min_num_params": 5}),
        ({"deepspeed": {"zero_optimization": {"stage": 2}}}, TWO, {"zero_optimization": {"stage": 2}}),
    ],
)
def test_a_strategy_in_training_becomes_the_strategy_of_the_job(training, resources, config):
    spec = JobSpec.parse({**TOY, "training": training, "resources": resources})
    assert spec.as_json()["resources"]["strategy"]["config"] == config
    assert JobSpec.parse(spec.as_json()) == spec


@pytest.mark.parametrize(
    ("training", "pointer", "says"),
    [
        ({"fsdp": "fill_shard"}, "/training/fsdp", "'full_shard'"),
        ({"fsdp": 5}, "/training/fsdp", "is a number, and true or false"),
        ({"fsdp": True, "fsdp_config": {"min_num_param": 5}}, "/training/fsdp_config", "'min_num_params'"),
        ({"fsdp_config": {"min_num_params": 5}}, "/training/fsdp_config", "turns FSDP on"),
        ({"deepspeed": "zero.json"}, "/training/deepspeed", "is a string, an object"),
        ({"deepspeed": {"zero_optimization": {}, "gradient_clipping": 5}}, "/training/deepspeed/gradient_clipping",
         "/training/max_grad_norm is 1.0"),
    ],
)  # fmt: skip
def test_a_wrong_strategy_in_training_is_reported_in_training(training, pointer, says):
    (problem,) = problems_of({**TOY, "training": training, "resources": TWO})
    assert problem.pointer == pointer
    assert says in problem.detail


def test_deepspeed_in_training_for_one_process_is_reported_in_training():
    assert places({**TOY, "training": {"deepspeed": {"zero_optimization": {}}}}) == [
        ("/training/deepspeed", "disagreement")
    ]


def test_a_job_to_resume_from_may_be_named_in_training():
    spec = JobSpec.parse({**TOY, "training": {"resume_from_checkpoint": JOB}})
    assert spec.resume_from
    assert spec.resume_from.job == JOB


@pytest.mark.parametrize("value", [True, "out/checkpoint-500", "job_5", 5])
def test_resume_from_checkpoint_in_training_refuses_anything_but_a_job(value):
    assert places({**TOY, "training": {"resume_from_checkpoint": value}}) == [
        ("/training/resume_from_checkpoint", "not_a_job")
    ]


def test_an_error_in_a_copied_value_points_to_the_place_it_was_written():
    assert places({**TOY, "training": {"report_to": "wand"}}) == [("/training/report_to", "unknown_choice")]


@pytest.mark.parametrize(
    ("body", "long", "short"),
    [
        ({"model": "x"}, "/model/use", "/model"),
        ({"model": {"use": "x"}}, "/model/use", "/model/use"),
        ({"data": "x"}, "/data/train/args/paths", "/data"),
        ({"data": {"use": "x"}}, "/data/train/args/paths", "/data/args"),
        ({"data": {"train": "x"}}, "/data/train/use", "/data/train"),
        ({"data": {"eval": {"a/b": "x"}}}, "/data/eval/a~1b/use", "/data/eval/a~1b"),
        ({"metrics": ["x"]}, "/metrics/0/use", "/metrics/0"),
        ({}, "/model", "/model"),
        ({}, "/resources/nodes", "/resources"),
    ],
)
def test_a_pointer_into_the_long_form_is_mapped_back_to_the_written_body(body, long, short):
    result: LongForm = long_form(body)
    assert result.locate(long) == short


def test_every_component_of_a_spec_is_listed_with_its_pointer():
    item = {"use": "x"}
    document = {
        "model": item, "processor": item, "collator": item, "loss": item, "compute_metrics": item, "loop": item,
        "metrics": [item], "callbacks": [item, item],
        "data": {"train": item, "test": item, "eval": {"a": item, "b": item}, "map": [item]},
        "optimizers": [{"id": "all", "params": [".*"], "use": "adam", "schedule": item}],
    }  # fmt: skip
    assert {(used.pointer, used.group) for used in JobSpec.model_validate(document).components} == {
        ("/model", "models"), ("/processor", "processors"), ("/collator", "collators"), ("/loss", "losses"),
        ("/compute_metrics", "metrics"), ("/loop", "loops"), ("/metrics/0", "metrics"), ("/callbacks/0", "callbacks"),
        ("/callbacks/1", "callbacks"), ("/data/train", "data"), ("/data/test", "data"), ("/data/eval/a", "data"),
        ("/data/eval/b", "data"), ("/data/map/0", "maps"), ("/optimizers/0", "optimizers"),
        ("/optimizers/0/schedule", "schedules"),
    }  # fmt: skip
