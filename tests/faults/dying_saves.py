"""A program that kills training during a save and continues it. It imports torch once and forks every run.

    python -m tests.faults.dying_saves '{"folder": "/tmp/x", "seed": 1, "points": 12}'

A point is between two steps of the interpreter in `commit`, from its first to its last. Half of the points lie beside a
call that touches the disk. There are only some dozens of these calls among thousands, but they matter most.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

STEPS, SAVE_STEPS, DEADLY_SAVE = 28, 4, 8
"""An epoch has ten steps. Training dies in mid-epoch, and 20 steps are left to compare."""
TOUCHES_THE_DISK = {"open", "write", "fsync", "rename", "mkdir", "close", "write_record", "serialize_file"}


def main(folder: Path, seed: int, points: int) -> list[dict[str, Any]]:
    from footplate.trainer import preload

    preload()
    _train(folder / "quiet")
    quiet = _read(folder / "quiet")
    shutil.copytree(folder / "quiet" / "checkpoint-4", folder / "first" / "checkpoint-4")
    _train(_copy(folder, "counted"), watch=_Count())
    counted = json.loads((folder / "counted" / "calls.json").read_text())
    random, half = Random(seed), points // 2
    death_points = _spread(random, range(counted["all"]), points - half) + _spread(random, counted["disk"], half)
    return [_die_and_go_on(_copy(folder, f"{number}"), point, quiet) for number, point in enumerate(death_points)]


def _spread(random: Random, places: Sequence[int], count: int) -> list[int]:
    """Returns one random place from each of `count` equal parts.

    Places drawn from the whole range would usually miss the few places after the rename.
    """
    return [places[int((part + random.random()) * len(places) / count)] for part in range(count)]


def _die_and_go_on(folder: Path, point: int, quiet: dict[str, Any]) -> dict[str, Any]:
    died = _train(folder, watch=_Kill(point))
    torn = [path.name for path in sorted(folder.glob("checkpoint-*")) if not _is_intact(path)]
    saves = sorted(path.name for path in folder.iterdir())
    exit_code = _train(folder)
    again = _read(folder) if exit_code == 0 else {}
    losses = again.pop("losses", [])
    differs = [name for name in quiet if name != "losses" and quiet[name] != again.get(name)]
    if losses[-20:] != quiet["losses"][-20:] or len(losses) < 20:
        differs.append("losses")
    return {"point": point, "died": died, "left": saves, "torn": torn, "ended": exit_code, "differs": differs}


def _copy(folder: Path, name: str) -> Path:
    shutil.copytree(folder / "first", folder / name)
    return folder / name


def _train(folder: Path, watch: _Watch | None = None) -> int:
    """Trains in a child with a process group of its own. Returns its exit code, which is negative for a signal."""
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        try:
            os.setpgid(0, 0)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            _run(folder, watch)
            os._exit(0)
        finally:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
            os._exit(1)
    _, status = os.waitpid(child, 0)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status)


def _run(folder: Path, watch: _Watch | None) -> None:
    from footplate.trainer import checkpoint
    from tests.trainer.runs import run

    if watch is not None:
        checkpoint.commit = watch.around(checkpoint.commit)  # type: ignore[assignment]
    resume = folder.exists()
    outcome = run(
        folder, steps=STEPS, resume=resume, save_strategy="steps", save_steps=SAVE_STEPS, dataloader_num_workers=2
    )
    (folder / "print.json").write_text(json.dumps(dataclasses.asdict(outcome)))
    if isinstance(watch, _Count):
        (folder / "calls.json").write_text(json.dumps({"all": watch.number, "disk": watch.disk}))


def _read(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "print.json").read_text()))


def _is_intact(folder: Path) -> bool:
    """Returns True if all files of the checkpoint match its manifest, without using the tested code."""
    try:
        files = json.loads((folder / "manifest.json").read_bytes())["files"]
        return all(hashlib.sha256((folder / name).read_bytes()).hexdigest() == files[name]["sha256"] for name in files)
    except (OSError, ValueError, KeyError):
        return False


class _Watch:
    """Counts every call and return of one save."""

    def __init__(self) -> None:
        self.number = 0

    def around(self, commit: Callable[..., Any]) -> Callable[..., Any]:
        def watched(parent: Path, step: int, *rest: Any) -> Any:
            if step != DEADLY_SAVE:
                return commit(parent, step, *rest)
            sys.setprofile(self._step)
            try:
                return commit(parent, step, *rest)
            finally:
                sys.setprofile(None)

        return watched

    def _step(self, frame: FrameType, event: str, called: Any) -> None:
        self.at(event, called)
        self.number += 1

    def at(self, event: str, called: Any) -> None:
        raise NotImplementedError


class _Count(_Watch):
    def __init__(self) -> None:
        super().__init__()
        self.disk: list[int] = []

    def at(self, event: str, called: Any) -> None:
        if event.startswith("c_") and called.__name__ in TOUCHES_THE_DISK:
            self.disk.append(self.number)


class _Kill(_Watch):
    def __init__(self, point: int) -> None:
        super().__init__()
        self.point = point

    def at(self, event: str, called: Any) -> None:
        if self.number == self.point:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    print(json.dumps(main(Path(options.pop("folder")), **options)))
