"""Checks that commands, files, settings and links in the documents exist."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from docs import errors_page, spec_page
from footplate.contract.settings import variable
from footplate.contract.variables import DROP_IN, PREFIX, RENAMED
from footplate.sdk.settings import ClientSettings
from service import readiness
from service.settings import ServiceSettings
from tests.support.processes import REPOSITORY
from worker.settings import WorkerSettings

TREE = (REPOSITORY / "docs/developers/tree.md").read_text()
DOCUMENTS = [path for pattern in ("*.md", "docs/**/*.md") for path in sorted(REPOSITORY.glob(pattern))]
ALL_SETTINGS = (ServiceSettings, WorkerSettings, ClientSettings)
LINK = r"\]\((?!https?:)([^)#]+)\)"
SETTINGS = {variable(name) for settings in ALL_SETTINGS for name in settings.model_fields} | {DROP_IN}
SETTINGS |= {PREFIX + name for name in RENAMED}


@pytest.mark.parametrize("script", sorted(REPOSITORY.glob("examples/*/prepare.py")), ids=lambda path: path.parent.name)
def test_an_example_without_its_packages_names_the_extra_to_install(script: Path, tmp_path: Path) -> None:
    # With -S, Python finds no installed package.
    run = subprocess.run([sys.executable, "-S", script, tmp_path], capture_output=True, text=True)

    assert run.returncode == 1
    assert "Traceback" not in run.stderr
    assert "footplate[hf]" in run.stderr


def test_the_generated_pages_are_up_to_date() -> None:
    pages = runpy.run_path(str(REPOSITORY / "docs/generate.py"))["pages"]()

    for name, text in pages.items():
        assert (REPOSITORY / "docs" / name).read_text() == text, (
            f"docs/{name} is out of date: run `PYTHONPATH=. .venv/bin/python docs/generate.py`, or `make fix`, "
            "and commit what it changes"
        )


@pytest.mark.parametrize(
    ("example", "why"),
    [({"priority": 101}, "refused: /priority"), ({"priority": 5}, "only its default"), ({"tags": []}, "not set it")],
)
def test_an_invalid_example_stops_the_generation_of_the_spec_page(example: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=f"the example of priority on docs/reference/spec.md .*{why}"):
        spec_page.checked(example, "priority")


def test_a_spec_field_without_an_example_stops_the_generation_of_the_spec_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(spec_page.EXAMPLES, "retry.backoff")

    with pytest.raises(ValueError, match=r"add an example of retry\.backoff"):
        spec_page.spec_page("")


def test_the_errors_page_needs_exactly_one_fix_for_every_code(monkeypatch: pytest.MonkeyPatch) -> None:
    cures = errors_page.CURES["Errors of a job"]
    monkeypatch.setitem(errors_page.CURES, "Errors of a job", {**cures, "no_such_code": ("", "")})
    with pytest.raises(ValueError, match="no_such_code"):
        errors_page.errors_page("")

    monkeypatch.setitem(errors_page.CURES, "Errors of a job", {})
    with pytest.raises(ValueError, match=r"the fix of .*dataset_error"):
        errors_page.errors_page("")


def test_the_page_about_the_tree_lists_every_folder_with_its_purpose() -> None:
    tree = TREE.partition("```\n")[2].partition("```")[0]
    names = {line.split("/")[0] for line in tree.splitlines() if not line.startswith(" ")}
    there = {path.name for path in REPOSITORY.iterdir() if path.is_dir() and has_source(path)}

    assert names >= there, f"say in docs/developers/tree.md, in one line each, what these are for: {there - names}"


def has_source(folder: Path) -> bool:
    return not folder.name.startswith(".") and not folder.name.endswith(".egg-info") and any(folder.rglob("*.py"))


def test_the_monitoring_guide_covers_each_dependency_that_may_be_degraded() -> None:
    page = (REPOSITORY / "docs/guides/monitor.md").read_text()
    matches = re.findall(r"^\| `([a-z_]+)` \|", page, re.MULTILINE)

    assert matches[1:] == list(get_args(readiness.Dependency)), (
        "its table has one row for each name of /readyz, in their order"
    )


def test_every_metric_that_the_monitoring_guide_names_is_served() -> None:
    pages = [(REPOSITORY / f"docs/guides/{name}.md").read_text() for name in ("operations", "monitor")]
    names = set(re.findall(r"`(footplate_[a-z_]+)`", "".join(pages)))
    scraped = set(re.findall(r"`(footplate_[a-z_]+)`", (REPOSITORY / "docs/reference/metrics.md").read_text()))

    assert names <= scraped


def test_every_setting_that_a_document_names_exists() -> None:
    names_by_path = {path: set(re.findall(r"FOOTPLATE_[A-Z_]+[A-Z]", path.read_text())) for path in DOCUMENTS}

    assert {path: names - SETTINGS for path, names in names_by_path.items() if names - SETTINGS} == {}, (
        "no code reads these settings"
    )


def test_every_link_in_the_documents_has_a_target() -> None:
    links = [(path, link) for path in DOCUMENTS for link in re.findall(LINK, path.read_text())]

    assert [(path, link) for path, link in links if not (path.parent / link).exists()] == []


def test_the_glossary_is_alphabetical_and_explains_each_word_in_one_sentence() -> None:
    page = (REPOSITORY / "docs/reference/glossary.md").read_text()
    lines = re.findall(r"^- .*", page, re.MULTILINE)
    entry = re.compile(r"- \*\*\[?([A-Za-z -]+)\]?(?:\(\S+\))?\*\*: [A-Z](?:[^.]|\.\w)+\.")

    assert [line for line in lines if not entry.fullmatch(line)] == []
    words = [result[1].lower() for line in lines if (result := entry.fullmatch(line))]
    assert words == sorted(set(words))


def test_every_file_that_the_journey_page_names_exists() -> None:
    page = (REPOSITORY / "docs/explanation/journey.md").read_text()
    names = re.findall(r"`([a-z_]+(?:/[a-z_0-9]+)*/?(?:\.py)?)`", page)
    paths = {name for name in names if "/" in name}

    assert paths, "docs/explanation/journey.md follows the job from file to file"
    assert sorted(name for name in paths if not (REPOSITORY / name).exists()) == []


def test_every_make_target_that_a_document_names_exists_and_says_what_it_does() -> None:
    targets = set(re.findall(r"^([a-z]+):.*## \w", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    names = {word for path in DOCUMENTS for word in re.findall(r"`make ([a-z]+)", path.read_text())}

    assert {"up", "test", "check", "fix", "bench", "soak", "gpu", "clean"} <= targets
    assert names <= targets
