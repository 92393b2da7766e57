"""Measures an API process on a database with a million jobs and a curve of ten million points."""

from __future__ import annotations

from pathlib import Path

import httpx2

from bench import listing, report, series
from bench.post import database_url, serve
from service.store.database import Database
from tests.support.processes import Processes


def run(folder: Path, *, quick: bool = False) -> list[report.Row]:
    rows = []
    jobs, points = (20_000, 1_000_000) if quick else (1_000_000, 10_000_000)
    for database in ("sqlite", "postgres"):
        with database_url(database, folder) as url:
            if url:
                rows += _measure(folder / database, database, url, jobs, points)
    return rows


def _measure(folder: Path, database: str, url: str, jobs: int, points: int) -> list[report.Row]:
    processes = Processes(folder)
    try:
        _, port = serve(processes, folder / "home", url)
        db = Database(url)
        try:
            listing.fill(db, jobs)
            curves = {count: series.filled(db, count) for count in (100_000, points)}
        finally:
            db.close()
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            rows = listing.measure(client, database, jobs)
            return rows + [row for count, job in curves.items() for row in series.measure(client, database, job, count)]
    finally:
        processes.stop_all()
