"""What a spec says of how a model is to learn, and what of it cannot hold together."""

from __future__ import annotations

from typing import Any

import pytest

from contract.learning_rules import TRACKERS
from contract.spec import JobSpec
from tests.contract.specs import TOY, places, problems_of
from worker.trainer.report import KNOWN

MAIN: dict[str, Any] = {"id": "main", "params": ["^(?!.*quantiles)"], "use": "adam", "args": {"lr": 1e-4}}
AUX: dict[str, Any] = {"id": "aux", "params": [r"\.quantiles$"], "use": "adam", "loss": "aux_loss"}
TWO = {**TOY, "optimizers": [MAIN, AUX]}


def test_two_optimizers_with_their_schedules_are_understood() -> None:
    spec = JobSpec.parse({**TOY, "optimizers": [{**MAIN, "schedule": "cosine"}, {**AUX, "every": 2, "clip": 0.5}]})

    assert spec.optimizers is not None
    assert [one.id for one in spec.optimizers] == ["main", "aux"]
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
def test_what_no_optimizer_can_be_is_told_at_its_place(optimizer: dict[str, Any], place: tuple[str, str]) -> None:
    assert place in places({**TOY, "optimizers": [MAIN, {**AUX, **optimizer}]})


def test_a_schedule_that_knows_its_epochs_may_follow_them() -> None:
    schedule = {"use": "cosine", "per": "epoch", "args": {"num_training_steps": 10}}
    assert places({**TOY, "optimizers": [{**MAIN, "schedule": schedule}]}) == []


def test_somebody_has_the_main_loss() -> None:
    assert places({**TOY, "optimizers": [AUX]}) == [("/optimizers", "no_main_loss")]


@pytest.mark.parametrize(
    "training",
    [{"learning_rate": 1e-3}, {"lr_scheduler_type": "cosine"}, {"warmup_steps": 5}, {"fp16": True}],
    ids=lambda training: next(iter(training)),
)
def test_what_several_optimizers_would_ignore_is_refused(training: dict[str, Any]) -> None:
    assert places({**TWO, "training": training}) == [(f"/training/{next(iter(training))}", "disagreement")]


def test_a_loss_and_label_smoothing_for_another_are_refused() -> None:
    body = {**TOY, "loss": "mse", "training": {"label_smoothing_factor": 0.1}}
    assert places(body) == [("/training/label_smoothing_factor", "disagreement")]


def test_stopping_early_without_evaluations_is_refused_and_says_what_would_do() -> None:
    found = problems_of({**TOY, "callbacks": ["toy", {"use": "early_stopping", "args": {"patience": 2}}]})
    assert [(one.pointer, one.code) for one in found] == [("/callbacks/1", "disagreement")]
    assert found[0].hint == 'set training.eval_strategy: "steps" or "epoch" would do'


def test_a_tracker_that_nobody_knows_is_answered_with_the_nearest() -> None:
    found = problems_of({**TOY, "report_to": ["tensorbord"]})
    assert [(one.pointer, one.hint) for one in found] == [("/report_to/0", "did you mean 'tensorboard'?")]


def test_the_trackers_of_a_spec_are_those_of_the_trainer() -> None:
    assert set(TRACKERS) == set(KNOWN)


@pytest.mark.parametrize("optimizers", [5, [5], [{"schedule": 5}], [{"id": "a", "schedule": {"use": []}}]])
def test_what_is_misshapen_is_told_by_its_shape(optimizers: Any) -> None:
    found = [code for _, code in places({**TOY, "optimizers": optimizers})]
    assert found
    assert "internal" not in found
