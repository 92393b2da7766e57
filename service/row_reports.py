"""Starts the process that checks an upload's rows (`check_rows.py`), and reads its report."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from footplate.contract.row_report import RowReport

AT_ONCE = 2
"""The most files that are checked at once by one API process."""
KILLED_AFTER_SECONDS = 15.0
WAITED_SECONDS = 20.0
"""The longest time that an upload waits for its report. Clients wait 30 seconds for the answer."""

_CHECKS = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="row-checks")


async def row_report(path: str, kind: str, tokenizer: Path | None = None) -> dict[str, Any]:
    """Returns the report of a file's rows. If the check fails or takes too long, the report says so."""
    check = asyncio.get_running_loop().run_in_executor(_CHECKS, _checked, path, kind, str(tokenizer or ""))
    try:
        return await asyncio.wait_for(check, WAITED_SECONDS)
    except TimeoutError:
        return _unchecked("other uploads were being checked; POST the same file again")


def _checked(path: str, kind: str, tokenizer: str) -> dict[str, Any]:
    command = [sys.executable, "-I", "-m", "service.check_rows", path, kind, tokenizer]
    try:
        # The check gets no environment variables, because they contain keys.
        process = subprocess.run(
            command,
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=KILLED_AFTER_SECONDS,
            check=True,
        )
        report: dict[str, Any] = json.loads(process.stdout)
    except subprocess.TimeoutExpired:
        return _unchecked(f"the check was ended after {KILLED_AFTER_SECONDS:g} s")
    except subprocess.CalledProcessError as error:
        last_line = error.stderr.decode(errors="replace").strip().rpartition("\n")[2][:200]
        return _unchecked(last_line or f"the check ended with exit status {error.returncode}")
    except (OSError, ValueError) as error:
        return _unchecked(str(error)[:200])
    return report


def _unchecked(why: str) -> dict[str, Any]:
    report = RowReport()
    report.stop(f"the rows were not checked: {why}")
    return report.as_json()
