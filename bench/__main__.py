"""Measures our figures, and prints each beside its goal: `python -m bench [--quick] [NAME …]`. Default: all but gpu."""

from __future__ import annotations

import argparse
import importlib
import os
import tempfile
from datetime import date
from pathlib import Path

from bench import report

SERVER = (
    "post", "latency", "shapes", "drain", "ingest", "scale", "readers", "footprint", "outage", "upload", "growth",
    "serving", "dashboard",
)  # fmt: skip
TRAINER = ("loop",)
ASKED_FOR = ("gpu",)
"""Measurements that run only if they are named. Without a GPU these figures mean nothing."""
KNOWN = (*SERVER, *TRAINER, *ASKED_FOR)
RESULTS = Path(__file__).with_name("results.md")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(KNOWN)}")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="few and short rounds, for a check that all of it runs: the figures are rough",
    )
    parser.add_argument(
        "--write", action="store_true", help=f"also write each table into its section of {RESULTS.name}"
    )
    options = parser.parse_args()
    if unknown := set(options.names) - set(KNOWN):
        parser.error(f"no figures named {', '.join(sorted(unknown))}; there is: {', '.join(KNOWN)}")
    for name in options.names or (*SERVER, *TRAINER):
        with tempfile.TemporaryDirectory(prefix=f"fp-bench-{name}-") as folder:
            rows = importlib.import_module(f"bench.{name}").run(Path(folder), quick=options.quick)
        print(report.table(rows), flush=True)
        if options.write:
            kind = "quick form" if options.quick else "full form"
            cores = len(os.sched_getaffinity(0))
            gpu = "a GPU" if Path("/dev/nvidiactl").exists() else "no GPU"
            where = f"{date.today()}, {kind}, {cores} shared cores, {gpu}, load {os.getloadavg()[1]:.0f} at the end."
            RESULTS.write_text(with_section(RESULTS.read_text(), name, f"{where}\n\n{report.table(rows)}"))


def with_section(page: str, name: str, body: str) -> str:
    """Returns the page with this section replaced or added. The other sections stay as they are."""
    head, *sections = page.rstrip().split("\n## ")
    other_sections = [section for section in sections if section.partition("\n")[0] != name]
    return (
        "\n\n## ".join([head.rstrip(), *(section.rstrip() for section in other_sections), f"{name}\n\n{body}"]) + "\n"
    )


if __name__ == "__main__":
    main()
