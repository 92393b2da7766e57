"""Switches of the protections around artifacts in a bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.faults.off import switch


@switch("a checkpoint is reported once the store has it", module="worker.attempt.artifact_sync")
def report_checkpoints_at_once(shipping: Any) -> None:
    hold = shipping.ArtifactSync.hold_checkpoints

    def pass_all(self: Any, events: list[Any]) -> list[Any]:
        hold(self, events)
        return events

    shipping.ArtifactSync.hold_checkpoints = pass_all


@switch("a replaced checkpoint loses its manifest first", module="footplate.contract.bucket")
def leave_the_old_manifest(remote: Any) -> None:
    def commit(self: Any, folder: Path, names: Iterable[str], path: str, goes_on: Callable[[], bool]) -> bool:
        for name in [*names, remote.layout.MANIFEST]:
            self.put(folder / name, f"{path}/{name}")
        return True

    remote.RemoteStore.commit = commit


@switch("a script continues only with files of all its nodes", module="worker.attempt.output_files")
def mark_every_upload_as_complete(outputs: Any) -> None:
    fetch = outputs.AttemptOutputs.fetch

    def fetch_marked(self: Any, attempt: int, report: Any) -> bool:
        place = outputs.layout.attempt_folder(self._grant.job, attempt)
        for mark in (f"{place}/{outputs._mark(node, self._grant.nodes)}" for node in range(self._grant.nodes)):
            if not self._store.has(mark):
                self._store.write(b"[]", mark)
        return bool(fetch(self, attempt, report))

    outputs.AttemptOutputs.fetch = fetch_marked


@switch("files that a node has fetched are not uploaded again", module="worker.attempt.output_files")
def upload_fetched_files_again(module: Any) -> None:
    module.AttemptOutputs._was_fetched = lambda self, opened, path: False
