"""Checks what Python prints of an error that a script does not catch."""

from __future__ import annotations

import traceback

import pytest

from footplate.contract.errors import FootplateError
from footplate.drop_in import ImportedTooEarly
from footplate.errors import WaitTimeout


@pytest.mark.parametrize("kind", [FootplateError, ImportedTooEarly, WaitTimeout])
def test_a_traceback_ends_with_the_hint(kind: type[FootplateError]) -> None:
    output = traceback.format_exception_only(kind("it happened", hint="do this"))

    assert output[0].endswith("it happened\n")
    assert output[1:] == ["do this\n"]
