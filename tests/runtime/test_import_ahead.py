"""Tests early imports of libraries into the warm parent, after a child has tried that they do no harm."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from footplate.contract.host.launch import libraries_of
from footplate.runtime import import_ahead
from footplate.runtime.import_ahead import ImportAhead, try_imports
from tests.support.factories import make_spec

HARMS = {
    "ahead_good": "",
    "ahead_polite": "import os; assert os.nice(0) >= 10, 'training has the same priority'",
    "ahead_broken": "raise ImportError('half an installation')",
    "ahead_threaded": "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
}


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, text in HARMS.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(import_ahead, "MODULES", {name: (name,) for name in HARMS})
    yield
    for name in HARMS:
        sys.modules.pop(name, None)


def code_of_child(modules: list[str]) -> int:
    """Returns the exit code of a child process that tries the imports, like a child of the warm parent."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            code = try_imports(modules)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_library_is_imported_in_a_child_once_before_the_parent_imports_it() -> None:
    ahead = ImportAhead()
    ahead.want(["ahead_good", "unknown"])
    modules = ahead.take_untried()
    ahead.tried(modules, code_of_child(modules))
    assert "ahead_good" not in sys.modules

    ahead.import_next()
    ahead.want(["ahead_good"])

    assert (modules, "ahead_good" in sys.modules, ahead.is_due) == (["ahead_good"], True, False)


@pytest.mark.parametrize("name", ["ahead_broken", "ahead_threaded"])
def test_a_library_whose_import_fails_or_starts_threads_is_not_imported_early(name: str) -> None:
    ahead = ImportAhead()
    ahead.want([name])
    modules = ahead.take_untried()

    ahead.tried(modules, code_of_child(modules))

    assert not ahead.is_due
    assert name not in sys.modules


def test_the_child_that_tries_an_import_has_a_lower_priority_than_training() -> None:
    assert code_of_child(["ahead_polite"]) == 0


def test_the_libraries_to_import_early_follow_from_model_and_processor() -> None:
    adapter = {"use": "hf/causal-lm", "args": {"path": "models://tiny", "peft": {"r": 8}}}

    assert libraries_of(make_spec()) == ()
    assert libraries_of(make_spec(model="hf/causal-lm")) == ("transformers",)
    assert libraries_of(make_spec(model=adapter)) == ("transformers", "peft")
