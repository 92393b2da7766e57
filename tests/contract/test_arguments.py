"""Tests training arguments, which convert types in Python, are strict in JSON, and are never ignored."""

from __future__ import annotations

import dataclasses
import json
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from footplate.contract.arguments import SERVER_OWNED, Seq2SeqTrainingArguments, TrainingArguments, changed
from footplate.contract.errors import InvalidSpec, NotAvailableYet, Problem
from footplate.contract.help_texts import meanings
from tests.support.factories import read_arguments

FIELDS = [field.name for field in dataclasses.fields(TrainingArguments)]  # type: ignore[arg-type]


def problems(values: dict[str, object]) -> dict[str, Problem]:
    with pytest.raises(InvalidSpec) as error:
        read_arguments(values)
    return {problem.pointer: problem for problem in error.value.problems}


def test_every_training_argument_has_a_description() -> None:
    assert set(meanings(Seq2SeqTrainingArguments)) == {
        field.name
        for field in dataclasses.fields(Seq2SeqTrainingArguments)  # type: ignore[arg-type]
    }


def test_training_arguments_in_python_convert_types_and_are_mutable() -> None:
    args = TrainingArguments("out", learning_rate="1e-3", max_steps="7")  # type: ignore[arg-type]
    args.max_steps = 9

    assert (args.learning_rate, args.max_steps) == (1e-3, 9)
    assert json.loads(args.to_json_string())["max_steps"] == 9
    assert dataclasses.replace(args, seed=3).seed == 3  # type: ignore[type-var]


def test_folder_arguments_may_be_path_objects() -> None:
    args = TrainingArguments(Path("out"), logging_dir=Path("logs"), resume_from_checkpoint=Path("one"))  # type: ignore[arg-type]

    assert (args.output_dir, args.logging_dir, args.resume_from_checkpoint) == ("out", "logs", "one")


def test_all_wrong_arguments_are_reported_at_once_with_pointer_and_hint() -> None:
    result = problems(
        {
            "max_steps": True,
            "learing_rate": 1e-3,
            "push_to_hub": True,
            "output_dir": "/tmp",
            "eval_strategy": "step",
            "label_names": ["a", 3],
            "warmup_steps": float("nan"),
            "per_device_train_batch_size": 0,
        }
    )

    assert result["/training/learing_rate"].hint == "did you mean 'learning_rate'?"
    assert result["/training/push_to_hub"].code == "not_available_yet"
    assert result["/training/push_to_hub"].hint
    assert result["/training/output_dir"].code == "server_owned"
    assert result["/training/eval_strategy"].hint == "did you mean 'steps'?"
    assert "/training/label_names/1" in result
    assert {"/training/max_steps", "/training/warmup_steps", "/training/per_device_train_batch_size"} < set(result)
    assert len(result) == 8


@pytest.mark.parametrize(("value", "number"), [(5e8, 500_000_000), (3.0, 3), (7, 7)])
def test_an_integer_argument_accepts_any_json_form_of_a_whole_number(value: float, number: int) -> None:
    assert read_arguments({"max_steps": value}).max_steps == number


@pytest.mark.parametrize("value", [True, "3", 3.5, None, [3]])
def test_a_value_that_is_not_a_whole_number_is_refused_as_an_integer(value: object) -> None:
    assert "/training/max_steps" in problems({"max_steps": value})


def test_a_float_argument_accepts_an_integer_and_refuses_a_string() -> None:
    assert read_arguments({"num_train_epochs": 3}).num_train_epochs == 3.0
    assert "/training/num_train_epochs" in problems({"num_train_epochs": "3"})
    assert "/training/learning_rate" in problems({"learning_rate": True})


def test_the_hint_of_an_unknown_argument_is_the_nearest_name_or_the_schema_url() -> None:
    result = problems({"lerning_rate": 1, "lr": 1, "qqq": 1})

    assert result["/training/lerning_rate"].hint == "did you mean 'learning_rate'?"
    assert result["/training/lr"].hint == "did you mean 'learning_rate'?"
    assert result["/training/qqq"].hint.startswith("GET /schema/job ")


@pytest.mark.parametrize("name", sorted(SERVER_OWNED))
def test_arguments_that_the_server_sets_are_refused_with_a_hint(name: str) -> None:
    result = problems({name: "x"})[f"/training/{name}"]

    assert (result.code, bool(result.hint)) == ("server_owned", True)


def test_an_unsupported_argument_is_accepted_only_with_its_neutral_value() -> None:
    read_arguments({"push_to_hub": False, "fsdp": [], "deepspeed": None})

    assert "/training/fsdp" in problems({"fsdp": ["full_shard"]})
    assert "/training/push_to_hub" in problems({"push_to_hub": 0})


@pytest.mark.parametrize(
    ("name", "value"),
    [("optim", "galore_adamw")],
)
def test_an_unsupported_choice_and_an_unknown_choice_have_different_codes(name: str, value: str) -> None:
    result = problems({name: value})[f"/training/{name}"]

    assert (result.code, bool(result.hint)) == ("not_available_yet", True)
    assert problems({name: "no_such"})[f"/training/{name}"].code == "unknown_choice"


def test_the_constructor_refuses_unsupported_and_unknown_arguments() -> None:
    with pytest.raises(NotAvailableYet, match="optim_target_modules"):
        TrainingArguments("out", optim_target_modules=["q"])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'no_such_thing'"):
        TrainingArguments("out", no_such_thing=1)  # type: ignore[call-arg]


def test_the_constructor_names_the_nearest_argument_for_a_misspelt_one() -> None:
    # Python raises TypeError for an unknown argument, and scripts for several library versions catch this type.
    with pytest.raises(TypeError, match=r"'learning_rte'.*'learning_rate'"):
        TrainingArguments("out", learning_rte=1)  # type: ignore[call-arg]


