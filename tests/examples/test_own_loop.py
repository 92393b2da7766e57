"""Tests that a user's own loop can be paused, killed and continued, and that a script runs unchanged."""

from __future__ import annotations

import json

import pytest

from tests.examples.conftest import Examples
from tests.support.system import assert_whole

QUICK = {"use": "my_code:main", "args": {"epochs": 12}}
SLOW = {"use": "my_code:main", "args": {"epochs": 12, "pause": 0.15}}
"""The same loop, slow enough that it still runs when the test kills and pauses it."""


def test_an_own_loop_that_is_killed_and_paused_ends_as_if_undisturbed(examples: Examples) -> None:
    system = examples.system
    quiet, job = (system.submit(examples.with_code("own-loop/job.json", loop=loop)) for loop in (QUICK, SLOW))
    system.until_checkpoint(job, 2)
    system.kill_training(job)
    system.until(lambda: system.job(job)["attempt"] == 2, within=60, what="the second attempt starts", job=job)
    system.until_step(job, 5)
    assert system.do(job, "pause").status_code == 202
    paused = system.until_state(job, "paused", "succeeded")
    system.do(job, "resume")
    outcome = examples.ended(job)

    assert paused["state"] == "paused", paused
    assert outcome["state"] == examples.ended(quiet)["state"] == "succeeded", outcome
    assert system.losses(job) == system.losses(quiet)
    assert sorted(system.losses(job)) == list(range(1, 13))
    assert outcome["result"]["returned"]["last_loss"] == system.losses(job)[12]
    assert outcome["metrics"]["eval_loss"] < 0.5
    assert outcome["progress"]["step"] == 12
    assert {"model.pt", "spec.json", "metrics.json"} <= examples.outputs(job).keys()
    assert {row["status"] for row in system.get(f"/jobs/{job}/checkpoints")["data"]} >= {"committed"}
    assert_whole(system.events(job))


def test_a_script_runs_unchanged_and_continues_by_its_own_code(examples: Examples) -> None:
    script = {"script": "train.py", "argv": ["--steps", "30", "--fail-at", "25"]}
    spec = examples.with_code("own-loop/script.json", loop=script)
    job = examples.system.submit({**spec, "retry": {"on": ["crashed"]}})
    outcome = examples.ended(job)

    assert (outcome["state"], outcome["attempt"]) == ("succeeded", 2), outcome["error"]
    lines = [str(event["data"]) for event in examples.system.events(job) if event["kind"] == "line"]
    assert any("continues at step 20" in line for line in lines)
    assert any("done" in line for line in lines)


def test_a_script_with_a_wrong_option_fails_once_with_its_usage_line(examples: Examples) -> None:
    loop = {"script": "train.py", "argv": ["--stepz", "30"]}

    job = examples.ended(examples.system.submit(examples.with_code("own-loop/script.json", loop=loop)))

    assert (job["state"], job["reason"], job["attempt"], job["error"]["code"]) == ("failed", "error", 1, "exited")
    assert "usage: train.py" in job["error"]["message"]
    assert "unrecognized arguments: --stepz 30" in job["error"]["message"]


AS_IT_IS = {
    "ds_config.json": '{"zero_optimization": {"stage": 2}}',
    "my_metric/my_metric.py": "def compute(): return 0.5",
    "my_metric/names.txt": "accuracy",
    "tool.py": "from pathlib import Path\nHERE = Path(__file__).parent",
    "train.py": """
import json, logging, runpy, sys
from pathlib import Path
import tool
logging.basicConfig(filename="log.txt", format="%(message)s")
logging.warning("logged")
still_open = open("open.txt", "w")
still_open.write("written")
stage = json.load(open("ds_config.json"))["zero_optimization"]["stage"]
metric = runpy.run_path("./my_metric/my_metric.py")["compute"]()
beside = [Path(sys.argv[0]).parent, Path(__file__).parent, tool.HERE]
names = [(folder / "my_metric" / "names.txt").read_text() for folder in beside]
with open("ds_config.json", "a") as config:
    config.write(" ")
lines = open("ds_config.json").read().count(" ") - 2
(Path(__file__).parent / "results").mkdir(exist_ok=True)
Path("results/told.json").write_text(json.dumps([stage, metric, names, lines]))
Path("metrics.json").write_text("mine")
sys.exit(3 if lines == 1 else 0)
""",
}


