"""Tests the warm parent, which has one thread and no secrets, and whose forks start at once."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from footplate.contract.messages import Gpu
from tests.support.processes import at_ease, children, until
from tests.worker.conftest import Lasting, NodeStarter
from tests.worker.fake_control import FakeControl
from worker.node import parent
from worker.node.parent import clean_environment

SHORT = {"training": {"max_steps": 2, "save_strategy": "no"}}


@pytest.fixture(scope="module")
def lasting(make_lasting: Callable[..., Lasting]) -> Lasting:
    return make_lasting(slots=0, gpus="GPU-a:H100:81559:9.0, GPU-b:V100:16384:7.0")


def warm_parent(lasting: Lasting) -> int:
    # The warm parent has this command line from its exec on. Training processes are its forks and have it, too.
    for pid in children(lasting.process.pid):
        # Another child may end meanwhile.
        with suppress(OSError):
            if b"footplate.runtime.warm_parent" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    raise AssertionError("there is no warm parent")


def test_a_warm_parent_has_one_thread_and_no_open_gpu_after_its_imports(lasting: Lasting) -> None:
    lasting.control.done(lasting.submit(**SHORT), within=60)
    warm = warm_parent(lasting)

    assert len(os.listdir(f"/proc/{warm}/task")) == 1
    # The warm parent may still be closing descriptors that it gave to its last child.
    links = until(
        lambda: [os.readlink(f"/proc/{warm}/fd/{fd}") for fd in os.listdir(f"/proc/{warm}/fd")],
        what="the descriptors of the warm parent can be listed",
    )
    assert not [link for link in links if "nvidia" in link]


def test_the_environment_of_a_warm_parent_holds_no_credential(lasting: Lasting) -> None:
    names = {line.partition(b"=")[0].decode() for line in
             Path(f"/proc/{warm_parent(lasting)}/environ").read_bytes().split(b"\0")}  # fmt: skip

    assert {"OPENBLAS_NUM_THREADS", "HF_HUB_DISABLE_TELEMETRY"} <= names
    assert not {name for name in names if "SECRET" in name or name.startswith("FOOTPLATE")}


def test_only_allowed_variables_are_passed_to_training() -> None:
    allowed = {"PATH": "/bin", "NCCL_DEBUG": "INFO", "LC_ALL": "C"}
    secret = {"AWS_SECRET_ACCESS_KEY": "x", "HF_TOKEN": "x", "FOOTPLATE_REDIS": "redis://:x@host", "REDIS_URL": "x"}
    passed = clean_environment(allowed | secret)
    ours = {"OPENBLAS_NUM_THREADS", "PYTHONUNBUFFERED", "HF_HUB_DISABLE_TELEMETRY"}
    assert passed.keys() == {"PATH", "NCCL_DEBUG", "LC_ALL"} | ours
    assert passed["HF_HUB_DISABLE_TELEMETRY"] == "1"


def test_a_node_announces_its_gpus_and_has_as_many_slots(lasting: Lasting) -> None:
    beat = lasting.control.nodes[lasting.node.node]
    assert beat.slots == 2
    assert beat.gpus == [
        Gpu(uuid="GPU-a", name="H100", memory_mb=81559, capability=(9, 0)),
        Gpu(uuid="GPU-b", name="V100", memory_mb=16384, capability=(7, 0)),
    ]


def test_two_jobs_at_once_see_only_their_own_gpus(lasting: Lasting) -> None:
    long = {"at": 0, "do": "print_secrets", "n": 4, "seconds": 0.2}
    jobs = {
        gpu: lasting.submit(
            model="test/linear",
            data={"use": "test/data", "args": long},
            training={"max_steps": 1, "save_strategy": "no"},
            gpus=[gpu] if gpu else [],
        )
        for gpu in ("GPU-a", "GPU-b")
    }

    for gpu, job in jobs.items():
        lasting.control.done(job)
        texts = [line["data"]["text"] for line in lasting.control.of(job, "line")]
        assert f"visible {gpu}" in texts


def test_a_job_without_a_gpu_sees_none(lasting: Lasting) -> None:
    job = lasting.submit(
        model="test/linear",
        data={"use": "test/data", "args": {"at": 0, "do": "print_secrets", "n": 4}},
        training={"max_steps": 1, "save_strategy": "no"},
    )

    lasting.control.done(job)
    assert "visible " in [line["data"]["text"] for line in lasting.control.of(job, "line")]


def test_a_forked_training_process_starts_within_milliseconds(lasting: Lasting) -> None:
    for _ in range(5):
        lasting.control.done(lasting.submit(**SHORT))

    milliseconds = [float(line.rpartition("forked in ")[2].split()[0]) for line in lasting.process.output.splitlines()
            if "forked in " in line]  # fmt: skip
    assert min(milliseconds) < at_ease(25), milliseconds


def test_a_warm_parent_that_dies_is_replaced(lasting: Lasting) -> None:
    old = warm_parent(lasting)
    os.kill(old, 9)

    what = "its warm parent, which starts training, ended with exit code -9"
    until(lambda: any(what in trouble for trouble in lasting.control.troubles), what="a heartbeat reports the end")
    until(lambda: warm_parent(lasting) != old, despite=(AssertionError, OSError), what="a new warm parent runs")
    assert lasting.control.done(lasting.submit(**SHORT), within=60)["ending"] == "finished"


def test_a_node_that_cannot_import_training_reports_it_and_takes_no_work(
    start_node: NodeStarter, control: FakeControl
) -> None:
    broken = start_node.folder / "plugin" / "accelerate.py"
    broken.write_text("raise ImportError('half an installation')\n")
    process = start_node()
    node = control.node()
    why = "ImportError: half an installation"
    process.until(lambda: why in (control.nodes[node.node].trouble or ""), what="a heartbeat reports the cause")

    job = control.submit(node, **SHORT)
    process.until(lambda: f"{job} attempt 1 is not claimed" in process.output, what="the start message is dropped")
    assert not control.granted
    assert process.output.count("Traceback") == 1

    broken.unlink()
    process.until(lambda: control.nodes[node.node].trouble is None, within=60, what="the node is ready")
    assert control.done(job, within=60)["ending"] == "finished"
    assert list(control.granted) == [(job, 1)]


def only_listens(pid: int) -> bool:
    """Returns True if the warm parent only listens, and all of its forks have ended."""
    links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    return sum(link.startswith("socket:") for link in links) == 1 and not any("pidfd" in link for link in links)


def test_a_failed_fork_is_reported_and_ends_no_other_training(lasting: Lasting) -> None:
    pid = warm_parent(lasting)
    until(
        lambda: lasting.control.nodes[lasting.node.node].catalogue_hash, within=60, what="the components are described"
    )
    until(lambda: only_listens(pid), what="the warm parent only listens")
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    # Enough descriptors for the connection and the five that are sent over it, but not for the new process.
    limit = next(n for n in range(1000) if len(set(range(n)) - used) == 6)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, limits[1]))
    try:
        outcome = lasting.control.done(lasting.submit(**SHORT), within=10)
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)

    assert (outcome["ending"], outcome["reason"]) == ("failed", "crashed")
    assert lasting.control.done(lasting.submit(**SHORT))["ending"] == "finished"
    assert warm_parent(lasting) == pid


def test_an_attempt_stopped_before_the_warm_parent_starts_it_is_not_a_crash(lasting: Lasting) -> None:
    # A node takes no work while its warm parent imports, and a stopped warm parent would never finish its imports.
    until(lambda: lasting.control.nodes[lasting.node.node].trouble is None, within=60, what="the node is ready")
    pid = warm_parent(lasting)
    os.kill(pid, signal.SIGSTOP)
    try:
        job = lasting.submit(**SHORT)
        until(lambda: (job, 1) in lasting.control.granted, what="the attempt is granted")
        until(lambda: lasting.control.granted[job, 1].claim in lasting.control.beats, what="the supervisor has started")
        lasting.control.stop(job, "cancel", mode="kill")
        outcome = lasting.control.done(job, within=10)
    finally:
        os.kill(pid, signal.SIGCONT)

    assert (outcome["ending"], outcome["reason"], outcome["error"]) == ("stopped", "cancel", None)
    assert lasting.control.done(lasting.submit(**SHORT))["ending"] == "finished"


def test_a_node_that_cannot_start_ends_instead_of_running_without_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> None:
        raise OSError("no such device")

    monkeypatch.setattr(parent, "require_own", breaks)

    with pytest.raises(SystemExit, match="OSError"):
        parent._become_node(conf=None)
