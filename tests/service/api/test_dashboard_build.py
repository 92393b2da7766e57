"""Tests the files of the dashboard that the service sends."""

from __future__ import annotations

import gzip
import hashlib
import re
from functools import cache
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI

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


async def test_a_rebuild_below_a_running_service_leaves_the_old_files_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "DASHBOARD", tmp_path)
    monkeypatch.setattr(dashboard, "files", cache(dashboard.files.__wrapped__))
    (tmp_path / "index.html").write_text("index of the first build")
    (tmp_path / "View-12345678.js").write_text("view of the first build")
    app = FastAPI()
    app.include_router(dashboard.router)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://service") as client:
        assert (await client.get("/")).text == "index of the first build"

        for path in tmp_path.iterdir():
            path.unlink()

        assert (await client.get("/dashboard/View-12345678.js")).text == "view of the first build"
