"""The dataset `lm-eval`: its description by a node, refused requests, and evaluations of a tiny model."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from footplate.components import lm_eval_shipped, lm_eval_tasks
from footplate.contract.components import Catalogue
from footplate.runtime.catalogue import describe
from tests.contract.specs import problems_of
from tests.support.processes import REPOSITORY, clean_environment, free_port

PROGRAM = Path(__file__).with_name("evaluates_with_lm_eval.py")
MODEL = {"use": "hf/causal-lm", "args": {"path": "models://tiny"}}


def problems(**args: Any) -> list[tuple[str, str, str | None]]:
    """Returns the problems that a service reports for these arguments, if its node has this dataset."""
    names = {"data": {"eval": {"use": "lm-eval", "args": {"paths": ["data://rows.jsonl"], **args}}}}
    catalogue = Catalogue.of([describe("data", "lm-eval", lm_eval_tasks.task)])
    wrong = problems_of({"model": MODEL, **names}, catalogue)
    return [(problem.pointer, problem.code, problem.hint) for problem in wrong if problem.pointer.startswith("/data")]


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes a small copy of the library's task folder importable, because the real folder has 14,000 files."""
    tasks = tmp_path / "lm_eval/tasks"
    tasks.mkdir(parents=True)
    (tmp_path / "lm_eval/__init__.py").touch()
    (tasks / "one.yaml").write_text('tag: a\ntask: "hellaswag"  # a comment\ndataset_path: owner/name\n')
    (tasks / "two.yaml").write_text('"include": "_template"\n"task": "mmlu_anatomy"\n')
    (tasks / "_template").write_text('tag:\n  - mmlu_stem\n  - "other"\ndataset_path: owner/name\n')
    (tasks / "group.yaml").write_text("group: arc\ntask:\n  - arc_easy\n")
    (tasks / "coded.yaml").write_text("task: squadv2\nclass: !function task.SQuAD2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    lm_eval_shipped.shipped.cache_clear()
    yield
    lm_eval_shipped.shipped.cache_clear()


def test_a_request_without_lm_eval_installed_is_refused_with_the_pip_command() -> None:
    assert describe("data", "lm-eval", lm_eval_tasks.task).needs == "lm_eval (pip install 'footplate[lm-eval]')"
    assert [(pointer, code) for pointer, code, _ in problems(task="hellaswag")] == [("/data/eval/use", "not_installed")]


@pytest.mark.usefixtures("shipped")
def test_an_lm_eval_request_with_an_unknown_task_or_a_wrong_limit_is_refused() -> None:
    library = lm_eval_shipped.shipped()
    assert (sorted(library.tasks), list(library.groups)) == (["hellaswag", "mmlu_anatomy"], ["arc"])
    assert library.tags == {"a": ["hellaswag"], "mmlu_stem": ["mmlu_anatomy"], "other": ["mmlu_anatomy"]}
    assert problems(task="hellaswag", num_fewshot=0, limit=10) == []
    assert problems(yaml="tasks/mine.yaml") == []
    assert problems(task="arc", paths={"arc_easy": ["data://rows.jsonl"]}) == []
    assert problems(task="helaswag") == [("/data/eval/args/task", "unknown_choice", "did you mean 'hellaswag'?")]
    assert [code for _, code, _ in problems(task="hellaswag", limit=0)] == ["out_of_range"]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("eval(row)", {"eval"}),
        ("builtins.eval(row)", {"eval"}),
        ("sympy.sympify(row)", {"sympify"}),
        ("import subprocess as s", {"subprocess"}),
        ("from pickle import loads", {"pickle"}),
        ("re.compile(row)", set()),
    ],
)
def test_calls_that_could_execute_a_row_as_code_are_detected(source: str, names: set[str]) -> None:
    used = {name for node in ast.walk(ast.parse(source)) for name in lm_eval_shipped.names_in(node)}

    assert used & lm_eval_shipped.RUNS_CODE == names


@pytest.mark.matrix
def test_tasks_of_the_library_and_of_a_bundle_evaluate_a_model_on_local_rows(tmp_path: Path) -> None:
    installed = Path(sys.prefix, "libraries")
    assert (installed / "lm_eval").is_dir(), "lm-eval is not installed: run make .venv/.dev"

    environment = {**clean_environment(), "PYTHONPATH": f"{installed}:{REPOSITORY}"}
    subprocess.run([sys.executable, str(PROGRAM), str(tmp_path)], check=True, env=environment)

    results = json.loads((tmp_path / "results.json").read_text())
    assert results.pop("tasks of mmlu") == 57
    trl = results.pop("trl")
    assert {"eval_rows_loss", "lm_eval/colours/acc"} <= trl.keys(), sorted(trl)
    names = {name: list(result["metrics"]) for name, result in results.items() if "metrics" in result}
    assert names == {
        "shipped": ["lm_eval/arc_easy/acc", "lm_eval/arc_easy/acc_norm"],
        "with examples": ["lm_eval/arc_easy/acc", "lm_eval/arc_easy/acc_norm"],
        "generated": ["lm_eval/gsm8k/exact_match/strict-match", "lm_eval/gsm8k/exact_match/flexible-extract"],
        "group": [f"lm_eval/{name}/acc" for name in ("wmdp_bio", "wmdp_chem", "wmdp_cyber", "wmdp")],
        "of the bundle": ["lm_eval/colours/acc", "lm_eval/colours/acc_norm"],
    }
    for name in names:
        assert results[name]["is_repeatable"], name
        assert results[name]["draws_nothing"], name
        assert "eval_runtime" in results[name]["others"], name
    group = results["group"]["metrics"]
    sizes = {"lm_eval/wmdp_bio/acc": 1, "lm_eval/wmdp_chem/acc": 2, "lm_eval/wmdp_cyber/acc": 3}
    assert group["lm_eval/wmdp/acc"] == pytest.approx(sum(group[name] * size for name, size in sizes.items()) / 6)
    errors = {name: result["message"] for name, result in results.items() if "error" in result}
    assert "paths must be an object with the files of each task" in errors["group with one list"]
    assert "no files for these tasks of wmdp: wmdp_chem, wmdp_cyber" in errors["part of a group"]
    assert "shows 5 examples before each question, but has no examples" in errors["without its examples"]
    assert "'choices' is undefined" in errors["wrong rows"]
    assert "could run code" in errors["runs code"]
    assert "its YAML files are: tasks/colours.yaml" in errors["not in the bundle"]
    assert "the bundle has no ../data/mine.jsonl" in errors["outside of the bundle"]

    together = {**environment, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    two = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(tmp_path)], env={**together, "RANK": rank, "LOCAL_RANK": rank}
        )
        for rank in ("0", "1")
    ]
    assert [process.wait() for process in two] == [0, 0]

    first, second = (json.loads((tmp_path / f"results-{rank}.json").read_text()) for rank in range(2))
    assert first.pop("stopped")
    assert second.pop("stopped"), "rank 1 stopped, although rank 0 did not read the stop request"
    for name in first:
        alone = results[name]
        assert first[name]["metrics"] == second[name]["metrics"] == alone["metrics"], name
        assert first[name]["texts"] + second[name]["texts"] == alone["texts"], name
    assert first["group"]["texts"] < results["group"]["texts"]
