"""Tests `footplate up`, which starts the whole system and leaves no process behind, and the commands of the README."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from redis import Redis

from footplate.local.home import Home
from footplate.local.redis import answers, redis_program, redis_socket
from footplate.local.up import welcome
from tests.local.conftest import Up
from tests.support.processes import REPOSITORY, Process, Processes, children, is_alive, processes_using, until
from tests.support.system import LEISURE

ENDLESS: dict[str, Any] = {
    "model": "toy/mlp",
    "data": {"use": "toy/regression", "args": {"n": 256, "seconds_per_item": 0.002}},
    "training": {
        "max_steps": 1_000_000, "per_device_train_batch_size": 8, "logging_steps": 5, "save_steps": 20,
        "save_total_limit": 2,
    },
}  # fmt: skip
NEXT = (REPOSITORY / "README.md").read_text().partition("## Next, paste this")[2]
COMMANDS = re.findall(r"```sh\n(.*?)```", NEXT, re.DOTALL)[0]
STREAM = (REPOSITORY / "docs/reference/stream.md").read_text()
SCRIPT = STREAM.partition("## Watch metrics from the first one on")[2].partition("```python\n")[2].partition("```")[0]
MOVING = r"first job running  step \d+/\d+"


@pytest.mark.timeout(600)
def test_up_prints_its_url_and_continues_jobs_that_ctrl_c_had_stopped(up: Up, tmp_path: Path) -> None:
    """Two starts in one home, because each costs ten seconds of CPU time. The first prints text, the second JSON."""
    launcher = up.start_with_text_output(FOOTPLATE_SLOTS="2")
    refuses_an_unknown_argument(up.ready["url"])
    another_start_names_the_holder_of_a_home_and_of_a_port(up, launcher)
    first = it_submits_one_job_and_leaves_no_zombie(up, launcher)
    the_commands_that_up_prints_start_a_job_and_pause_it(up, launcher)
    the_commands_of_the_readme_run_a_job_and_show_its_whole_history(up, tmp_path)
    job, before = submit_and_wait_for_progress(up)

    launcher.signal(signal.SIGINT)
    assert launcher.wait(within=60) == 0
    until_unused(up.home)

    second_launcher = up.start("--nodes", "2")
    the_output_has_the_url_and_the_pid(up, second_launcher)
    up.until_nodes(2)
    it_goes_on_without_doing_a_step_twice(up, job, before)
    assert [row["id"] for row in up.get("/jobs")["data"] if row["name"] == "first job"] == [first]
    assert second_launcher.terminate(within=60) == 0


def the_output_has_the_url_and_the_pid(up: Up, launcher: Process) -> None:
    *warnings, line = launcher.output.splitlines()
    # A node warns if root runs the tests, because only root may enter the parents of the test's folder.
    exposed = "training runs as root, with all rights of this node, because uid 60600 cannot run here: "
    assert all(exposed in warning for warning in warnings)
    assert bool(warnings) == (os.geteuid() == 0)
    content = json.loads(line)
    refuses_an_unknown_argument(content["url"])
    assert content["pid"] == launcher.pid
    assert content["home"] == str(up.home)
    assert all(Path(log).exists() for log in content["logs"].values())
    assert httpx2.get(content["url"] + "/", timeout=60).status_code == 200


def another_start_names_the_holder_of_a_home_and_of_a_port(up: Up, launcher: Process) -> None:
    url = up.ready["url"]
    second = up.launch()
    assert second.wait() == 1
    assert all(name in second.output for name in (str(up.home), str(launcher.pid), url))

    port = url.rpartition(":")[2]
    launcher_elsewhere = Up(up.processes, up.home.with_name("other")).launch("--port", port)
    assert launcher_elsewhere.wait(within=60) == 1, "a taken port that was asked for is an answer, and not another port"
    assert port in launcher_elsewhere.output


def it_submits_one_job_and_leaves_no_zombie(up: Up, launcher: Process) -> str:
    """Returns the first job, which is printed in plain lines. Cancels it, because it has 20,000 steps."""
    launcher.until(lambda: re.search(MOVING, launcher.output), within=180, what="the first job makes progress")
    assert "\033" not in launcher.output
    assert up.ready["url"].startswith("http://127.0.0.1:")
    first = (up.home / "first-job").read_text()
    assert f"{up.ready['url']}/#{first}\n" in launcher.output
    up.client.post(f"/jobs/{first}/cancel").raise_for_status()
    until(lambda: "Z" not in states_of_children(launcher), within=10, what="the process that submitted it is reaped")
    return first


def paste(commands: str) -> str:
    result = subprocess.run(["bash", "-ec", commands], capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def the_commands_that_up_prints_start_a_job_and_pause_it(up: Up, launcher: Process) -> None:
    first, _, third = [line.strip() for line in launcher.output.splitlines() if "curl" in line]

    job = paste(f"{first}\n{third}\necho; echo $id").split()[-1]

    assert up.until_job(job, "paused")["actions"] == ["resume", "fork", "cancel"]


def the_commands_of_the_readme_run_a_job_and_show_its_whole_history(up: Up, tmp_path: Path) -> None:
    short = up.submit({"model": "toy/mlp", "data": "toy/regression", "training": {"max_steps": 30, "logging_steps": 1}})

    output = paste(COMMANDS.replace("localhost:8080", up.ready["url"]) + "\necho; echo $id")
    assert "urn:footplate:problem" not in output
    readme_job = output.split()[-1]
    assert up.until_job(readme_job, "cancelled")["desired"] == "cancel"

    up.until_job(short, "succeeded")
    (tmp_path / "watch.py").write_text(SCRIPT)
    address = up.ready["url"].replace("http", "ws")
    watch = up.processes.start(sys.executable, str(tmp_path / "watch.py"), short, address)
    assert watch.wait(60) == 0, watch.output
    steps = [int(line.split()[1]) for line in watch.output.splitlines() if line.split()[2] != "None"]
    assert steps == list(range(1, 31))


def states_of_children(launcher: Process) -> str:
    """Waits until the process that submits the first job has ended.

    Returns the state letter of each remaining child of the launcher, as in /proc.
    """
    folder = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
    until(
        lambda: (
            not any(b"first_job" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in folder.read_text().split())
        ),
        within=60,
        what="the process that submits has ended",
    )
    stats = [Path(f"/proc/{pid}/stat").read_text() for pid in folder.read_text().split()]
    return "".join(stat.rpartition(")")[2].split()[0] for stat in stats)


def submit_and_wait_for_progress(up: Up) -> tuple[str, int]:
    """Submits a job, and returns the job and a step that it has completed."""
    job = up.submit(ENDLESS)
    step = up.processes.until(lambda: (at := step_of(up, job)) > 5 and at, within=60, what="the job is under way")
    return job, step


def step_of(up: Up, job: str) -> int:
    job_fields = up.get(f"/jobs/{job}")
    return int((job_fields["progress"] or {}).get("step", 0)) if job_fields["state"] == "running" else 0


def it_goes_on_without_doing_a_step_twice(up: Up, job: str, before: int) -> None:
    up.processes.until(lambda: step_of(up, job) > before, within=60, what="the job goes on")
    up.processes.until(lambda: has_ended_early(up, job), within=90, what="the job is over", every=LEISURE)
    assert up.get(f"/jobs/{job}")["state"] == "succeeded"
    endings = [row["ending"] for row in up.get(f"/jobs/{job}/attempts")["data"]]
    assert (endings[0], endings[-1]) == ("stopped", "finished")
    assert not {"failed", "lost"} & set(endings)
    steps = [row["step"] for row in up.get(f"/jobs/{job}/metrics?limit=10000")["data"] if "loss" in row]
    assert steps == sorted(set(steps)), "a drained job must not repeat a step"


def refuses_an_unknown_argument(url: str) -> None:
    """Sends one request without a retry, as soon as the URL is printed."""
    spec = {"model": {"use": "toy/mlp", "args": {"hiden": 8}}, "data": "toy/regression"}
    answer = httpx2.post(f"{url}/jobs", json=spec, timeout=60)
    assert answer.status_code == 422, answer.text
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/model/args/hiden"]


def test_up_prints_why_no_components_are_announced_and_ends_if_a_child_dies(up: Up, tmp_path: Path) -> None:
    (tmp_path / "accelerate.py").write_text("raise ImportError('this one is broken')")
    launcher = up.launch("--no-first-job", PYTHONPATH=f"{tmp_path}:{REPOSITORY}")

    reason = "ImportError: this one is broken"
    launcher.until(lambda: reason in launcher.output, within=120, what="the launcher prints the reason")

    os.kill(up.pid_of(launcher, "service"), signal.SIGKILL)

    assert launcher.wait(within=60) == 1
    assert "service was killed by SIGKILL" in launcher.output
    assert '"url"' not in launcher.output
    until_unused(up.home)


@pytest.mark.matrix
def test_no_process_survives_if_the_launcher_is_killed(up: Up) -> None:
    launcher = up.start("--no-first-job")
    up.submit(ENDLESS)
    up.processes.until(lambda: up.get("/jobs")["data"][0]["state"] == "running", within=60, what="the job runs")
    family = children(launcher.pid)
    assert len(family) > 3

    launcher.kill()

    until(lambda: not any(map(is_alive, family)), within=10, what="all processes that the launcher started are gone")
    until_unused(up.home)


def until_unused(home: Path) -> None:
    """Waits until no process uses the home, because all killed processes are gone."""
    until(lambda: not processes_using(home), within=3, what="no process uses the home any more")


@pytest.mark.matrix
def test_a_process_that_dies_is_restarted_at_the_same_address(up: Up) -> None:
    launcher = up.start("--no-first-job")
    for word in ("redis-server", "service", "worker"):
        dead_pid = up.pid_of(launcher, word)

        os.kill(dead_pid, signal.SIGKILL)

        until(lambda: up.pid_of(launcher, word) != dead_pid, within=30, what=f"another {word} runs")  # noqa: B023
        spec = {"model": "toy/mlp", "data": "toy/regression", "training": {"max_steps": 5}}
        job = up.processes.until(lambda: up.submit(spec), within=30, what="the service accepts a job")  # noqa: B023
        assert up.until_job(job, "succeeded", "failed")["state"] == "succeeded"


def has_ended_early(up: Up, job: str) -> bool:
    """Returns True if the job has ended. Otherwise reduces the job's `max_steps`, until training has confirmed it."""
    job_fields = up.get(f"/jobs/{job}")
    if job_fields["state"] == "running" and job_fields["progress"]["max_steps"] == ENDLESS["training"]["max_steps"]:
        up.client.post(f"/jobs/{job}/do", json={"set": {"max_steps": job_fields["progress"]["step"] + 100}})
    return job_fields["state"] in ("succeeded", "failed")


