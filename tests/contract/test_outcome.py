"""An exception that ends training becomes a reason, which decides about a retry, and an error."""

from __future__ import annotations

import pytest

from footplate.contract.host import outcome


@pytest.mark.parametrize(
    ("code", "reason"),
    [(2, "error"), ("there are no rows", "error"), (1, "crashed"), (3, "crashed"), (-9, "crashed"), (137, "crashed")],
)
def test_an_exit_with_2_or_a_message_is_an_error_and_other_codes_are_crashes(code: int | str, reason: str) -> None:
    verdict = outcome.of_exception(SystemExit(code))

    assert (verdict.reason, verdict.error.code) == (reason, "exited")
    assert str(code) in verdict.error.message


@pytest.mark.parametrize("code", [0, None])
def test_an_exit_with_0_before_the_end_is_an_error_that_hints_at_a_clean_stop(code: int | None) -> None:
    verdict = outcome.of_exception(SystemExit(code))

    assert (verdict.reason, verdict.error.code) == ("error", "exited")
    assert "control.should_training_stop = True" in (verdict.error.hint or "")
