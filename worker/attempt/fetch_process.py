"""`python -m worker.attempt.fetch_process` downloads to this node what a job names on a hub or by a URL.

The download runs in its own process, so that it can be killed at once, and training's process never has the token.

    stdin     a FetchOrder, as JSON
    stdout    one line of JSON for each step:
              {"pinned": {place: commit}} once all commits are known
              {"here": Fetched} for each place that was downloaded, or {"failed": NotFetched}

A place is a repository at a revision, or a URL. Only text and safetensors are downloaded, and no file that could run
code when it is opened.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from footplate.contract.errors import NotFetched
from footplate.contract.fields import InternalMessage
from footplate.contract.files import is_url
from footplate.contract.host.linux import die_with_parent
from footplate.contract.hub import HubName, Kind, hub_name
from footplate.contract.outbound import Allowed
from worker.attempt.url_files import Fetched, UrlFiles

FETCHED_PATTERNS: dict[Kind, list[str]] = {
    "model": ["*.safetensors", "*.json", "*.txt", "*.model", "*.spm", "*.tiktoken", "*.jinja"],
    "dataset": ["*.parquet", "*.jsonl", "*.ndjson", "*.json", "*.csv", "*.tsv", "*.txt", "*.arrow", "README.md"],
}
"""The files that are downloaded if a spec names a whole repository."""
NEVER_FETCHED = [
    f"*{suffix}" for suffix in (
        ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".msgpack", ".h5", ".keras", ".npy", ".npz",
        ".py", ".pyc", ".so", ".sh", ".gguf", ".onnx", ".zip", ".tar", ".gz", ".exe", ".dll",
    )
]  # fmt: skip
"""Files that are never downloaded, even if a spec names the file itself."""
OTHER_WEIGHTS = "*/*.safetensors"
"""Weights in subfolders of a model's repository. They are downloaded only if the spec names the subfolder."""


Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40,64}$")]


class FetchItem(InternalMessage):
    """A URL to download, or a repository at a revision, with the names by which the spec refers to it."""

    place: str
    names: list[str]
    commit: Commit | None = None


class FetchOrder(InternalMessage):
    """The instructions of a supervisor for its download process."""

    parent: int
    """The process id of the supervisor. The download ends with this process."""
    cache: Path
    """The folder of files from hubs."""
    is_read_by_all: bool = False
    """True if training runs as another user than this process."""
    items: list[FetchItem]
    stores: Path
    """The folder of files from URLs."""
    stores_allow: str
    stores_max_bytes: int


def main() -> None:
    order = FetchOrder.model_validate_json(sys.stdin.buffer.read())
    die_with_parent(order.parent)
    if order.is_read_by_all:
        os.umask(0o022)
    os.environ.update(HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_DISABLE_TELEMETRY="1")
    stores = UrlFiles(order.stores, Allowed.of(order.stores_allow), order.stores_max_bytes)
    repository = order.items[0]
    try:
        commits = {}
        for repository in order.items:
            commits[repository.place] = repository.commit or (
                stores.fetch_newest(repository.place)
                if is_url(repository.place)
                else commit_of(hub_name(repository.place))
            )
        send(pinned=commits)
        for repository in order.items:
            commit = commits[repository.place]
            if is_url(repository.place):
                send(here=stores.fetch_pinned(repository.place, commit).model_dump())
            else:
                send(here=download(repository, commit, order.cache).model_dump())
    except Exception as error:
        if is_url(repository.place) and not isinstance(error, NotFetched):
            raise
        failure = error if isinstance(error, NotFetched) else failure_of(error, hub_name(repository.place))
        send(failed={"code": failure.code, "message": failure.message, "hint": failure.hint})


def send(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def commit_of(name: HubName) -> str:
    from huggingface_hub import HfApi

    commit = HfApi().repo_info(name.repo, repo_type=name.kind, revision=name.revision).sha
    if commit is None:
        raise ValueError(f"the hub reports no commit for {name.place}")
    return str(commit)


def download(repository: FetchItem, commit: str, cache: Path) -> Fetched:
    """Downloads the files of a repository at a commit. If the cache has all of them, the hub is not contacted."""
    from huggingface_hub import snapshot_download

    name = hub_name(repository.place)
    paths = [hub_name(name).path for name in repository.names]
    allowed_patterns = [
        pattern for path in paths for pattern in ([path, f"{path}/*"] if path else FETCHED_PATTERNS[name.kind])
    ]
    refused_patterns = [*NEVER_FETCHED, OTHER_WEIGHTS] if name.kind == "model" and not any(paths) else NEVER_FETCHED
    folder = Path(
        snapshot_download(
            name.repo,
            repo_type=name.kind,
            revision=commit,
            cache_dir=cache,
            allow_patterns=allowed_patterns,
            ignore_patterns=refused_patterns,
            library_name="footplate",
        )
    )
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    if not sizes:
        hint = "name safetensors, or data as Parquet, JSON lines, CSV or text; pickled files and code are never fetched"
        message = f"{repository.place} has no file that the spec names and that may be fetched"
        raise NotFetched(f"{name.kind}_file_not_found", message, hint=hint)
    return Fetched(place=repository.place, folder=str(folder), files=len(sizes), bytes=sum(sizes))


def failure_of(error: Exception, name: HubName) -> NotFetched:
    """Explains an error of huggingface_hub. Specific errors come first, because some are subclasses of others."""
    from huggingface_hub import errors, get_token

    status = getattr(getattr(error, "response", None), "status_code", None)
    kind, where = name.kind, os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    repository = f"the {kind} {name.repo}"
    token = "the nodes' HF_TOKEN" if get_token() else "an HF_TOKEN, which the nodes do not have"
    if isinstance(error, errors.GatedRepoError):
        text = f"{repository} is gated, and {where} does not give it to this node"
        return NotFetched(f"{kind}_gated", text, hint=f"accept its terms there, with the account of {token}")
    if isinstance(error, errors.RepositoryNotFoundError):
        text = f"{where} has no {kind} {name.repo}, or shows it to others only"
        return NotFetched(f"{kind}_not_found", text, hint=f"look for a misspelt name; a private {kind} needs {token}")
    if isinstance(error, errors.RevisionNotFoundError):
        text = f"{repository} has no revision {name.revision!r}, or does not have it any longer"
        hint = "name a branch, a tag or a commit of 40 hex digits, or no revision for main"
        return NotFetched(f"{kind}_revision_not_found", text, hint=hint)
    if isinstance(error, errors.RemoteEntryNotFoundError):
        text = f"{where} lists a file of {name.place} and does not have it: {_first_line(error)}"
        return NotFetched(f"{kind}_file_not_found", text, hint="it was removed there; another revision may have it")
    if status in (401, 403):
        text = f"{where} does not give {repository} to this node: HTTP status {status}"
        return NotFetched(f"{kind}_not_allowed", text, hint=f"the {kind} needs {token}")
    if isinstance(error, OSError) and error.errno is not None and not status:
        text = f"{name.place} cannot be kept on this node: {error.strerror}: {error.filename or ''}".rstrip(": ")
        hint = "FOOTPLATE_HUB_CACHE names the folder; `hf cache` lists and deletes its files"
        return NotFetched("hub_cache_unusable", text, hint=hint)
    text = f"{name.place} cannot be fetched: {where} does not answer as it should: {_first_line(error)}"
    hint = "check the nodes' HF_ENDPOINT and proxies; files that a node has fetched before need no hub"
    return NotFetched("hub_unreachable", text, hint=hint)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().partition("\n")[0] or type(error).__name__)[:300]


if __name__ == "__main__":
    main()