def test_a_service_that_accepts_other_machines_prints_its_host_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOOTPLATE_HOST", "0.0.0.0")

    assert f"http://{socket.gethostname()}:8080/" in welcome("http://127.0.0.1:8080", Home(tmp_path), {})


def test_redis_has_a_private_socket_and_no_port_if_the_home_has_a_long_path(
    tmp_path: Path, processes: Processes
) -> None:
    home = Home(tmp_path / ("long" * 20))
    home.run.mkdir(parents=True)

    with redis_socket(home) as path:
        processes.start(*redis_program(home, path, dict(os.environ)).argv, name="redis")
        until(lambda: answers(path), within=60, what="Redis answers")

        with Redis(unix_socket_path=str(path)) as node:
            assert node.config_get("port") == {"port": "0"}
        assert path.parent.stat().st_mode & 0o777 == 0o700
    assert not path.parent.exists()


@pytest.mark.parametrize(("proxy", "is_bypassed"), [("http://proxy:1", True), ("", False)])
def test_printed_commands_pass_by_a_proxy(
    proxy: str, is_bypassed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", proxy)

    commands = [line for line in welcome("http://127.0.0.1:8080", Home(tmp_path), {}).splitlines() if "curl" in line]

    assert [" --noproxy '*' " in command for command in commands] == [is_bypassed] * 3


def test_a_misspelt_variable_stops_the_start_before_any_file_is_made(up: Up) -> None:
    launcher = up.launch(FOOTPLATE_LEASE_SECOND="300")

    assert launcher.wait(within=60) == 2
    assert "FOOTPLATE_LEASE_SECONDS?" in launcher.output
    assert not up.home.exists()


def test_a_home_that_cannot_be_created_stops_the_start_with_one_sentence(up: Up) -> None:
    file = up.home.with_name("file")
    file.touch()

    launcher = up.launch(FOOTPLATE_HOME=str(file / "home"))

    assert launcher.wait(within=60) == 1
    assert str(file / "home") in launcher.output
    assert "FOOTPLATE_HOME" in launcher.output
    assert "Traceback" not in launcher.output
