"""Checks that the commands in the README and in two pages of the docs work when pasted."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.client.conftest import Command
from tests.support.pages import snippets
from tests.support.processes import REPOSITORY


def run(command: Command, *words: str) -> str:
    done = subprocess.run(
        words, cwd=command.folder, env=command.env, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_snippet_of_the_page_about_the_client_runs(command: Command) -> None:
    # pandas and matplotlib are installed in a folder that is not on the environment's import path.
    libraries = "import sys; sys.path.append(sys.prefix + '/libraries')\n"
    said = run(command, sys.executable, "-c", libraries + "\n".join(snippets("reference/sdk.md", "python")))

    assert "/training/learning_rat did you mean 'learning_rate'?" in said
    assert "['queued', 'starting', 'running', 'succeeded']" in said
    assert "out/model.safetensors" in said


def test_every_snippet_of_the_page_about_the_command_runs(command: Command) -> None:
    said = run(command, "bash", "-euo", "pipefail", "-c", "\n".join(snippets("reference/cli.md")))

    assert "valid: " in said
    assert "succeeded (completed)" in said
    assert (command.folder / "loss.csv").read_text().startswith("no,step,epoch,loss\n")
    assert (command.folder / "out/model.safetensors").exists()


def test_the_shell_and_python_examples_of_the_readme_run(command: Command) -> None:
    section = (
        (REPOSITORY / "README.md").read_text().partition("## From a shell, and from Python")[2].partition("\n## ")[0]
    )
    shell, script = re.search(r"```sh\n(.*?)```.*?```python\n(.*?)```", section, re.DOTALL).groups()  # type: ignore[union-attr]

    watched = run(command, "bash", "-euo", "pipefail", "-c", shell)
    assert "succeeded" in watched
    assert re.search(r"^step 100 +loss ", watched, re.MULTILINE), "`watch` must show the loss"
    assert re.search(r"^loss .*▁", watched, re.MULTILINE), "`metrics` must draw the curve of the loss"
    followed = run(command, sys.executable, "-c", script)
    assert "100 log {'loss':" in followed
    assert "model.safetensors" in followed


def test_the_page_about_the_command_names_every_subcommand(command: Command) -> None:
    page = (REPOSITORY / "docs/reference/cli.md").read_text()
    verbs = re.findall(r"^    (\w+)(?:  |$)", command.good("--help"), re.MULTILINE)

    assert len(verbs) > 15
    assert [
        verb for verb in verbs if verb != "up" and f"footplate {verb}" not in page and f"`{verb}`" not in page
    ] == []
