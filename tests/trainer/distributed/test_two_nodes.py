"""Two network namespaces as two nodes: other addresses, no loopback between them, and folders that only one sees."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.apart import require_apart, without
from tests.trainer.distributed import scenarios
from tests.trainer.distributed.asked import STRATEGIES
from tests.trainer.distributed.launch import SECONDS, read
from worker.trainer import checkpoint as files

ADDRESSES = ("10.213.77.1", "10.213.77.2")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def nodes() -> Iterator[list[str]]:
    """The names of two namespaces with a cable between them."""
    require_apart()
    if shutil.which("ip") is None:
        pytest.skip("two nodes are two network namespaces, and there is no program `ip` here")
    names = [f"fp{os.getpid() % 100_000}{side}" for side in "ab"]
    try:
        try:
            for name in names:
                ip("netns", "add", name)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"two nodes are two network namespaces, which cannot be made here: {error.stderr.strip()}")
        ip("link", "add", f"v{names[0]}", "netns", names[0], "type", "veth", "peer", "name", f"v{names[1]}",
           "netns", names[1])  # fmt: skip
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", f"v{name}")
            ip("-n", name, "link", "set", f"v{name}", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            with suppress(subprocess.CalledProcessError):
                ip("netns", "del", name)


def across(nodes: list[str], folders: list[Path], asked: list[dict[str, Any]]) -> None:
    """One process on each node, each with a folder of its own."""
    running = []
    for rank, (name, folder) in enumerate(zip(nodes, folders, strict=True)):
        (folder / "scenarios.json").write_text(json.dumps(asked), encoding="utf-8")
        launcher = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={rank}", "--nproc-per-node=1",
            f"--master-addr={ADDRESSES[0]}", "--master-port=29571", "-m", "tests.trainer.distributed.job",
            str(folder / "scenarios.json"), str(folder),
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": f"v{name}"}
        with (folder / "output").open("w") as output:
            others = [each for each in folders if each != folder]
            command = ["ip", "netns", "exec", name, *without(*others), *launcher]
            running.append(subprocess.Popen(command, stdout=output, stderr=output, env=environment))
    try:
        for each in running:
            each.wait(SECONDS)
    finally:
        for each in running:
            each.terminate()
            each.wait(40)


def test_two_nodes_without_a_shared_disk_train_save_and_resume_as_one(nodes: list[str], tmp_path: Path) -> None:
    """Each node keeps the checkpoints; where only the first has them, it hands them on."""
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    one = scenarios.trained(tmp_path, name="one", text=True)
    asked = [
        {"run": "resumed", "name": "kept-by-one", "at": 5, "text": True},
        {"run": "resumed", "name": "kept-by-each", "at": 5, "text": True, "save_on_each_node": True},
    ]

    across(nodes, folders, asked)

    for number, scenario in enumerate(asked):
        for rank, folder in enumerate(folders):
            found = _found(folder, number, rank)
            scenarios.assert_same_run(found["whole"], one)
            assert found["first"]["losses"] + found["rest"]["losses"] == found["whole"]["losses"]
            assert found["rest"]["weights"] == found["whole"]["weights"]
            kept = (folder / str(scenario["name"]) / "checkpoint-5").is_dir()
            assert kept == (rank == 0 or bool(scenario.get("save_on_each_node")))


@pytest.mark.parametrize("strategy", ["fsdp 2", "fsdp 2 in pieces"])
def test_a_model_in_pieces_needs_no_shared_disk(nodes: list[str], tmp_path: Path, strategy: str) -> None:
    """The first node's checkpoint has the pieces of both; a resume, and the best model in the end, are handed on."""
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    one = scenarios.trained(tmp_path, name="one", text=True)
    values = {"text": True, **STRATEGIES[strategy]}
    asked = [{"run": "resumed", "name": "again", "at": 5, **values}, {"run": "best", "name": "best", **values}]

    across(nodes, folders, asked)

    for rank, folder in enumerate(folders):
        resumed, best = (_found(folder, number, rank) for number in (0, 1))
        scenarios.assert_same_run(resumed["whole"], one)
        assert resumed["first"]["losses"] + resumed["rest"]["losses"] == resumed["whole"]["losses"]
        assert resumed["rest"]["weights"] == resumed["whole"]["weights"]
        assert best["again"] == pytest.approx(best["evaluations"][0], abs=1e-6)
        kept = ["checkpoint-2", "checkpoint-4"] if rank == 0 else []
        assert best["kept"] == kept
        assert [path.name for path in folder.glob("*/.tmp*")] == []
    files.verify(folders[0] / "again" / "checkpoint-5")


def _found(folder: Path, number: int, rank: int) -> dict[str, Any]:
    found = read(folder, number, 2)[rank]
    assert found is not None, (folder / "output").read_text()[-4000:]
    assert "error" not in found, found.get("trace")
    return found  # type: ignore[no-any-return]
