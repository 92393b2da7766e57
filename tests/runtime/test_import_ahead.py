"""Libraries that jobs need are imported into the warm parent, unless a child finds that this does harm."""

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
    """Returns the exit code of a process that tries the imports, as the warm parent's child does."""
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
    ahead.want(["ahead_good", "unknown"], 0.0)
    modules = ahead.take_untried()
    ahead.tried(modules, code_of_child(modules))
    assert "ahead_good" not in sys.modules

    ahead.import_next()
    ahead.want(["ahead_good"], 0.0)

    assert (modules, "ahead_good" in sys.modules, ahead.due_in(0.0, is_idle=True)) == (["ahead_good"], True, None)


@pytest.mark.parametrize("name", ["ahead_broken", "ahead_threaded"])
def test_a_library_whose_import_fails_or_starts_threads_is_not_imported_early(name: str) -> None:
    ahead = ImportAhead()
    ahead.want([name], 0.0)
    modules = ahead.take_untried()

    ahead.tried(modules, code_of_child(modules))

    assert ahead.due_in(0.0, is_idle=True) is None
    assert name not in sys.modules


def test_early_imports_wait_until_new_training_processes_have_settled() -> None:
    ahead = ImportAhead()
    ahead.want(["ahead_good"], 100.0)
    settled = 100.0 + import_ahead.SETTLED_SECONDS

    assert ahead.due_in(100.0, is_idle=True) == 0.0
    assert ahead.due_in(settled - 4, is_idle=False) == 4.0
    ahead.want([], 103.0)
    assert ahead.due_in(settled, is_idle=False) == 3.0
    assert ahead.due_in(settled + 3, is_idle=False) == 0.0


def test_the_libraries_to_import_early_follow_from_model_and_processor() -> None:
    adapter = {"use": "hf/causal-lm", "args": {"path": "models://tiny", "peft": {"r": 8}}}

    assert libraries_of(make_spec()) == ()
    assert libraries_of(make_spec(model="hf/causal-lm")) == ("transformers",)
    assert libraries_of(make_spec(model=adapter)) == ("transformers", "peft")
