"""python -m bench [--quick] [NAME …]: our figures beside their bars, in one run. Without names, all but gpu."""

from __future__ import annotations

import argparse
import importlib
import os
import tempfile
from datetime import date
from pathlib import Path

from bench import report

SERVER = ("post", "latency", "shapes", "drain", "ingest", "scale", "readers", "footprint", "away", "upload", "growth")
TRAINER = ("loop",)
ASKED_FOR = ("gpu",)
"""Only by name: without a GPU its figures say nothing."""
KNOWN = (*SERVER, *TRAINER, *ASKED_FOR)
RESULTS = Path(__file__).with_name("results.md")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(KNOWN)}")
    parser.add_argument("--quick", action="store_true", help="few and short rounds: ratios to look at, not to quote")
    parser.add_argument("--write", action="store_true", help=f"keep each table in {RESULTS.name}, in its own section")
    given = parser.parse_args()
    if unknown := set(given.names) - set(KNOWN):
        parser.error(f"no figures named {', '.join(sorted(unknown))}; there is: {', '.join(KNOWN)}")
    for name in given.names or (*SERVER, *TRAINER):
        with tempfile.TemporaryDirectory(prefix=f"fp-bench-{name}-") as folder:
            found = importlib.import_module(f"bench.{name}").run(Path(folder), quick=given.quick)
        print(report.table(found), flush=True)
        if given.write:
            kind = "quick form" if given.quick else "full form"
            cores = len(os.sched_getaffinity(0))
            gpu = "a GPU" if Path("/dev/nvidiactl").exists() else "no GPU"
            where = f"{date.today()}, {kind}, {cores} shared cores, {gpu}, load {os.getloadavg()[1]:.0f} at the end."
            RESULTS.write_text(with_section(RESULTS.read_text(), name, f"{where}\n\n{report.table(found)}"))


def with_section(page: str, name: str, body: str) -> str:
    """The page with this section's figures replaced, or added; nobody else's touched."""
    head, *sections = page.rstrip().split("\n## ")
    kept = [section for section in sections if section.partition("\n")[0] != name]
    return "\n\n## ".join([head.rstrip(), *(one.rstrip() for one in kept), f"{name}\n\n{body}"]) + "\n"


if __name__ == "__main__":
    main()
