"""Celery's consumer without messages to other workers, because nodes report to the service only.

It is a setting, so that a plain `celery -A worker.app worker` runs without mingle, gossip and heartbeats too.
"""

from __future__ import annotations

from typing import Any

from celery.worker.consumer import Consumer

SILENT = {"without_mingle": True, "without_gossip": True, "without_heartbeat": True}


class SilentConsumer(Consumer):  # type: ignore[misc]
    """A consumer that takes tasks, and sends nothing to other workers."""

    restart_count = 0
    """Celery's own start value is -1, with which a pool process that dies at once ends the whole node with exit code 0.
    With 0 the pool replaces that process, as it does at any later time."""

    def __init__(self, *args: Any, worker_options: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, worker_options={**(worker_options or {}), **SILENT}, **kwargs)
