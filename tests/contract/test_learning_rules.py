"""Tests optimizers, schedules, losses and generation arguments of a spec, and refused combinations of them."""

from __future__ import annotations

from typing import Any

import pytest

from footplate.contract.arguments import Seq2SeqTrainingArguments
from footplate.contract.learning_rules import TEXT_METRICS
from footplate.contract.spec import JobSpec
from footplate.trainer.metrics.third_party import TEXTS
from tests.contract.specs import TOY, places, problems_of

MAIN: dict[str, Any] = {"id": "main", "params": ["^(?!.*quantiles)"], "use": "adam", "args": {"lr": 1e-4}}
AUX: dict[str, Any] = {"id": "aux", "params": [r"\.quantiles$"], "use": "adam", "loss": "aux_loss"}
TWO = {**TOY, "optimizers": [MAIN, AUX]}


def test_two_optimizers_with_schedules_parse_and_survive_a_round_trip() -> None:
    spec = JobSpec.parse({**TOY, "optimizers": [{**MAIN, "schedule": "cosine"}, {**AUX, "every": 2, "clip": 0.5}]})

    assert spec.optimizers is not None
    assert [optimizer.id for optimizer in spec.optimizers] == ["main", "aux"]
    assert JobSpec.parse(spec.as_json()) == spec


@pytest.mark.parametrize(
    ("optimizer", "place"),
    [
        ({"params": []}, ("/optimizers/1/params", "too_short")),
        ({"loss": "a.b"}, ("/optimizers/1/loss", "not_well_formed")),
        ({"loss": "__init__"}, ("/optimizers/1/loss", "not_well_formed")),
        ({"schedule": "ReduceLROnPlateau"}, ("/optimizers/1/schedule", "not_a_schedule_here")),
        ({"schedule": "SequentialLR"}, ("/optimizers/1/schedule", "not_a_schedule_here")),
        ({"schedule": {"use": "cosine", "per": "epoch"}}, ("/optimizers/1/schedule/per", "disagreement")),
    ],
)
def test_a_wrong_optimizer_field_is_reported_at_its_place(optimizer: dict[str, Any], place: tuple[str, str]) -> None:
    assert place in places({**TOY, "optimizers": [MAIN, {**AUX, **optimizer}]})


def test_a_schedule_per_epoch_is_accepted_if_it_states_its_number_of_steps() -> None:
    schedule = {"use": "cosine", "per": "epoch", "args": {"num_training_steps": 10}}
    assert places({**TOY, "optimizers": [{**MAIN, "schedule": schedule}]}) == []


def test_optimizers_are_refused_if_none_of_them_has_the_main_loss() -> None:
    assert places({**TOY, "optimizers": [AUX]}) == [("/optimizers", "no_main_loss")]


@pytest.mark.parametrize(
    "training",
    [{"learning_rate": 1e-3}, {"lr_scheduler_type": "cosine"}, {"warmup_steps": 5}, {"fp16": True}],
    ids=lambda training: next(iter(training)),
)
def test_training_arguments_that_several_optimizers_would_ignore_are_refused(training: dict[str, Any]) -> None:
    assert places({**TWO, "training": training}) == [(f"/training/{next(iter(training))}", "disagreement")]


def test_label_smoothing_is_refused_beside_a_loss_that_cannot_use_it() -> None:
    body = {**TOY, "loss": "mse", "training": {"label_smoothing_factor": 0.1}}
    assert places(body) == [("/training/label_smoothing_factor", "disagreement")]


def test_early_stopping_without_evaluations_is_refused_with_a_hint() -> None:
    problems = problems_of({**TOY, "callbacks": ["toy", {"use": "early_stopping", "args": {"patience": 2}}]})
    assert [(problem.pointer, problem.code) for problem in problems] == [("/callbacks/1", "disagreement")]
    assert "training.eval_strategy" in str(problems[0].hint)


def test_an_unknown_tracker_is_refused_with_the_nearest_name() -> None:
    problems = problems_of({**TOY, "report_to": ["tensorbord"]})
    assert [(problem.pointer, problem.hint) for problem in problems] == [
        ("/report_to/0", "did you mean 'tensorboard'?")
    ]


