"""Older names in a spec are stored under current names with a warning. Settings that hide the loss get a warning."""

import pytest

from footplate.contract.arguments.legacy import LEGACY, RemovedArgument, RenamedArgument
from footplate.contract.json_schema import violations
from footplate.contract.spec import JobSpec, accept
from footplate.contract.spec_schema import job_schema
from footplate.contract.warnings import warnings_of
from tests.contract.specs import TOY, places, problems_of

BATCHES = {"split_batches": True, "dispatch_batches": False}
DATA = {"train": "toy/regression", "eval": "toy/regression"}


def training(**values):
    return {**TOY, "data": DATA, "training": values}


def warned(body):
    return [(warning.code, warning.pointer) for warning in warnings_of(accept(body))]


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ({"evaluation_strategy": "epoch"}, {"eval_strategy": "epoch"}),
        ({"warmup_ratio": 0.1}, {"warmup_steps": 0.1}),
        ({"group_by_length": True}, {"train_sampling_strategy": "group_by_length"}),
        ({"per_gpu_train_batch_size": 3}, {"per_device_train_batch_size": 3}),
        ({"adafactor": True}, {"optim": "adafactor"}),
        (BATCHES, {"accelerator_config": BATCHES}),
        ({"use_mps_device": True, "overwrite_output_dir": True}, {}),
    ],
)
def test_older_argument_names_are_stored_under_current_names_with_a_warning(older, newer):
    spec = JobSpec.parse(training(**older))

    assert spec == JobSpec.parse(training(**newer))
    assert not set(older) & set(spec.as_json()["training"])
    assert warned(training(**older)) == [("older_name", f"/training/{name}") for name in older]
    assert violations(job_schema(), training(**older)) == []


def test_an_older_fsdp_argument_becomes_the_strategy_of_the_job():
    body = {**training(fsdp=True, fsdp_min_num_params=1000), "resources": {"gpus_per_node": 2}}

    assert JobSpec.parse(body).resources.strategy.config["min_num_params"] == 1000
    assert warned(body) == [("older_name", "/training/fsdp_min_num_params")]


def test_the_warning_for_an_older_argument_names_what_is_stored_instead():
    body = training(evaluation_strategy="no")
    (warning,) = warnings_of(accept(body))

    assert (warning.code, warning.pointer) == ("older_name", "/training/evaluation_strategy")
    assert warning.detail.endswith(": eval_strategy")


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"evaluation_strategy": "never"}, ("/training/evaluation_strategy", "unknown_choice")),
        ({"evaluation_strategy": "epoch", "eval_strategy": "no"}, ("/training/evaluation_strategy", "disagreement")),
        ({"warmup_ratio": "much"}, ("/training/warmup_ratio", "wrong_type")),
        ({"no_cuda": True}, ("/training/no_cuda", "server_owned")),
        ({"push_to_hub_token": "hf_x"}, ("/training/push_to_hub_token", "not_available_yet")),
        ({"use_ipex": True}, ("/training/use_ipex", "not_available_yet")),
        ({"fp16_backend": "apex"}, ("/training/fp16_backend", "not_available_yet")),
    ],
)
def test_a_wrong_value_of_an_older_argument_is_reported_under_the_older_name(values, place):
    assert places(training(**values)) == [place]


def test_an_older_argument_with_its_neutral_value_is_accepted_without_a_warning():
    values = {name: old.neutral[-1] for name, old in LEGACY.items() if isinstance(old, RemovedArgument)}

    assert warned(training(**values)) == []


def test_wrong_values_of_every_older_argument_are_reported_under_the_older_name():
    for name, old in LEGACY.items():
        if isinstance(old, RenamedArgument):
            problems = problems_of(training(**{name: ["nonsense"]}))
            assert all(pointer.startswith(f"/training/{name}") for pointer, _ in places_of(problems)), name


def places_of(problems):
    return [(problem.pointer, problem.code) for problem in problems]


@pytest.mark.parametrize(
    ("values", "pointer"),
    [
        ({"max_steps": 100}, "/training/max_steps"),
        ({"max_steps": 100, "logging_steps": 101}, "/training/logging_steps"),
    ],
)
def test_a_run_that_ends_before_its_first_log_gets_a_warning(values, pointer):
    assert warned(training(**values)) == [("no_loss_shown", pointer)]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"max_steps": 100, "logging_steps": 100},
        {"max_steps": 100, "logging_steps": 0.5},
        {"max_steps": 100, "logging_first_step": True},
        {"max_steps": 100, "logging_strategy": "epoch"},
        {"max_steps": 100, "logging_strategy": "no"},
    ],
)
def test_a_run_that_logs_its_loss_or_disables_logging_gets_no_warning(values):
    assert warned(training(**values)) == []


def test_a_loop_of_the_users_own_gets_no_warning_about_logging():
    body = {"loop": "my:main", "code": {"bundle": "0" * 64}, "training": {"max_steps": 10}}

    assert warned(body) == []
