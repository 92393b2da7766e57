"""Changes the processes that a test starts from the inside.

A protection is switched off, a process dies at a named moment, or a wall clock jumps.

A folder on PYTHONPATH has a `sitecustomize.py` that arms this module. Python imports that file first in every process,
even in the warm parent with its clean environment. Production code does not contain any of this.

    system = System(processes, redis, url, without=["grant guard"])
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
SITECUSTOMIZE, ALSO_AFTER_IMPORTS = "sitecustomize.py", "# Also after imports.\n"
"""The first line of a sitecustomize.py that also works in a fork of a template (template.py)."""
ORDER = "order"


def write(folder: Path, *, without: Iterable[str] = (), mortal: bool = False, jumpy: bool = False) -> str:
    """Arms all Python processes that start with the returned PYTHONPATH.

    A `mortal` process dies at the moments of `die_at`, and a `jumpy` process reads the clock that `jump` sets.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = list(without)
    mark = "" if names or jumpy else ALSO_AFTER_IMPORTS
    (folder / SITECUSTOMIZE).write_text(
        f"{mark}import sys\nsys.path.append({str(REPOSITORY)!r})\n"
        f"from tests.support import preload\npreload.arm({str(folder)!r}, {names!r}, {mortal!r}, {jumpy!r})\n"
    )
    return f"{folder}{os.pathsep}{REPOSITORY}"


def die_at(folder: Path, moments: Mapping[str, int]) -> None:
    """Kills the first mortal process that has reached a Moment as often as `moments` says. Each Moment kills once."""
    for old in folder.glob("death-*"):
        old.unlink()
    fresh = folder / "order.new"
    # The time makes two equal orders different, because a process starts to count again after each new order.
    fresh.write_text(json.dumps({**moments, "at": time.monotonic_ns()}))
    fresh.replace(folder / ORDER)


def jump(folder: Path, who: str, seconds: float) -> None:
    """Moves the wall clocks of `service` or `worker` ahead by these seconds. Monotonic clocks do not change."""
    fresh = folder / f"clock-{who}.new"
    fresh.write_text(str(seconds))
    fresh.replace(folder / f"clock-{who}")


def deaths(folder: Path) -> dict[str, int]:
    """Returns the moments at which a process has died, in order, each with the pid of the process."""
    names = sorted(folder.glob("death-*"), key=lambda path: path.stat().st_mtime_ns)
    return {path.name.removeprefix("death-"): int(path.read_text()) for path in names}


def arm(folder: str, without: Sequence[str], mortal: bool, jumpy: bool) -> None:
    by_module: dict[str, list[Callable[[ModuleType], None]]] = {}
    if without:
        from tests.faults.off import SWITCHES

        for name in without:
            by_module.setdefault(SWITCHES[name].module, []).append(SWITCHES[name].turn_off)
    if jumpy:
        by_module.setdefault("footplate.contract.events", []).append(_Clock(Path(folder)).start())
    if by_module:
        sys.meta_path.insert(0, _AfterImport(by_module))
    if mortal:
        sys.addaudithook(_Death(Path(folder)))


class _Death:
    """Reads the order at every reached moment, so that a test can change it while the processes run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.order = ""
        self.left: dict[str, int] = {}

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "footplate.reached":
            return
        try:
            order = (self.folder / ORDER).read_text()
        except FileNotFoundError:
            return
        if order != self.order:
            self.order, self.left = order, json.loads(order)
        moment = str(arguments[0])
        if moment in self.left:
            self.left[moment] -= 1
            if self.left[moment] <= 0:
                self.die_unless_another_did(self.folder / f"death-{moment}")

    def die_unless_another_did(self, stone: Path) -> None:
        mine = stone.with_name(f"dying-{threading.get_native_id()}")
        mine.write_text(str(os.getpid()))
        with suppress(FileExistsError):
            os.link(mine, stone)
            os.kill(os.getpid(), signal.SIGKILL)


class _Clock:
    """Replaces the wall clock of this process: `time.time`, `time.time_ns`, and the clock of event times."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / f"clock-{'service' if 'service' in sys.orig_argv else 'worker'}"

    def start(self) -> Callable[[ModuleType], None]:
        now, now_ns = time.time, time.time_ns
        time.time = lambda: now() + self.ahead()
        time.time_ns = lambda: now_ns() + int(self.ahead() * 1e9)
        return self.stamp

    def ahead(self) -> float:
        try:
            return float(self.file.read_text())
        except FileNotFoundError:
            return 0.0

    def stamp(self, events: ModuleType) -> None:
        from datetime import UTC, datetime, timedelta

        events.now_text = lambda: events.to_text(datetime.now(UTC) + timedelta(seconds=self.ahead()))  # type: ignore[attr-defined]


class _AfterImport(importlib.abc.MetaPathFinder):
    """Changes a module as soon as it has been imported, without importing any module itself."""

    def __init__(self, by_module: dict[str, list[Callable[[ModuleType], None]]]) -> None:
        self.by_module = by_module

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if (changes := self.by_module.pop(name, None)) is None:
            return None
        spec = importlib.util.find_spec(name)
        assert spec is not None, name
        assert spec.loader is not None, name
        spec.loader = _Loader(spec.loader, changes)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, real: Any, changes: Sequence[Callable[[ModuleType], None]]) -> None:
        self.real, self.changes = real, changes

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.real.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        self.real.exec_module(module)
        for change in self.changes:
            change(module)
