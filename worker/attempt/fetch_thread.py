"""Fetches what an attempt needs from hubs and URLs, before training starts.

The first attempt of a job resolves each revision to a commit, and writes the commit to its folder before training
starts. Every later attempt and every other node uses the same commit. The file of a URL is pinned by its sha256, and a
different file is refused.

A thread of the supervisor runs `worker/attempt/fetch_process.py`, which downloads. Training gets only the folders of
the downloaded files. It has no token, and contacts no hub.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import TypeAdapter

from footplate.contract import layout
from footplate.contract.errors import NotFetched
from footplate.contract.files import by_url, is_url, on_hub, pin_of, shown
from footplate.contract.host.user import make_passable_folders
from footplate.contract.hub import hub_name
from footplate.contract.messages import Grant
from footplate.contract.safe_paths import file_below
from footplate.contract.spec import JobSpec
from worker.attempt.background import FIRST_SECONDS, Background
from worker.attempt.fetch_process import Commit, FetchItem, FetchOrder
from worker.attempt.url_files import Fetched, unfinished_file
from worker.settings import WorkerSettings

RECORD = "hub.json"
"""The file in the attempt's folder that maps each place, such as `hub://owner/name@main`, to its commit."""
MAX_OUTAGE_SECONDS = 300.0
"""The time for which a hub that does not answer is retried. Then the attempt fails, and control may retry the job."""
RETRIED = frozenset({"hub_unreachable", "store_unreachable"})
"""The codes of the errors after which a download is tried again."""

_PINNED = TypeAdapter(dict[str, Commit])


