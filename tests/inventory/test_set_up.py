"""Checks that the set-up installs exactly the pinned packages."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import Distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.processes import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
PINS = dict(
    line.split("==") for line in (REPOSITORY / "constraints.txt").read_text().splitlines() if line and line[0] != "#"
)

EXTRAS = [
    requirement
    for extra, brings in PROJECT["project"]["optional-dependencies"].items()
    # These extras are GPU kernels, which the set-up neither installs nor pins.
    if extra not in ("bitsandbytes", "liger")
    for requirement in brings
]
GROUPS = [item for group in PROJECT["dependency-groups"].values() for item in group if isinstance(item, str)]
"""Requirements of all groups. An entry that is not a string includes another group."""
PLACES = [*sys.path, str(Path(sys.prefix, "libraries"))]
"""The folders of installed distributions. The last folder has distributions that only some tests import."""


def _installed(name: str) -> Distribution:
    for distribution in Distribution.discover(name=name, path=PLACES):
        return distribution
    raise AssertionError(f"{name} is not installed: run make .venv/.dev")


def required_names() -> set[str]:
    """Returns the names of all distributions that the project, its extras and its groups require, at any depth."""
    direct = PROJECT["project"]["dependencies"] + GROUPS
    waiting = [*direct, *EXTRAS]
    result: set[tuple[str, str]] = set()
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        for extra in ["", *requirement.extras]:
            if name == "footplate" or (name, extra) in result:
                continue
            result.add((name, extra))
            waiting += [
                item
                for item in _installed(name).requires or []
                if (marker := Requirement(item).marker) is None or marker.evaluate({"extra": extra})
            ]
    return {name for name, _ in result}


def test_every_pin_is_one_exact_public_version() -> None:
    for name, version in PINS.items():
        assert re.fullmatch(r"[a-z0-9-]+", name), name
        assert re.fullmatch(r"[0-9][0-9a-z.]*", version), f"{name}=={version}: a public version has no +local part"


def test_everything_that_is_installed_is_pinned() -> None:
    missing = required_names() - set(PINS)

    # torch's CUDA build requires further packages, whose exact versions torch itself pins.
    missing = {name for name in missing if not name.startswith(("nvidia-", "cuda-", "triton"))}
    assert missing == set(), "add these to constraints.txt, with the version that the environment has"


def test_no_pin_is_unused() -> None:
    of_the_set_up_itself = {"uv", "pip", "setuptools"}

    assert set(PINS) - required_names() - of_the_set_up_itself == set(), "nothing requires these: take them out"


def test_every_requirement_admits_its_pinned_version() -> None:
    for text in PROJECT["project"]["dependencies"] + GROUPS + EXTRAS:
        requirement = Requirement(text)
        if requirement.name != "footplate":
            assert requirement.specifier.contains(PINS[canonicalize_name(requirement.name)]), text


def test_make_up_installs_the_extras_that_its_arguments_name() -> None:
    words = "--nodes 2 --extras hf,recipes --json"

    plan = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "up", f"ARGS={words}"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )

    assert "-e '.[embedded,hf,recipes]'" in plan.stdout
    assert plan.stdout.strip().endswith("/footplate up --nodes 2 --json")


def test_make_up_refuses_an_extra_that_does_not_exist() -> None:
    command = ["make", f"--old-file={sys.prefix}/.ready", f"VENV={sys.prefix}", "up", "ARGS=--extras trl,hff"]

    process = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)

    assert process.returncode == 2
    assert "no extra 'hff'. The extras are: " in process.stderr
    assert "trl" in process.stderr.partition("The extras are: ")[2]


def test_a_folder_named_like_the_project_does_not_hide_it_from_a_script_beside_it(tmp_path: Path) -> None:
    (tmp_path / "footplate/footplate").mkdir(parents=True)
    (tmp_path / "script.py").write_text("from footplate import Client")

    subprocess.run([sys.executable, "script.py"], check=True, cwd=tmp_path)
