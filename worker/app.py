"""The entry point of a node: `celery -A worker.app worker` and `python -m worker` start the same program."""

from __future__ import annotations

from worker.celery_app import app
from worker.node import parent

__all__ = ["app"]

parent.connect()
