"""Finds Chromium for tests that open a page."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

INSTALL = "apt-get install chromium"
"""The command that installs what the skipped tests need."""

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str | None:
    """Returns the path of Chromium: FOOTPLATE_CHROMIUM, a program on the PATH, or the download of playwright."""
    if path := os.environ.get("FOOTPLATE_CHROMIUM"):
        return path
    downloaded = sorted(Path.home().glob(".cache/ms-playwright/chromium-*/chrome-linux*/chrome"))
    return next(filter(None, map(shutil.which, NAMES)), None) or next(map(str, reversed(downloaded)), None)
