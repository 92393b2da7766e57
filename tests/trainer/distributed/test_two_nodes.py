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

from footplate.trainer import checkpoint as files
from tests.support.apart import require_apart, without
from tests.trainer.distributed import scenarios
from tests.trainer.distributed.asked import STRATEGIES
from tests.trainer.distributed.launch import SECONDS, read

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
            others = [item for item in folders if item != folder]
            command = ["ip", "netns", "exec", name, *without(*others), *launcher]
            running.append(subprocess.Popen(command, stdout=output, stderr=output, env=environment))
    try:
        for running_job in running:
            running_job.wait(SECONDS)
    finally:
        for running_job in running:
            running_job.terminate()
            running_job.wait(40)


@pytest.mark.matrix
def test_two_nodes_without_a_shared_disk_train_save_and_resume_as_one(nodes: list[str], tmp_path: Path) -> None:
    """All scenarios share one start, because a start of four processes with torch costs twelve seconds of CPU."""
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    single_run = scenarios.trained(tmp_path, name="one", text=True)
    whole_models = [
        {"run": "resumed", "name": "kept-by-one", "at": 5, "text": True},
        {"run": "resumed", "name": "kept-by-each", "at": 5, "text": True, "save_on_each_node": True},
    ]
    models_in_pieces = [
        {"run": run, "name": f"{strategy} {run}", "text": True, **more, **STRATEGIES[strategy]}
        for strategy in ("fsdp 2", "fsdp 2 in pieces")
        for run, more in (("resumed", {"at": 5}), ("best", {}))
    ]
    asked = whole_models + models_in_pieces

    across(nodes, folders, asked)

    for rank, folder in enumerate(folders):
        result = {str(scenario["name"]): _found(folder, number, rank) for number, scenario in enumerate(asked)}
        for scenario in asked:
            name = str(scenario["name"])
            if scenario["run"] == "resumed":
                came = result[name]
                scenarios.assert_same_run(came["whole"], single_run)
                assert came["first"]["losses"] + came["rest"]["losses"] == came["whole"]["losses"]
                assert came["rest"]["weights"] == came["whole"]["weights"]
            else:
                # The first node's checkpoints have the pieces of both nodes, and are handed on.
                assert result[name]["again"] == pytest.approx(result[name]["evaluations"][0], abs=1e-6)
                assert result[name]["kept"] == (["checkpoint-2", "checkpoint-4"] if rank == 0 else [])
        for scenario in whole_models:
            kept = (folder / str(scenario["name"]) / "checkpoint-5").is_dir()
            assert kept == (rank == 0 or bool(scenario.get("save_on_each_node")))
        assert [path.name for path in folder.glob("fsdp*/.tmp*")] == []
    for scenario in models_in_pieces[::2]:
        files.verify(folders[0] / str(scenario["name"]) / "checkpoint-5")


def _found(folder: Path, number: int, rank: int) -> dict[str, Any]:
    result = read(folder, number, 2)[rank]
    assert result is not None, (folder / "output").read_text()[-4000:]
    assert "error" not in result, result.get("trace")
    return result  # type: ignore[no-any-return]
