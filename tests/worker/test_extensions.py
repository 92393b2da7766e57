"""Tests extensions that a bundle builds: later attempts reuse them, and locks of killed builders are released."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from footplate.contract.host.bundle_files import UNPACKED_AT, Bundle, copy_to_fixed_path, unpack
from footplate.runtime import extensions
from footplate.runtime.extensions import BuildLock, BuildReporter
from tests.support.bundles import store_bundle
from tests.support.processes import until
from tests.worker.conftest import Lasting

OP = """
import importlib.util
import os
import sys
from pathlib import Path

from torch import nn
from torch.utils import cpp_extension, file_baton


class Net(nn.Module):
    def __init__(self, name, compiler, with_torchs_baton=False):
        super().__init__()
        self.net = nn.Linear(8, 4)
        if with_torchs_baton:
            spec = importlib.util.spec_from_file_location("theirs", file_baton.__file__)
            theirs = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(theirs)
            cpp_extension.FileBaton = theirs.FileBaton
        os.environ["CXX"] = compiler
        os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        source = Path(__file__).with_name("twice.cpp")
        cpp_extension.load(name=name, sources=[str(source)], is_python_module=False)

    def forward(self, x, labels):
        logits = self.net(x)
        return {"loss": (logits - labels).square().mean(), "logits": logits}
"""
FILES = {"my_op.py": OP, "twice.cpp": 'extern "C" double twice(double x) { return 2 * x; }\n'}
COMPILER = """#!/bin/sh
case "$*" in
*" -c "*)
    echo "$*" >> {folder}/compiled
    while [ ! -e {folder}/go ]; do sleep 0.05; done ;;
esac
exec g++ "$@"
"""
STALL = "6s"


def test_building_an_extension_is_not_a_stall_and_happens_once(
    make_lasting: Callable[..., Lasting], tmp_path: Path
) -> None:
    node = make_lasting(slots=2)
    sha = store_bundle(node.start.artifacts, FILES)
    compiler = tmp_path / "slow-g++"
    compiler.write_text(COMPILER.format(folder=tmp_path))
    compiler.chmod(0o755)

    def submit(name: str, **args: Any) -> str:
        model = {"use": "my_op:Net", "args": {"name": name, "compiler": str(compiler), **args}}
        training = {"max_steps": 2, "save_strategy": "no"}
        return node.submit(model=model, code={"bundle": sha}, training=training, resources={"stall_limit": STALL})

    def compiled(name: str) -> int:
        return sum(
            f"{name}/" in line or f"={name} " in line for line in (tmp_path / "compiled").read_text().split("\n")
        )

    building = submit("ours")
    note = node.control.await_kind(building, "note")
    # The build must last until the job with the same wait, which was submitted later, counts as stalled.
    control = submit("theirs", with_torchs_baton=True)
    assert node.control.done(control, within=60)["reason"] == "stalled"
    assert "extension is being built" in note["data"]["message"]
    assert node.control.of(building, "done") == []

    (tmp_path / "go").touch()
    assert node.control.done(building, within=60)["ending"] == "finished"
    assert compiled("ours") == 1
    (lock,) = node.start.folder.glob(f"**/extensions/{sha}/*/theirs/lock")
    again, after = submit("ours"), submit("theirs")
    assert [node.control.done(job, within=60)["ending"] for job in (again, after)] == ["finished", "finished"]
    assert (compiled("ours"), compiled("theirs")) == (1, 2)
    assert not lock.exists()


@pytest.fixture
def unpacked(tmp_path: Path) -> Callable[[str], Bundle]:
    sha = store_bundle(tmp_path, FILES)
    return lambda name: unpack(sha, tmp_path, tmp_path / name)


def test_the_sources_of_each_attempt_have_the_same_path_and_time(
    unpacked: Callable[[str], Bundle], tmp_path: Path
) -> None:
    home = tmp_path / "kept"
    home.mkdir()

    first, other = copy_to_fixed_path(unpacked("a"), home), copy_to_fixed_path(unpacked("b"), home)

    assert first.folder == other.folder == home / "code"
    assert {(path.name, path.stat().st_mtime) for path in first.folder.iterdir()} == {
        (name, UNPACKED_AT) for name in FILES
    }


@pytest.mark.parametrize("change", ["write", "add", "remove", "link"])
def test_changed_sources_are_replaced_by_those_of_the_bundle(
    unpacked: Callable[[str], Bundle], tmp_path: Path, change: str
) -> None:
    home = tmp_path / "kept"
    home.mkdir()
    source = copy_to_fixed_path(unpacked("a"), home).folder / "twice.cpp"
    source.parent.chmod(0o755)
    if change == "add":
        source.with_name("more.py").write_text("")
    else:
        source.unlink()
    if change == "write":
        source.write_text("other")
    if change == "link":
        source.symlink_to("/dev/null")

    place = copy_to_fixed_path(unpacked("b"), home).folder

    assert {path.name: path.read_text() for path in place.iterdir()} == FILES
    assert not source.is_symlink()


def test_without_a_cache_folder_the_bundle_is_used_in_place(unpacked: Callable[[str], Bundle], tmp_path: Path) -> None:
    bundle = unpacked("a")
    assert copy_to_fixed_path(bundle, tmp_path / "nowhere") == bundle


def test_a_build_lock_of_a_killed_process_is_released(tmp_path: Path) -> None:
    from torch.utils.file_baton import FileBaton

    path = str(tmp_path / "lock")
    read_end, write_end = os.pipe()
    if not (child := os.fork()):
        BuildLock(path).try_acquire()
        os.write(write_end, b"x")
        signal.pause()
    assert os.read(read_end, 1) == b"x"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

    assert not FileBaton(path).try_acquire(), "torch's own lock would wait for ever"
    build_lock = BuildLock(path)
    assert build_lock.try_acquire()
    build_lock.release()
    assert not Path(path).exists()


def test_attempts_that_build_the_same_extension_wait_for_each_other(tmp_path: Path) -> None:
    path, order = str(tmp_path / "lock"), []
    first, second = BuildLock(path), BuildLock(path)
    first.try_acquire()

    def follow() -> None:
        second.try_acquire()
        order.append("second")
        second.release()

    thread = threading.Thread(target=follow)
    thread.start()
    until(lambda: "FLOCK" in waiting_locks(), within=10, what="the second lock waits")
    order.append("first")
    first.release()
    thread.join(60)

    assert order == ["first", "second"]


def waiting_locks() -> str:
    return "\n".join(line for line in Path("/proc/locks").read_text().splitlines() if "->" in line)


def test_a_build_suspends_the_stall_limit_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "BUILD_SECONDS", 0.0)
    ticks: list[None] = []
    notes: list[str] = []

    reporter = BuildReporter(lambda: ticks.append(None), notes.append, every=0.001)

    until(lambda: not reporter._thread.is_alive(), within=10, what="the reporter has sent all notes")
    assert (len(notes), ticks) == (1, [])
    reporter.end()
