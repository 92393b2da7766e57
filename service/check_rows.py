"""Reads one uploaded file in a process of its own, and prints a report of its rows as JSON.

    python -I -m service.check_rows PATH KIND [TOKENIZER_JSON]

A file may be hostile, so the process limits its own memory and time. If it is killed, the service is not affected.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

from footplate.contract.row_report import RowReport

SECONDS = 10.0
"""The time after which no further rows are read. The report then says how many rows were checked."""
CPU_SECONDS = 20
MEMORY_BYTES = 2 << 30
NICENESS = 10
BATCH_ROWS = 1000


def main(path: str, kind: str, tokenizer: str = "") -> None:
    limit_process(CPU_SECONDS)
    report = RowReport(count_tokens=_counter(tokenizer), deadline=time.monotonic() + SECONDS)
    try:
        if kind == "parquet":
            _read_parquet(Path(path), report)
        else:
            report.read(Path(path), kind)
    except MemoryError:
        report.stop(f"the check ended, because the file needs more than {MEMORY_BYTES >> 30} GiB of memory")
    json.dump(report.as_json(), sys.stdout)


def limit_process(cpu_seconds: int) -> None:
    """Limits this process's memory and CPU time, so that a hostile file cannot take all of them."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)


def _counter(tokenizer: str) -> Any:
    """Returns a function that counts the tokens of a text. Special tokens count, as they do in training."""
    if not tokenizer:
        return None
    from tokenizers import Tokenizer

    encode = Tokenizer.from_file(tokenizer).encode
    return lambda text: len(encode(text).ids)


def _read_parquet(path: Path, report: RowReport) -> None:
    """Adds the rows of a Parquet file to the report, batch by batch."""
    # pyarrow reads this variable at its import. Its other allocators reserve more address space than the limit allows.
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        report.stop(
            "the rows of Parquet files are not checked, because the service has no pyarrow: pip install pyarrow"
        )
        return
    try:
        file = pyarrow.parquet.ParquetFile(path)
        for batch in file.iter_batches(batch_size=BATCH_ROWS, use_threads=False):
            for row in batch.to_pylist():
                report.add(report.rows + 1, row)
            if report.stop_if_late():
                return
    except (OSError, pyarrow.ArrowException) as error:
        report.bad(report.rows + 1, f"the file cannot be read from here on: {str(error)[:200]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
