"""Tests the files of the dashboard that the service sends."""

from __future__ import annotations

import gzip
import hashlib
import re

from service.api import dashboard
from tests.support.processes import REPOSITORY

SOURCES = REPOSITORY / "web"
FIRST_VIEW_BYTES = 60_000


def test_the_served_dashboard_was_built_from_these_sources() -> None:
    digest = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*"), key=lambda path: path.relative_to(SOURCES).as_posix()):
        name = path.relative_to(SOURCES).as_posix()
        if path.is_file() and not name.startswith("node_modules/") and name != "src/api/schema.ts":
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    for recipe in sorted((REPOSITORY / "examples").glob("*/*.json")):
        name = recipe.relative_to(REPOSITORY).as_posix()
        digest.update(name.encode() + b"\0" + recipe.read_bytes() + b"\0")

    stamp = (dashboard.DASHBOARD / "sources.sha256").read_text().strip()

    assert stamp == digest.hexdigest(), "run `make web`, which builds service/dashboard from web/"


def test_scripts_of_the_first_page_load_stay_below_their_size_limit() -> None:
    index = (dashboard.DASHBOARD / "index.html").read_text()
    scripts = re.findall(r'src="/dashboard/([^"]+\.js)"', index)

    assert scripts
    assert sum(len(gzip.compress((dashboard.DASHBOARD / name).read_bytes())) for name in scripts) <= FIRST_VIEW_BYTES
