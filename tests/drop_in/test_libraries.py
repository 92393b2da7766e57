"""TRL, sentence-transformers and SetFit train to the same logs and weights on our Trainer as on transformers' own.

No library is patched. All cases are one test, because imports cost most of the time and several test processes would
each import everything.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import paste, snippets
from tests.support.processes import REPOSITORY

PROGRAM = Path(__file__).with_name("libraries.py")
CASES = {
    "sft", "sft lora", "sft packing", "dpo", "kto", "reward", "grpo", "rloo", "sentence-transformers", "cross-encoder",
    "setfit",
}  # fmt: skip
SPEC = " as a spec"
AS_A_SPEC = {"sft", "sft lora", "sft packing", "dpo", "kto", "reward", "sentence-transformers"}
FROM_REWARDS = {"grpo", "rloo"}
SCRIPTS = {"sft", "grpo", "rloo", "sentence-transformers", "cross-encoder", "setfit"}
"""The cases that run as scripts on our side. Those that run only as specs are compared with the same runs."""


@pytest.mark.timeout(900)
def test_libraries_train_evaluate_and_resume_as_under_transformers(tmp_path: Path) -> None:
    installed = Path(sys.prefix, "libraries")
    assert installed.is_dir(), "the libraries are not installed: run make .venv/.dev"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), str(PROGRAM.parents[2])])}

    subprocess.run([sys.executable, PROGRAM, tmp_path], env=environment, check=True, stdout=subprocess.DEVNULL)

    ours, theirs = (json.loads((tmp_path / f"{side}.json").read_text()) for side in ("ours", "theirs"))
    second_model = ours.pop("second model")
    assert second_model["code"] == "second_model"
    assert "fsdp" in second_model["message"]
    encoder = ours.pop("served encoder")
    assert max(encoder.pop("differences")) < 1e-5, "an embedding is not that of the library"
    assert encoder == {
        "tokens": 9, "refused": ["context_length_exceeded", "bad_input", "not_predictable"], "was trained": True,
    }  # fmt: skip
    specs = {case: ours.pop(case) for case in list(ours) if case.endswith(SPEC)}
    assert (ours.keys(), theirs.keys()) == (SCRIPTS, CASES)
    different = {case: pairs for case in sorted(SCRIPTS) if (pairs := differences(ours[case], theirs[case]))}
    assert different == {}
    assert {case: specs[case]["error"] for case in specs if "error" in specs[case]} == {}
    assert specs.keys() == {case + SPEC for case in AS_A_SPEC | FROM_REWARDS}
    differ = {case: pairs for case in AS_A_SPEC if (pairs := differences(specs[case + SPEC], theirs[case]))}
    assert differ == {}, "a job spec trains differently from TRL's own script"
    moved = {case for case, run in specs.items() if run["weights"] != run["resumed weights"]}
    assert moved == set(), "a resumed run ends with other weights than an uninterrupted run"


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[Any]:
    """Returns the differences between the two runs of a case, except the package of the Trainer."""
    if "error" in ours or "error" in theirs:
        return [ours.get("error"), theirs.get("error")]
    if (ours["base"], theirs["base"]) != ("footplate", "transformers"):
        return [ours["base"], theirs["base"]]
    missing = set(theirs.get("files", [])) - set(ours.get("files", []))
    names = theirs.keys() - {"base", "files"}
    return [*missing, *((name, ours[name], theirs[name]) for name in sorted(names) if ours[name] != theirs[name])]


SCRIPT = """
import sys
from transformers import Trainer
assert Trainer.__module__.startswith("footplate"), Trainer
print("train.py", *sys.argv[1:])
"""


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_the_snippets_of_the_guide_train_on_our_trainer(tmp_path: Path) -> None:
    (python,), (shell,) = snippets("guides/drop-in.md", "python"), snippets("guides/drop-in.md", "bash")
    runpy.run_path(str(REPOSITORY / "examples/language-models/prepare.py"))["prepare"](tmp_path)
    shutil.copytree(tmp_path / "models/stories", tmp_path / "my-model")
    shutil.copytree(tmp_path / "models/tiny-llama", tmp_path / "my-model", dirs_exist_ok=True)
    (tmp_path / "my-data").mkdir()
    (tmp_path / "my-data/train.jsonl").write_text('{"text": "anna remembers paris ."}\n' * 16)
    (tmp_path / "train.py").write_text(SCRIPT)
    libraries = os.pathsep.join([str(Path(sys.prefix, "libraries")), str(REPOSITORY)])
    few = shell.replace(
        "--output_dir out", "--output_dir out --max_steps 2 --report_to none --bf16 false --use_cpu true"
    )

    script_output = paste([few], tmp_path, "", PYTHONPATH=libraries)
    output = paste([f"python - <<'EOF'\n{python}\nprint(SFTTrainer.__mro__)\nEOF"], tmp_path, "", PYTHONPATH=libraries)

    assert "train.py --learning_rate 1e-4" in script_output
    assert (tmp_path / "out" / "manifest.json").exists() or list((tmp_path / "out").glob("checkpoint-*/manifest.json"))
    assert "footplate.trainer" in output
