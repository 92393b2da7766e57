"""A library's trainer in a spec: its own arguments and defaults, its reward functions, and the rows that it takes."""

from __future__ import annotations

from typing import Any

import pytest

from footplate.components.row_forms import PAIRS, PROMPTS, RATED, TEXTS
from footplate.contract.arguments import stated
from footplate.contract.components import Catalogue, Described
from footplate.contract.errors import InvalidSpec
from footplate.contract.json_schema import violations
from footplate.contract.row_formats import RowForms
from footplate.contract.spec import JobSpec, accept
from footplate.contract.spec_schema import job_schema
from footplate.contract.warnings import warnings_of
from tests.contract.specs import TOY, places, problems_of

SFT = {**TOY, "trainer": "lib/sft"}
CODE = {"code": {"bundle": "0" * 64}}
ARGS = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "max_length": {"type": ["integer", "null"]},
        "reward_funcs": {"type": "array", "items": {"type": "object"}},
    },
}
CATALOGUE = Catalogue.of(
    [
        Described(name="toy/mlp", group="models"),
        Described(name="toy/regression", group="data"),
        Described(name="accuracy", group="metrics"),
        Described(name="equals", group="rewards"),
        Described(name="lib/sft", group="trainers", args=ARGS, ignores=["metrics", "data.test"]),
    ]
)


def checked(body: dict[str, Any]) -> list[tuple[str, str]]:
    return [(problem.pointer, problem.code) for problem in problems_of(body, CATALOGUE)]


def test_a_library_argument_in_training_is_moved_to_the_trainer() -> None:
    spec = JobSpec.parse({**SFT, "training": {"max_length": 64, "max_steps": 3}})

    assert spec.trainer is not None
    assert (spec.trainer.use, spec.trainer.args) == ("lib/sft", {"max_length": 64})
    assert spec.training.max_steps == 3
    assert JobSpec.parse(spec.as_json()) == spec


def test_the_schema_of_a_job_allows_arguments_of_a_library_in_training() -> None:
    assert violations(job_schema(), {**SFT, "training": {"max_length": 64}}) == []


def test_a_wrong_library_argument_is_reported_where_it_was_written() -> None:
    assert checked({**SFT, "training": {"max_length": "64"}}) == [("/training/max_length", "wrong_type")]
    assert checked({**SFT, "trainer": {"use": "lib/sft", "args": {"max_len": 1}}}) == [
        ("/trainer/args/max_len", "unknown_argument")
    ]
    assert checked({**TOY, "trainer": "lib/stf"}) == [("/trainer", "unknown_component")]


@pytest.mark.parametrize(("name", "meant"), [("max_lenght", "max_length"), ("lerning_rate", "learning_rate")])
def test_the_nearest_name_is_searched_in_our_arguments_and_the_librarys(name: str, meant: str) -> None:
    body = {**SFT, "training": {name: 1}}

    (problem,) = problems_of(body, CATALOGUE)

    assert (problem.pointer, problem.hint) == (f"/training/{name}", f"did you mean {meant!r}?")


def test_a_library_argument_in_both_training_and_trainer_is_refused() -> None:
    trainer = {"use": "lib/sft", "args": {"max_length": 1}}

    assert places({**TOY, "trainer": trainer, "training": {"max_length": 2}}) == [
        ("/training/max_length", "disagreement")
    ]


def test_a_value_equal_to_our_default_is_kept_if_the_library_may_differ() -> None:
    spec = JobSpec.parse({**SFT, "training": {"learning_rate": 5e-5, "eval_strategy": "no"}})

    assert stated(spec.training) == {"learning_rate": 5e-5, "eval_strategy": "no"}
    assert spec.as_json()["training"] == stated(JobSpec.parse(spec.as_json()).training) == stated(spec.training)
    assert JobSpec.parse({**TOY, "training": {"learning_rate": 5e-5}}).as_json()["training"] == {}


def test_a_spec_field_that_a_library_trainer_would_ignore_is_refused() -> None:
    assert checked({**SFT, "metrics": ["accuracy"]}) == [("/metrics", "disagreement")]
    assert checked({**SFT, "data": {"train": "toy/regression", "test": "toy/regression"}}) == [
        ("/data/test", "disagreement")
    ]


def test_a_library_trainer_needs_training_data_and_refuses_predict_with_generate() -> None:
    assert places({**SFT, "data": {"eval": "toy/regression"}}) == [("/data/train", "missing")]
    assert places({**SFT, "training": {"predict_with_generate": True}, "data": TOY["data"]})[-1:] == [
        ("/training/predict_with_generate", "disagreement")
    ]


def test_reward_functions_are_components_of_the_spec() -> None:
    body = {**SFT, **CODE, "training": {"reward_funcs": ["my_code:brief", {"use": "equals", "args": {"column": "a"}}]}}

    parts = [(part.pointer, part.component.use) for part in JobSpec.parse(body).components if part.group == "rewards"]

    assert parts == [("/trainer/args/reward_funcs/0", "my_code:brief"), ("/trainer/args/reward_funcs/1", "equals")]


