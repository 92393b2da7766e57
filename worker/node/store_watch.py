"""Checks whether attempts on this node can use the artifact store. Heartbeats report the reason if they cannot."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from footplate.contract import layout
from footplate.contract.bucket import RemoteStore, StoreUnreachable
from footplate.contract.ids import NodeId
from worker.settings import WorkerSettings


def folder_trouble(root: Path) -> str | None:
    """Returns why no attempt could use the artifact store in this folder, or None."""
    probe = root / layout.PROBE
    try:
        with probe.open("rb"):
            pass
    except FileNotFoundError:
        return f"{root} is not the service's artifact store, because it has no {probe.name}: mount the store there"
    except OSError as error:
        return f"it cannot read the artifact store: {error.strerror} ({probe})"
    if not os.access(root, os.W_OK | os.X_OK):
        return f"it may not write to the artifact store {root}: mount it writable, or fix its rights"
    return None


class StoreWatch(threading.Thread):
    """Checks the artifact store at an interval. A bucket or a network disk may hang, and heartbeats must not wait."""

    EVERY_SECONDS, TROUBLE_SECONDS = 5.0, 0.5
    """The interval between two checks, and the shorter one while attempts cannot use the store."""

    def __init__(self, settings: WorkerSettings, node: NodeId) -> None:
        super().__init__(name="store-watch", daemon=True)
        self._folder, self._bucket, self._mark = settings.artifacts_path, settings.bucket, f"nodes/{node}"
        self._has_written = False
        self.trouble: str | None = "it has not had an answer from its artifact store yet"

    def run(self) -> None:
        while True:
            self.trouble = self._bucket_trouble(self._bucket) if self._bucket else folder_trouble(self._folder)
            threading.Event().wait(self.EVERY_SECONDS if self.trouble is None else self.TROUBLE_SECONDS)

    def _bucket_trouble(self, bucket: RemoteStore) -> str | None:
        try:
            if (why := bucket.trouble()) is None and not self._has_written:
                bucket.write(b"", self._mark)
        except StoreUnreachable as error:
            why = f"it may not write to the artifact store: {error}"
        # A write costs more than a read, so writing is only tested at first and after each error.
        self._has_written = why is None
        return why
