"""An exception that ends training becomes a reason, which decides about a retry, and an error."""

from __future__ import annotations

import pytest

from footplate.contract.host import outcome


@pytest.mark.parametrize(
    ("code", "reason"),
    [(2, "error"), ("there are no rows", "error"), (1, "crashed"), (3, "crashed"), (-9, "crashed"), (137, "crashed")],
)
def test_an_exit_that_the_program_decided_is_an_error_and_not_a_crash(code: int | str, reason: str) -> None:
    verdict = outcome.of_exception(SystemExit(code))

    assert (verdict.reason, verdict.error.code) == (reason, "exited")
    assert str(code) in verdict.error.message
