"""python -m bench [--quick] [NAME …]: our figures beside their bars, in one run. Without names, all of them."""

from __future__ import annotations

import argparse
import importlib
import os
import tempfile
from datetime import date
from pathlib import Path

from bench import report

SERVER = ("post", "latency", "drain", "readers", "footprint")
RESULTS = Path(__file__).with_name("results.md")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SERVER)}")
    parser.add_argument("--quick", action="store_true", help="few and short rounds: ratios to look at, not to quote")
    parser.add_argument("--write", action="store_true", help=f"keep the table in {RESULTS.name}")
    given = parser.parse_args()
    if unknown := set(given.names) - set(SERVER):
        parser.error(f"no figures named {', '.join(sorted(unknown))}; there is: {', '.join(SERVER)}")
    rows: list[report.Row] = []
    for name in given.names or SERVER:
        with tempfile.TemporaryDirectory(prefix=f"fp-bench-{name}-") as folder:
            found = importlib.import_module(f"bench.{name}").run(Path(folder), quick=given.quick)
        print(report.table(found), flush=True)
        rows += found
    if given.write:
        cores = len(os.sched_getaffinity(0))
        RESULTS.write_text(f"# Figures of {date.today()}\n\n{cores} shared cores, no GPU.\n\n{report.table(rows)}\n")


if __name__ == "__main__":
    main()