def test_the_traceback_of_an_unsupported_argument_includes_the_hint() -> None:
    with pytest.raises(NotAvailableYet) as error:
        TrainingArguments("out", optim="galore_adamw")  # type: ignore[arg-type]

    report = "".join(traceback.format_exception_only(error.value))
    assert str(error.value.hint) in report
    assert "optimizers=" in report


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("lr_scheduler_kwargs", {}),
        ("activation_checkpointing_kwargs", {}),
        ("fsdp_config", {"fsdp": True}),
        ("deepspeed", {}),
        ("liger_kernel_config", {"use_liger_kernel": True}),
    ],
)
def test_an_argument_that_is_a_dict_may_be_a_json_string_in_python(name: str, more: dict[str, object]) -> None:
    args = TrainingArguments("out", **{name: '{"reshard_after_forward": true}'}, **more)  # type: ignore[arg-type]

    assert getattr(args, name) == {"reshard_after_forward": True}


def test_a_dataclass_subclass_of_the_arguments_is_validated_like_its_base() -> None:
    @dataclasses.dataclass
    class Mine(TrainingArguments):
        temperature: float = 0.5

    args = Mine("out", learning_rate="1e-3", max_steps=3.0, temperature=2.0)  # type: ignore[arg-type]
    assert (args.learning_rate, args.max_steps, args.temperature) == (1e-3, 3, 2.0)
    assert dataclasses.replace(args, seed=3).temperature == 2.0
    for wrong in ({"max_steps": "x"}, {"fp16": True, "bf16": True}, {"eval_strategy": "epok"}):
        with pytest.raises(ValidationError, match=next(iter(wrong))):
            Mine("out", **wrong)  # type: ignore[arg-type]
    with pytest.raises(NotAvailableYet, match="lomo"):
        Mine("out", optim="lomo")  # type: ignore[arg-type]


def test_unsupported_arguments_can_be_read_and_have_their_defaults() -> None:
    args = TrainingArguments("out")

    assert args.optim_target_modules is None
    assert args.ddp_timeout == 1800
    with pytest.raises(AttributeError):
        _ = args.no_such_thing


@pytest.mark.parametrize(
    ("values", "pointer"),
    [
        ({"max_steps": 0}, "max_steps"),
        ({"max_steps": -5}, "max_steps"),
        ({"warmup_steps": 1.5}, "warmup_steps"),
        ({"logging_steps": 2.5}, "logging_steps"),
        ({"logging_steps": 0}, "logging_steps"),
        ({"save_strategy": "best"}, "save_strategy"),
        ({"load_best_model_at_end": True}, "load_best_model_at_end"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau"}, "lr_scheduler_type"),
        ({"dataloader_prefetch_factor": 2}, "dataloader_prefetch_factor"),
        (
            {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 30, "save_steps": 50},
            "save_steps",
        ),
    ],
)
def test_contradicting_arguments_are_refused_in_json_and_in_python(values: dict[str, object], pointer: str) -> None:
    result = problems(values)

    assert list(result) == [f"/training/{pointer}"]
    assert result[f"/training/{pointer}"].hint
    with pytest.raises(ValidationError):
        TrainingArguments("out", **values)  # type: ignore[arg-type]


def test_a_wrong_field_is_not_reported_again_by_rules_about_several_fields() -> None:
    assert list(problems({"load_best_model_at_end": True, "save_strategy": "sometimes"})) == ["/training/save_strategy"]


def test_derived_arguments_have_the_values_that_transformers_derives() -> None:
    args = TrainingArguments("out", eval_strategy="steps", logging_steps=20, save_steps=20, load_best_model_at_end=True)

    assert (args.do_eval, args.eval_steps) == (True, 20)
    assert (args.metric_for_best_model, args.greater_is_better) == ("loss", False)
    assert TrainingArguments("out", metric_for_best_model="accuracy").greater_is_better is True


def test_warmup_steps_below_one_are_a_fraction_of_all_steps() -> None:
    assert TrainingArguments("out", warmup_steps=0.1).get_warmup_steps(55) == 6
    assert TrainingArguments("out", warmup_steps=7).get_warmup_steps(55) == 7


SOME = st.fixed_dictionaries(
    {},
    optional={
        "max_steps": st.integers(1, 10**9),
        "learning_rate": st.floats(0, 1),
        "lr_scheduler_type": st.sampled_from(["linear", "cosine", "constant"]),
        "lr_scheduler_kwargs": st.none() | st.dictionaries(st.text(max_size=5), st.integers()),
        "warmup_steps": st.integers(0, 100) | st.floats(0, 0.99),
        "bf16": st.booleans(),
        "eval_strategy": st.sampled_from(["no", "steps", "epoch"]),
        "label_names": st.none() | st.lists(st.text(max_size=5)),
        "save_total_limit": st.none() | st.integers(1, 9),
        "data_seed": st.none() | st.integers(0, 2**40),
    },
)


@given(SOME)
def test_the_changed_arguments_as_json_read_back_as_equal_arguments(values: dict[str, object]) -> None:
    args = read_arguments(values)

    again = read_arguments(json.loads(json.dumps(changed(args))))

    assert again == args


def test_a_tensor_parallel_size_in_a_spec_is_refused_with_a_hint() -> None:
    """A model that a spec names is always loaded unsharded. Only a script can load a sharded model."""
    result = problems({"parallelism_config": {"tp_size": 2}})["/training/parallelism_config"]

    assert (result.code, read_arguments({"parallelism_config": None}).parallelism_config) == ("not_available_yet", None)
    assert "fsdp or deepspeed" in str(result.hint)