class FetchThread(Background):
    """Downloads the repositories and URLs that one attempt's spec names, and reports each download as an event."""

    def __init__(
        self, settings: WorkerSettings, grant: Grant, spec: JobSpec, wake: int, *, is_for_another_user: bool
    ) -> None:
        super().__init__(wake, f"the thread that downloads for {grant.job} attempt {grant.attempt}")
        self._settings, self._grant = settings, grant
        self._is_for_another_user = is_for_another_user
        self.items = _fetch_items(spec)
        self.folders: dict[str, str] = {}
        """The downloaded folder of each repository and the downloaded file of each URL, by its place."""
        self._child: subprocess.Popen[bytes] | None = None

    def fetch(self) -> None:
        if self.items:
            self._add(self._fetch)

    def close(self) -> None:
        super().close()
        with self._lock:
            if self._child is not None:
                self._child.kill()

    # The thread

    def _fetch(self) -> None:
        names = ", ".join(
            name for repository in self.items if not is_url(repository.place) for name in repository.names
        )
        if names and self._settings.hub == "off":
            raise NotFetched(
                "hub_is_off",
                f"this node may not fetch from a hub, and the spec names {names}",
                hint="ask the operator to set FOOTPLATE_HUB=on on this node, or use a path below data:// or models://",
            )
        commits = self._pinned()
        for outage_seconds in self._tries():
            failure = self._try(commits)
            if failure is None:
                return
            if failure.code not in RETRIED or outage_seconds > MAX_OUTAGE_SECONDS:
                raise failure
            if not outage_seconds:
                self._note(f"{failure.message}; it is retried", code=failure.code)

    def _try(self, commits: dict[str, str]) -> NotFetched | None:
        """Runs the download process once, and returns its failure or None.

        Adds the commit of each repository to `commits`, so that the next try downloads the same commit.
        """
        began = time.monotonic()
        for line in self._lines(commits):
            if "pinned" in line:
                self._pin(line["pinned"], commits)
            elif "here" in line:
                self._note_fetched(Fetched.model_validate(line["here"]), time.monotonic() - began)
            else:
                return NotFetched(**line["failed"])
        if len(self.folders) == len(self.items) or self._given_up.is_set():
            return None
        text = "the process that fetches from the hub died on this node without an error"
        return NotFetched("hub_unreachable", text, hint="see the node's own log")

    def _lines(self, commits: dict[str, str]) -> Any:
        items = [repository.model_copy(update={"commit": commits.get(repository.place)}) for repository in self.items]
        cache, is_read_by_all = self._settings.hub_path, self._is_for_another_user
        order = FetchOrder(
            parent=os.getpid(), cache=cache, is_read_by_all=is_read_by_all, items=items,
            stores=self._settings.stores_path, stores_allow=self._settings.stores_allow,
            stores_max_bytes=int(self._settings.stores_max_mb * 2**20),
        )  # fmt: skip
        # FOOTPLATE_ variables hold keys, and URLs with keys. The process needs none of them.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FOOTPLATE_")}
        with self._lock:
            if self._is_closed:
                return
            command = [sys.executable, "-m", "worker.attempt.fetch_process"]
            pipe = subprocess.PIPE
            self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, start_new_session=True)
        try:
            with self._child as child:
                assert child.stdin is not None
                assert child.stdout is not None
                with suppress(BrokenPipeError):
                    child.stdin.write(order.model_dump_json().encode())
                    child.stdin.close()
                for line in child.stdout:
                    yield json.loads(line)
        finally:
            # If the process was killed, it has left a partial file.
            unfinished_file(order.stores, self._child.pid).unlink(missing_ok=True)

    # ── Commits ──

    def _pinned(self) -> dict[str, str]:
        """Returns the commits and sha256 sums that this attempt must use, by repository or URL.

        They come from the spec, from the job's earlier attempts, or on further nodes from the first node.
        """
        commits_in_spec = {item.place: item.commit for item in self.items if item.commit is not None}
        while self._grant.source and not self._given_up.is_set():
            if (commits := self._read(self._grant.attempt)) is not None:
                return {**commits, **commits_in_spec}
            self._given_up.wait(FIRST_SECONDS)
        for attempt in range(self._grant.attempt - 1, 0, -1):
            if (commits := self._read(attempt)) is not None:
                return {**commits, **commits_in_spec}
        return commits_in_spec

    def _pin(self, new_commits: dict[str, str], commits: dict[str, str]) -> None:
        """Records new commits before any download, so that later attempts use the same ones."""
        if not self._grant.source:
            self._write(new_commits)
        for place, commit in new_commits.items():
            if place not in commits:
                text = f"{shown(place)} is {pin_of(place, commit)}, and all attempts of this job use that"
                self._note(text, code="hub_pinned", commit=commit)
        commits.update(new_commits)

    def _note_fetched(self, download: Fetched, seconds: float) -> None:
        commit = Path(download.folder).stem
        size = f"{download.files} files, {download.bytes / 1e6:,.1f} MB, in {seconds:.1f} s"
        text = f"{shown(download.place)}, {pin_of(download.place, commit)}, was fetched to this node: {size}"
        self._note(text, code="hub_fetched", commit=commit)
        self.folders[download.place] = download.folder

    # The record

    def _path(self, attempt: int) -> PurePosixPath:
        return layout.attempt_folder(self._grant.job, attempt) / RECORD

    def _read(self, attempt: int) -> dict[str, str] | None:
        path = self._path(attempt)
        with suppress(FileNotFoundError):
            content = self._retry_while_unreachable(
                f"the download of {path}, which holds the pinned revisions", lambda: self._content(path)
            )
            return None if content is None else _PINNED.validate_json(content)
        return None

    def _content(self, path: PurePosixPath) -> bytes:
        if (bucket := self._settings.bucket) is not None:
            return bucket.read(str(path))
        # Code of an earlier attempt may have put a link at this path, which `file_below` does not follow.
        handle = file_below(self._settings.artifacts_path, str(path))
        if handle is None:
            raise FileNotFoundError(path)
        with os.fdopen(handle, "rb") as file:
            return file.read()

    def _write(self, commits: dict[str, str]) -> None:
        content, path = json.dumps(commits, indent=1).encode(), self._path(self._grant.attempt)
        bucket = self._settings.bucket
        if bucket is not None:
            self._retry_while_unreachable(
                f"the upload of {path}, which holds the pinned revisions", lambda: bucket.write(content, str(path))
            )
            return
        file = self._settings.artifacts_path / path
        if not self._is_for_another_user:
            file.parent.mkdir(parents=True, exist_ok=True)
        else:
            make_passable_folders(self._settings.artifacts_path, path.parent)
        new_file = file.with_name(f".{RECORD}")
        with new_file.open("wb") as content_file:
            content_file.write(content)
            content_file.flush()
            os.fsync(content_file.fileno())
        new_file.rename(file)


def _fetch_items(spec: JobSpec) -> list[FetchItem]:
    """Returns the URLs and repositories that a spec names. Two revisions of one repository are two items."""
    names: dict[str, set[str]] = {}
    for _, name in on_hub(spec.texts):
        names.setdefault(hub_name(name).place, set()).add(name)
    hub = [FetchItem(place=place, names=sorted(group), commit=hub_name(place).commit) for place, group in names.items()]
    return hub + [FetchItem(place=url, names=[url]) for url in sorted({url for _, url in by_url(spec.texts)})]