def test_a_script_runs_in_a_copy_of_its_bundle_and_its_files_can_be_downloaded(
    examples: Examples,
) -> None:
    spec = {"loop": {"script": "train.py"}, "code": {"bundle": examples.system.upload(AS_IT_IS)}}
    job = examples.system.submit({**spec, "retry": {"on": ["crashed"]}})
    outcome = examples.ended(job)

    assert (outcome["state"], outcome["attempt"]) == ("succeeded", 2), outcome["error"]
    outputs = examples.outputs(job)
    assert outputs.keys() == {"told.json", "metrics.json", "ds_config.json", "spec.json", "log.txt", "open.txt"}
    assert (outputs["log.txt"], outputs["open.txt"]) == (b"logged\n" * 2, b"written")
    assert json.loads(outputs["told.json"]) == [2, 0.5, ["accuracy"] * 3, 2], "attempt 2 found attempt 1's files"
    assert outputs["metrics.json"] == b"mine"


PLAIN = """
import signal, sys, time
from pathlib import Path
import torch

place = Path("state.pt")
state = torch.load(place) if place.exists() else {"step": 0}
print("begins at step", state["step"], flush=True)
last = 10_000 if state["step"] == 0 else state["step"] + 3

def save_and_end(*_):
    torch.save(state, place)
    sys.exit(143)

HANDLER
for state["step"] in range(state["step"] + 1, last):
    print("step", state["step"], flush=True)
    time.sleep(0.01)
torch.save(state, "model.pt")
"""


@pytest.mark.matrix
@pytest.mark.parametrize("handler", ["signal.signal(signal.SIGTERM, save_and_end)", "torch.save({'step': 1}, place)"])
def test_a_script_with_neither_a_trainer_nor_accelerate_is_paused_by_sigterm(examples: Examples, handler: str) -> None:
    """The first script saves when it gets SIGTERM. The second one has no handler, so it saves at its start."""
    system = examples.system
    script = PLAIN.replace("HANDLER", handler)
    job = system.submit({"loop": {"script": "train.py"}, "code": {"bundle": system.upload({"train.py": script})}})

    def lines() -> list[str]:
        return [str(event["data"]) for event in system.events(job) if event["kind"] == "line"]

    system.until(lambda: any("step 3" in line for line in lines()), within=60, what="the script trains", job=job)

    assert system.do(job, "pause").status_code == 202
    paused = system.until_state(job, "paused", "succeeded", "failed", within=60)
    system.do(job, "resume")
    outcome = examples.ended(job)

    ends = (paused["state"], outcome["state"], outcome["attempt"])
    assert ends == ("paused", "succeeded", 2), (paused["error"], outcome["error"], lines()[-5:])
    begun = [line for line in lines() if "begins at step" in line]
    assert "begins at step 0" in begun[0]
    assert "begins at step 0" not in begun[1], "the second attempt found the state that the first one saved"
    assert "model.pt" in examples.outputs(job)
    assert outcome["result"]["steps"] == 0, "only a Trainer or Accelerate reports steps"


def test_a_script_of_transformers_is_killed_and_paused_and_ends_as_if_undisturbed(examples: Examples) -> None:
    system = examples.system
    quick = {"script": "train.py", "argv": ["--steps", "12"]}
    slow = {"script": "train.py", "argv": ["--steps", "12", "--seconds-per-step", "0.3"]}
    quiet, job = (system.submit(examples.with_code("trainer-script/job.json", loop=loop)) for loop in (quick, slow))
    system.until_checkpoint(job, 2, within=60)
    system.kill_training(job)
    system.until(lambda: system.job(job)["attempt"] == 2, within=60, what="the second attempt starts", job=job)
    system.until_step(job, 5, within=60)
    assert system.do(job, "do", {"save": True}).status_code == 202
    assert system.do(job, "pause").status_code == 202
    paused = system.until_state(job, "paused", "succeeded", within=60)
    system.do(job, "resume")
    outcome = examples.ended(job)

    assert paused["state"] == "paused", paused
    assert outcome["state"] == examples.ended(quiet)["state"] == "succeeded", outcome
    assert system.losses(job) == system.losses(quiet)
    assert sorted(system.losses(job)) == list(range(1, 13))
    assert outcome["metrics"]["eval_loss"] == system.job(quiet)["metrics"]["eval_loss"]
    assert (outcome["progress"]["step"], outcome["progress"]["max_steps"]) == (12, 12)
    events = system.events(job)
    assert [event["data"]["status"] for event in events if event["kind"] == "do"] == ["asked", "done"]
    assert {"model.safetensors", "config.json"} <= examples.outputs(job).keys()
    assert_whole(events)
