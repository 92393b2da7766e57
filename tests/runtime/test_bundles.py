"""Tests a user's own code on a node: its import, its calls, and errors that show the user's lines."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from footplate.contract import layout
from footplate.contract.errors import OwnCodeError
from footplate.contract.events import Failure
from footplate.contract.host import outcome
from footplate.contract.host.bundle_files import Bundle, unpack
from footplate.contract.lifecycle import Reason
from footplate.runtime import own_code
from footplate.runtime.own_code import described
from tests.support.bundles import store_bundle
from tests.support.own_code import close_bundle

NET = """
class Net:
    def __init__(self, hidden: int, dropout: float = 0.1) -> None:
        self.hidden = hidden

def stack(samples, *, pad=0):
    return samples, pad

def data(n=3):
    return list(range(n))

SIZE = 3
"""

Open = Callable[..., Bundle]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Returns a function that writes modules and opens them as a bundle: `opened(my_code="…")`."""

    def make(**files: str) -> Bundle:
        sha = store_bundle(tmp_path, {f"{name.replace('__', '/')}.py": text for name, text in files.items()})
        return own_code.use(unpack(sha, tmp_path, tmp_path / "scratch"))

    yield make
    close_bundle()


def fails(do: Callable[[], Any]) -> OwnCodeError:
    with pytest.raises(OwnCodeError) as failed:
        do()
    return failed.value


def test_own_components_may_be_classes_or_functions(opened: Open) -> None:
    opened(my_code=NET)

    assert own_code.OwnComponent("models", "my_code:Net").load()(hidden=8).hidden == 8
    assert own_code.OwnComponent("data", "my_code:data").load()(n=2) == [0, 1]
    assert own_code.OwnComponent("collators", "my_code:stack").load()()([1]) == ([1], 0)
    assert own_code.OwnComponent("collators", "my_code:stack").load()(pad=9)([1]) == ([1], 9)


