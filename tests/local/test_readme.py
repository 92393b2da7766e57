"""Checks that the commands in the README and in the output of the launcher work when pasted."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.conftest import Up
from tests.support.processes import REPOSITORY, Process, Processes, nothing_is_left_behind

NEXT = (REPOSITORY / "README.md").read_text().partition("## Next, paste this")[2]
COMMANDS = re.findall(r"```sh\n(.*?)```", NEXT, re.DOTALL)[0]
STREAM = (REPOSITORY / "docs/reference/stream.md").read_text()
SCRIPT = STREAM.partition("## Watch metrics from the first one on")[2].partition("```python\n")[2].partition("```")[0]
MOVING = r"first job running  step \d+/\d+"


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Up, Process]]:
    """Yields a system that `footplate up` has started. Its first job is cancelled, because it has 20,000 steps."""
    folder = tmp_path_factory.mktemp("up")
    processes = Processes(folder)
    up = Up(processes, folder / "home")
    launcher = up.launch_with_text_output(FOOTPLATE_SLOTS="2")
    launcher.until(lambda: re.search(MOVING, launcher.output), within=180, what="the first job makes progress")
    # The file also has stderr, in which a node may have warned that training runs as root.
    up.ready = {"url": next(line for line in launcher.output.splitlines() if not line.startswith("footplate: "))}
    up.client.post(f"/jobs/{(up.home / 'first-job').read_text()}/cancel").raise_for_status()
    yield up, launcher
    processes.stop_all()
    nothing_is_left_behind(folder)


def paste(commands: str) -> str:
    done = subprocess.run(["bash", "-ec", commands], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_commands_of_the_readme_run_a_job_and_show_its_whole_history(
    launched: tuple[Up, Process], processes: Processes, tmp_path: Path
) -> None:
    up, _ = launched
    short = up.submit({"model": "toy/mlp", "data": "toy/regression", "training": {"max_steps": 30, "logging_steps": 1}})

    said = paste(COMMANDS.replace("localhost:8080", up.ready["url"]) + "\necho; echo $id")
    assert "urn:footplate:problem" not in said
    driven = said.split()[-1]
    assert up.until_job(driven, "cancelled")["desired"] == "cancel"

    up.until_job(short, "succeeded")
    (tmp_path / "watch.py").write_text(SCRIPT)
    watch = processes.start(sys.executable, str(tmp_path / "watch.py"), short, up.ready["url"].replace("http", "ws"))
    assert watch.wait(60) == 0, watch.output
    steps = [int(line.split()[1]) for line in watch.output.splitlines() if line.split()[2] != "None"]
    assert steps == list(range(1, 31))


def test_the_commands_that_up_prints_start_a_job_and_pause_it(launched: tuple[Up, Process]) -> None:
    up, launcher = launched
    first, _, third = [line.strip() for line in launcher.output.splitlines() if "curl" in line]

    job = paste(f"{first}\n{third}\necho; echo $id").split()[-1]

    assert up.until_job(job, "paused")["actions"] == ["resume", "fork", "cancel"]


def test_the_first_job_is_printed_in_plain_lines_without_terminal_codes(launched: tuple[Up, Process]) -> None:
    up, launcher = launched
    assert re.search(MOVING, launcher.output)
    assert "\033" not in launcher.output
    assert up.ready["url"].startswith("http://127.0.0.1:")
    job = (up.home / "first-job").read_text()
    assert f"{up.ready['url']}/#{job}\n" in launcher.output
