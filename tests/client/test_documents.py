"""Checks that the commands in the README and in two pages of the docs work when pasted."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.client.conftest import Command
from tests.support.pages import snippets
from tests.support.processes import REPOSITORY


def run(command: Command, *words: str) -> str:
    result = subprocess.run(
        words, cwd=command.folder, env=command.env, capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_every_snippet_of_the_page_about_the_client_runs(command: Command) -> None:
    # pandas and matplotlib are installed in a folder that is not on the environment's import path.
    libraries = "import sys; sys.path.append(sys.prefix + '/libraries')\n"
    output = run(command, sys.executable, "-c", libraries + "\n".join(snippets("reference/sdk.md", "python")))

    assert "/training/learning_rat did you mean 'learning_rate'?" in output
    assert "['queued', 'starting', 'running', 'succeeded']" in output
    assert "out/model.safetensors" in output


def test_every_snippet_of_the_page_about_the_command_runs(command: Command) -> None:
    output = run(command, "bash", "-euo", "pipefail", "-c", "\n".join(snippets("reference/cli.md")))

    assert "valid: " in output
    assert "succeeded (completed)" in output
    assert (command.folder / "loss.csv").read_text().startswith("no,step,epoch,loss\n")
    assert (command.folder / "out/model.safetensors").exists()


def test_the_shell_and_python_examples_of_the_readme_run(command: Command) -> None:
    section = (
        (REPOSITORY / "README.md").read_text().partition("## From a shell, and from Python")[2].partition("\n## ")[0]
    )
    shell, script = re.search(r"```sh\n(.*?)```.*?```python\n(.*?)```", section, re.DOTALL).groups()  # type: ignore[union-attr]

    watch_output = run(command, "bash", "-euo", "pipefail", "-c", shell)
    assert "succeeded" in watch_output
    assert re.search(r"^step 100 +loss ", watch_output, re.MULTILINE), "`watch` must show the loss"
    assert re.search(r"^loss .*▁", watch_output, re.MULTILINE), "`metrics` must draw the curve of the loss"
    script_output = run(command, sys.executable, "-c", script)
    assert "100 log {'loss':" in script_output
    assert "model.safetensors" in script_output


def test_the_page_about_the_command_names_every_subcommand(command: Command) -> None:
    page = (REPOSITORY / "docs/reference/cli.md").read_text()
    verbs = re.findall(r"^    (\w+)(?:  |$)", command.good("--help"), re.MULTILINE)

    assert len(verbs) > 15
    assert [
        verb for verb in verbs if verb != "up" and f"footplate {verb}" not in page and f"`{verb}`" not in page
    ] == []
