"""What a test changes inside the processes that it starts: a protection switched off, or a death at a named moment.

A folder on PYTHONPATH, with a `sitecustomize.py` that arms this module: Python imports it first in every process, the
warm parent's clean environment included. Production code knows nothing of it.

    system = System(processes, redis, url, without=["grant guard"])
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]


def write(folder: Path, *, without: Iterable[str] = (), die_at: str | None = None, times: int = 1) -> str:
    """Arms whatever Python starts with the returned PYTHONPATH.

    `die_at` is a Moment: the first `times` processes to reach it die there by SIGKILL, one each.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = list(without)
    (folder / "sitecustomize.py").write_text(
        f"import sys\nsys.path.append({str(REPOSITORY)!r})\n"
        f"from tests.support import preload\npreload.arm({str(folder)!r}, {names!r}, {die_at!r}, {times!r})\n"
    )
    return f"{folder}{os.pathsep}{REPOSITORY}"


def deaths(folder: Path) -> list[int]:
    """The pids that died at the moment so far."""
    return [int(found.read_text()) for found in sorted(folder.glob("death-*"))]


def arm(folder: str, without: Sequence[str], die_at: str | None, times: int) -> None:
    if without:
        from tests.faults.off import SWITCHES

        by_module: dict[str, list[Callable[[ModuleType], None]]] = {}
        for name in without:
            by_module.setdefault(SWITCHES[name].module, []).append(SWITCHES[name].turn_off)
        sys.meta_path.insert(0, _AfterImport(by_module))
    if die_at is not None:
        sys.addaudithook(_Death(Path(folder), die_at, times))


class _Death:
    def __init__(self, folder: Path, moment: str, times: int) -> None:
        self.folder, self.moment, self.times = folder, moment, times

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "footplate.reached" and arguments[0] == self.moment:
            for number in range(self.times):
                try:
                    file = os.open(self.folder / f"death-{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
                except FileExistsError:
                    continue
                os.write(file, str(os.getpid()).encode())
                os.kill(os.getpid(), signal.SIGKILL)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Changes a module as soon as it has been imported, and imports none by itself."""

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
