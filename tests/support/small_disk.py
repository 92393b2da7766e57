"""A real disk of a few megabytes, which a test may fill."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NEEDED = "leave to mount a tmpfs: run the tests as root"


class SmallDisk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self) -> None:
        """Fills the disk to its last byte."""
        with (self.folder / "filler").open("ab", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(4096))
            except OSError:
                pass

    def free(self) -> None:
        (self.folder / "filler").unlink()


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[SmallDisk | None]:
    """Mounts a small disk at `folder`. Yields None if this process may not mount."""
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "footplate-test", str(folder)]
    if subprocess.run(words, capture_output=True).returncode != 0:
        yield None
        return
    try:
        yield SmallDisk(folder)
    finally:
        # A lazy unmount waits for processes that still use the disk.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