@pytest.mark.parametrize(
    ("rewards", "place"),
    [
        (["my_code:brief"], ("/training/reward_funcs/0", "needs_bundle")),
        ([{"us": "equals"}], ("/training/reward_funcs/0", "not_well_formed")),
        (["no such name"], ("/training/reward_funcs/0", "not_well_formed")),
        ([7], ("/training/reward_funcs/0", "not_well_formed")),
    ],
)
def test_a_malformed_reward_function_is_refused(rewards: list[Any], place: tuple[str, str]) -> None:
    assert place in places({**SFT, "training": {"reward_funcs": rewards}})


def test_an_unknown_reward_function_is_refused() -> None:
    assert checked({**SFT, "training": {"reward_funcs": ["equal"]}}) == [
        ("/training/reward_funcs/0", "unknown_component")
    ]


def test_unknown_training_arguments_are_refused_with_a_trainer_of_the_users_own() -> None:
    spec = JobSpec.parse({**TOY, **CODE, "trainer": {"use": "my_code:Mine", "args": {"alpha": 0.5}}})

    assert spec.trainer is not None
    assert (spec.trainer.args, spec.library_trainer) == ({"alpha": 0.5}, None)
    with pytest.raises(InvalidSpec):
        JobSpec.parse({**TOY, **CODE, "trainer": "my_code:Mine", "training": {"max_length": 1}})


def test_a_short_run_of_a_library_trainer_gets_no_warning_about_logging() -> None:
    body = {**SFT, "training": {"max_steps": 20}}

    assert warnings_of(accept(body)) == []
    assert problems_of(body) == []


# Rows

ASK, ANSWER = [{"role": "user", "content": "hi"}], [{"role": "assistant", "content": "hello"}]


@pytest.mark.parametrize(
    ("forms", "row"),
    [
        (TEXTS, {"text": "a"}),
        (TEXTS, {"messages": ASK + ANSWER, "id": 7}),
        (TEXTS, {"messages": [{"role": "assistant", "tool_calls": [{"type": "function"}]}]}),
        (TEXTS, {"prompt": "a", "completion": "b"}),
        (TEXTS, {"prompt": ASK, "completion": ANSWER}),
        (PAIRS, {"prompt": "a", "chosen": "b", "rejected": "c"}),
        (PAIRS, {"chosen": ASK + ANSWER, "rejected": ASK + ANSWER}),
        (RATED, {"prompt": ASK, "completion": ANSWER, "label": True}),
        (RATED, {"chosen": "b", "rejected": "c"}),
        (PROMPTS, {"prompt": ASK, "answer": "5"}),
    ],
)
def test_a_row_that_fits_one_of_the_forms_has_no_problem(forms: list[Any], row: dict[str, Any]) -> None:
    assert RowForms(forms).problem(row) is None


@pytest.mark.parametrize(
    ("forms", "row", "says"),
    [
        (TEXTS, {"txt": "a"}, "there is no column 'text', only: txt"),
        (TEXTS, {"prompt": "a", "completon": "b"}, "there is no column 'completion', only: prompt, completon"),
        (TEXTS, {"text": 5}, "column 'text' is a number, a string is needed"),
        (TEXTS, {"messages": []}, "column 'messages' must have at least 1 entries"),
        (
            TEXTS,
            {"messages": [{"role": "usr", "content": "x"}]},
            "column 'messages', at 0/role, must be one of system, developer, user, assistant, tool, function",
        ),
        (TEXTS, {"messages": [{"role": "user"}]}, "column 'messages', at 0/content, this argument is required"),
        (PAIRS, {"prompt": "a", "chosen": "b"}, "there is no column 'rejected', only: prompt, chosen"),
        (PAIRS, {"prompt": 1, "chosen": "b", "rejected": "c"}, "column 'prompt' is a number, a string is needed"),
        (RATED, {"prompt": "a", "completion": "b", "label": 1}, "column 'label' is a number, true or false is needed"),
        (PROMPTS, {"question": "a"}, "there is no column 'prompt', only: question"),
    ],
)
def test_a_row_that_fits_no_form_is_compared_with_the_nearest_form(
    forms: list[Any], row: dict[str, Any], says: str
) -> None:
    problem = RowForms(forms).problem(row)

    assert problem is not None
    assert (problem.code, problem.detail) == ("wrong_row", says)
    assert problem.hint is not None
    assert problem.hint.startswith(f"a row has {forms[0]['title']}")


def test_rows_must_all_have_the_form_of_the_first_row() -> None:
    forms = RowForms(TEXTS)

    assert forms.problem({"text": "a"}) is None
    problem = forms.problem({"messages": ASK})

    assert problem is not None
    assert problem.code == "wrong_row"
    assert "'text', only: messages" in problem.detail