def test_a_tests_folder_in_a_bundle_takes_precedence_over_another_tests_package(tmp_path: Path) -> None:
    """Footplate's own checkout is on sys.path. Python would prefer its folder tests, which has an __init__.py."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/rows.py").write_text("NUMBER = 7")
    program = """if True:
        from pathlib import Path
        from footplate.contract.host.bundle_files import Bundle
        from footplate.runtime import own_code
        own_code.use(Bundle("", Path.cwd(), ()))
        from tests.rows import NUMBER
    """

    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)


def test_an_unpacked_bundle_is_importable_read_only_and_free_of_pycache(opened: Open) -> None:
    bundle = opened(my_code=NET, pack__inner="x = 1")

    assert own_code.attribute("pack.inner:x") == 1
    modes = {path.stat().st_mode & 0o777 for path in [bundle.folder, *bundle.folder.rglob("*")]}
    assert modes == {0o555, 0o444}
    assert not list(bundle.folder.rglob("__pycache__"))


def test_a_changed_or_missing_file_in_the_store_is_not_unpacked(opened: Open, tmp_path: Path) -> None:
    bundle = opened(my_code=NET)
    file = tmp_path / layout.bundle_file(bundle.sha256)
    file.write_bytes(file.read_bytes() + b"\0")

    assert "has changed" in fails(lambda: unpack(bundle.sha256, tmp_path, tmp_path / "again")).message
    file.unlink()
    missing = fails(lambda: unpack(bundle.sha256, tmp_path, tmp_path / "again"))
    assert f"{bundle.sha256} is not in the artifact store" in missing.message
    assert missing.hint
    assert not (tmp_path / "again").exists()


def test_a_syntax_error_in_a_bundle_is_reported_with_file_and_line(opened: Open) -> None:
    opened(my_code="import helper", helper="x = 1\ndef f(:\n    pass\n")

    failed = fails(lambda: own_code.attribute("my_code:Net"))

    assert failed.message.startswith("importing my_code failed: helper.py, line 2: SyntaxError")
    assert failed.trace is not None
    assert 'File "my_code.py", line 1' in failed.trace
    assert "footplate" not in failed.trace
    verdict = outcome.of_exception(failed)
    assert (verdict.reason, verdict.error.code) == (Reason.NOT_BUILDABLE, "own_code_error")
    assert verdict.error.traceback == failed.trace


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1 / 0", "my_code.py, line 1: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(3)", "my_code.py, line 2: SystemExit: 3"),
        ("import no_such_package", "No module named 'no_such_package'"),
        ("class Nett: ...\nclass Other: ...", "my_code has no 'Net'; it defines: Nett, Other"),
        ("Net = 3", "my_code:Net is a int, and a class or a function is needed"),
    ],
)
def test_an_error_during_the_import_of_own_code_is_reported(opened: Open, text: str, sentence: str) -> None:
    opened(my_code=text)

    assert sentence in fails(lambda: own_code.OwnComponent("models", "my_code:Net").load()).message


def test_missing_modules_and_modules_that_shadow_a_package_are_refused(opened: Open) -> None:
    import filelock  # noqa: F401

    opened(my_code=NET, filelock="x = 1")
    missing = fails(lambda: own_code.attribute("my_cod:Net"))
    shadowing = fails(lambda: own_code.attribute("filelock:x"))

    assert missing.hint == "did you mean 'my_code'?"
    assert "filelock" in shadowing.message
    assert "installed" in shadowing.message


@pytest.mark.parametrize(
    ("args", "sentence", "hint"),
    [
        ({"hiden": 8}, "takes no argument 'hiden'; it takes: hidden, dropout", "did you mean 'hidden'?"),
        ({}, "missing a required argument: 'hidden'", None),
    ],
)
def test_wrong_arguments_of_own_code_are_refused_with_its_signature(
    opened: Open, args: Any, sentence: str, hint: str | None
) -> None:
    opened(my_code=NET)

    failed = fails(lambda: own_code.OwnComponent("models", "my_code:Net").load()(**args))

    assert sentence in failed.message
    assert failed.hint == hint


def test_required_packages_that_the_node_lacks_are_refused_by_name(opened: Open) -> None:
    own_code.require(["pytest>=7", "Pytest"])

    assert "this node has no einops-of-nobody" in fails(lambda: own_code.require(["einops-of-nobody"])).message
    assert "this node has" in fails(lambda: own_code.require(["pytest>=10000"])).message


def test_an_own_component_is_refused_if_the_job_has_no_bundle() -> None:
    assert "the job has no bundle" in fails(lambda: own_code.OwnComponent("models", "os:system").load()).message


def failure_of_script(bundle: Bundle) -> Failure:
    with pytest.raises(Exception) as failed:  # noqa: PT011
        runpy.run_path(str(bundle.folder / "train.py"), run_name="__main__")
    return described(failed.value, outcome.of_exception(failed.value).error)


def test_an_error_in_a_script_shows_lines_of_the_script_and_not_of_footplate(opened: Open) -> None:
    failure = failure_of_script(opened(train="import rows\nrows.check(7)", rows=ROWS))

    assert failure.message == "rows.py, line 5: ValueError: label 7 is out of range"
    assert failure.traceback is not None
    assert "KeyError: 7" in failure.traceback, "the traceback must include the cause"
    assert [line.strip() for line in failure.traceback.splitlines() if 'File "' in line] == [
        'File "rows.py", line 3, in check',
        'File "train.py", line 2, in <module>',
        'File "rows.py", line 5, in check',
    ]


ROWS = """def check(label):
    try:
        {}[label]
    except KeyError as error:
        raise ValueError(f"label {label} is out of range") from error
"""


def test_a_module_that_a_script_misses_has_a_hint(opened: Open) -> None:
    failure = failure_of_script(opened(train="import no_such_package"))

    assert failure.message.startswith("train.py, line 1: ModuleNotFoundError")
    assert "code.requires" in (failure.hint or "")


def test_shapes_that_do_not_fit_in_an_own_loop_are_named(opened: Open) -> None:
    text = "import torch\nbatch = {'x': torch.ones(32, 64)}\ntorch.nn.Linear(65, 2)(batch['x'])\n"

    failure = failure_of_script(opened(train=text))

    assert failure.hint is not None
    assert "batch['x'] (32, 64) torch.float32" in failure.hint
    assert "Linear(in_features=65, out_features=2, bias=True) got (32, 64)" in failure.hint


def test_an_error_without_a_line_of_the_users_code_is_reported_unchanged(opened: Open) -> None:
    opened(train="")
    failure = Failure(code="error", message="ValueError: no", traceback="all lines")

    assert described(ValueError("no"), failure) == failure
