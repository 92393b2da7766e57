"""Celery's consumer without what it says to other workers: they are strangers to each other here.

`--without-mingle --without-gossip --without-heartbeat` as a setting: a plain `celery -A worker.app worker` has it too.
"""

from __future__ import annotations

from typing import Any

from celery.worker.consumer import Consumer

SILENT = {"without_mingle": True, "without_gossip": True, "without_heartbeat": True}


class SilentConsumer(Consumer):  # type: ignore[misc]
    """Takes tasks, and that is all."""

    restart_count = 0
    """Celery starts at -1, and then a pool process that dies in the first moment ends the whole node, with exit code 0.
    From here on the pool replaces it, as it would at any later moment."""

    def __init__(self, *args: Any, worker_options: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, worker_options={**(worker_options or {}), **SILENT}, **kwargs)
