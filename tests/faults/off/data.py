"""Switches of the protections around data."""

from __future__ import annotations

from typing import Any

from tests.faults.off import switch


@switch("changed rows are not trained on", module="footplate.runtime.run")
def take_what_is_there(run: Any) -> None:
    run.require_same = lambda before, now: None  # type: ignore[attr-defined]


@switch("a row that cannot be read names its file", module="footplate.components.lines")
def let_the_row_fail(lines: Any) -> None:
    """Reports errors of the file system or the parser as errors of the user's own code."""
    import os

    def read(self: Any, index: int) -> Any:
        path, start, end = self._locate(index)
        with path.open("rb", buffering=0) as file:
            return self._row(os.pread(file.fileno(), end - start, start), path)

    lines.Lines.__getitem__ = read