def test_an_empty_list_of_optimizers_is_refused_with_a_hint() -> None:
    (problem,) = problems_of({**TOY, "optimizers": []})
    assert (problem.pointer, problem.code) == ("/optimizers", "too_short")
    assert problem.hint


@pytest.mark.parametrize("optimizers", [5, [5], [{"schedule": 5}], [{"id": "a", "schedule": {"use": []}}]])
def test_an_optimizer_list_of_the_wrong_type_is_refused_without_a_crash(optimizers: Any) -> None:
    result = [code for _, code in places({**TOY, "optimizers": optimizers})]
    assert result
    assert "internal" not in result


TEXTS_OF_TEXTS: dict[str, Any] = {
    "model": {"use": "hf/seq2seq", "args": {"path": "models://t5"}},
    "data": {"train": "data://a.jsonl", "eval": "data://b.jsonl"},
    "training": {"predict_with_generate": True, "generation_max_length": 20, "generation_num_beams": 4},
    "metrics": ["rouge"],
}


def test_a_seq2seq_job_may_evaluate_with_generated_texts() -> None:
    spec = JobSpec.parse(TEXTS_OF_TEXTS)

    assert isinstance(spec.training, Seq2SeqTrainingArguments)
    assert (spec.training.predict_with_generate, spec.training.generation_num_beams) == (True, 4)
    assert spec.as_json()["training"] == TEXTS_OF_TEXTS["training"]
    assert JobSpec.parse(spec.as_json()) == spec


def test_neutral_values_of_generation_arguments_leave_the_spec_unchanged() -> None:
    spec = JobSpec.parse({**TOY, "training": {"predict_with_generate": False, "generation_config": None}})
    assert spec == JobSpec.parse(TOY)


@pytest.mark.parametrize(
    ("changes", "pointer", "says"),
    [
        ({"model": {"use": "hf/causal-lm", "args": {"path": "models://a"}}}, "/training/predict_with_generate",
         "/model/use is hf/causal-lm"),
        ({"model": "toy/gpt"}, "/training/predict_with_generate", "/model/use is toy/gpt"),
        ({"data": "data://a.jsonl"}, "/training/predict_with_generate", "neither data.eval nor data.test"),
        ({"training": {"generation_num_beams": 4}, "metrics": []}, "/training/generation_num_beams",
         "predict_with_generate is off"),
        ({"metrics": ["rouge", "accuracy"]}, "/metrics/1", "accuracy needs logits"),
        ({"training": {}}, "/metrics/0", "without /training/predict_with_generate"),
        ({"resources": {"processes_per_node": 2, "strategy": "fsdp"}}, "/training/predict_with_generate",
         "/resources/strategy/type is fsdp"),
    ],
)  # fmt: skip
def test_generation_arguments_that_contradict_the_spec_are_refused_naming_both(
    changes: dict[str, Any], pointer: str, says: str
) -> None:
    (problem,) = problems_of({**TEXTS_OF_TEXTS, **changes})

    assert (problem.pointer, problem.code) == (pointer, "disagreement")
    assert says in problem.detail
    assert problem.hint


def test_predict_with_generate_is_refused_for_a_loop_of_the_users_own() -> None:
    job = {"loop": "my:main", "code": {"bundle": "0" * 64}, "training": {"predict_with_generate": True}}
    assert places(job) == [("/training/predict_with_generate", "disagreement")]


def test_unsupported_seq2seq_arguments_are_refused_with_a_hint() -> None:
    arguments = {"sortish_sampler": True, "generation_config": "models://t5/generation_config.json"}
    problems = problems_of({**TEXTS_OF_TEXTS, "training": {"predict_with_generate": True, **arguments}})
    assert {problem.pointer for problem in problems} == {f"/training/{name}" for name in arguments}
    assert all(problem.hint for problem in problems)


def test_the_contract_and_the_trainer_list_the_same_text_metrics() -> None:
    assert set(TEXT_METRICS) == set(TEXTS)
