"""Opens the parent folders of a test's folders for a program that does not run as root.

    words = open_ways(tmp_path)             the words to put before a command
    OpenProcesses(tmp_path).start("-m", "worker", …)

Python may be below /root, and only root may enter pytest's folders. So the program gets its own mounts. A closed parent
folder is hidden by an open folder, which has only the path to the needed folder. The real folders do not change.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

NEWNS, BIND, REC, PRIVATE, DETACH = 0x20000, 0x1000, 0x4000, 0x40000, 2
_libc = ctypes.CDLL(None, use_errno=True)


def open_ways(*folders: Path) -> list[str]:
    repository = Path(__file__).resolve().parents[2]
    needed = {str(path) for path in (Path(sys.base_prefix), Path(sys.prefix), repository, *folders)}
    return [sys.executable, __file__, json.dumps(sorted(needed))]


def main() -> None:
    needed, *command = sys.argv[1:]
    open_for([Path(path) for path in json.loads(needed)])
    os.execvp(command[0], command)


def open_for(paths: list[Path]) -> None:
    """Gives this process its own mounts, in which every user may enter the parents of these folders."""
    _checked(_libc.unshare(NEWNS))
    _mount("none", "/", PRIVATE | REC)
    for closed in _topmost(_closed_on_the_way(paths)):
        _open(closed, [path for path in paths if path.is_relative_to(closed)])


def _closed_on_the_way(paths: Iterable[Path]) -> set[Path]:
    return {folder for path in paths for folder in path.parents if not folder.stat().st_mode & 1}


def _topmost(closed: set[Path]) -> list[Path]:
    return [folder for folder in closed if not closed & set(folder.parents)]


def _open(closed: Path, needed: list[Path]) -> None:
    folder = tempfile.mkdtemp(dir="/tmp")
    _mount(str(closed), folder, BIND | REC)
    _mount("none", str(closed), 0, kind="tmpfs", options="mode=755")
    for path in sorted(needed):
        path.mkdir(parents=True, exist_ok=True)
        _mount(str(Path(folder) / path.relative_to(closed)), str(path), BIND | REC)
    _checked(_libc.umount2(folder.encode(), DETACH))
    os.rmdir(folder)


def _mount(source: str, target: str, flags: int, kind: str = "none", options: str = "") -> None:
    _checked(_libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode()))


def _checked(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


if __name__ == "__main__":
    main()
else:
    from tests.support.processes import REPOSITORY, Process, Processes

    class OpenProcesses(Processes):
        """Starts programs in which the user of training may enter the folders of Python and of the test."""

        def __init__(self, folder: Path) -> None:
            super().__init__(folder)
            folder.chmod(0o755)

        def start(
            self,
            *argv: str,
            name: str | None = None,
            env: Mapping[str, str | Path | int | float] | None = None,
            cwd: Path = REPOSITORY,
        ) -> Process:
            words = [sys.executable, *argv] if argv[0].startswith("-") else list(argv)
            name = name or "-".join(word for word in words[1:3] if not word.startswith(("-", "/")))
            return super().start(*open_ways(self.folder), *words, name=name, env=env, cwd=cwd)
