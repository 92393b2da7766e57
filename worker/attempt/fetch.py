"""`python -m worker.attempt.fetch`: downloads what a job names on a hub, or by a URL, to this node.

A process of its own, so that it can be ended at once, and so that the process that holds the token is not the one that
trains.

    in      a Wanted, as JSON
    out     lines: {"pinned": {place: commit}} once all are known, {"here": Here} for each, or {"failed": Failed}

Text and safetensors only: what could run code when it is opened is not even fetched.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from footplate.contract.files import is_url
from footplate.contract.host.linux import die_with_parent
from footplate.contract.hub import HubName, Kind, hub_name
from footplate.contract.outbound import Allowed
from worker.attempt.url_files import Failed, Here, Model, NotHad, Stores

WHOLE: dict[Kind, list[str]] = {
    "model": ["*.safetensors", "*.json", "*.txt", "*.model", "*.spm", "*.tiktoken", "*.jinja"],
    "dataset": ["*.parquet", "*.jsonl", "*.ndjson", "*.json", "*.csv", "*.tsv", "*.txt", "*.arrow", "README.md"],
}
"""What is fetched where a name means all of a repository."""
NEVER = [
    f"*{suffix}" for suffix in (
        ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".msgpack", ".h5", ".keras", ".npy", ".npz",
        ".py", ".pyc", ".so", ".sh", ".gguf", ".onnx", ".zip", ".tar", ".gz", ".exe", ".dll",
    )
]  # fmt: skip
"""Also where a path names it."""
BESIDE = "*/*.safetensors"
"""Other models' weights, in folders of a model's repository: who means them names the folder."""


Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40,64}$")]


class One(Model):
    """A repository at a revision, and the names of the spec that mean it."""

    place: str
    names: list[str]
    commit: Commit | None = None


class Wanted(Model):
    parent: int
    cache: Path
    is_read_by_all: bool = False
    """Whoever trains is another user than who fetches."""
    all: list[One]
    stores: Path = Path()
    stores_allow: str = ""
    stores_max_bytes: int = 0


def main() -> None:
    wanted = Wanted.model_validate_json(sys.stdin.buffer.read())
    die_with_parent(wanted.parent)
    if wanted.is_read_by_all:
        os.umask(0o022)
    os.environ.update(HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_DISABLE_TELEMETRY="1")
    stores = Stores(wanted.stores, Allowed.of(wanted.stores_allow), wanted.stores_max_bytes)
    one = wanted.all[0]
    try:
        pinned = {}
        for one in wanted.all:
            pinned[one.place] = one.commit or (
                stores.settle(one.place) if is_url(one.place) else resolved(hub_name(one.place))
            )
        say(pinned=pinned)
        for one in wanted.all:
            commit = pinned[one.place]
            here = stores.have(one.place, commit) if is_url(one.place) else downloaded(one, commit, wanted.cache)
            say(here=here.model_dump())
    except NotHad as error:
        say(failed=error.failed.model_dump())
    except Exception as error:
        if is_url(one.place):
            raise
        say(failed=why(error, hub_name(one.place), one.place).model_dump())


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def resolved(name: HubName) -> str:
    from huggingface_hub import HfApi

    commit = HfApi().repo_info(name.repo, repo_type=name.kind, revision=name.revision).sha
    if commit is None:
        raise ValueError(f"the hub names no commit of {name.place}")
    return str(commit)


def downloaded(one: One, commit: str, cache: Path) -> Here:
    """With every file of it in the cache already, nobody is asked."""
    from huggingface_hub import snapshot_download

    name = hub_name(one.place)
    paths = [hub_name(each).path for each in one.names]
    allowed = [pattern for path in paths for pattern in ([path, f"{path}/*"] if path else WHOLE[name.kind])]
    never = [*NEVER, BESIDE] if name.kind == "model" and not any(paths) else NEVER
    folder = Path(
        snapshot_download(
            name.repo,
            repo_type=name.kind,
            revision=commit,
            cache_dir=cache,
            allow_patterns=allowed,
            ignore_patterns=never,
            library_name="footplate",
        )
    )
    sizes = [path.stat().st_size for path in _files(folder)]
    if not sizes:
        raise NothingThere
    return Here(place=one.place, folder=str(folder), files=len(sizes), bytes=sum(sizes))


class NothingThere(Exception):
    """Of what is named nothing is there, or nothing that may be fetched."""


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else iter(())


def why(error: Exception, name: HubName, place: str) -> Failed:
    """Foreign errors become ours. The most particular first: some are kinds of others."""
    from huggingface_hub import errors, get_token

    kind, where = name.kind, os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    what = f"the {kind} {name.repo}"
    status = getattr(getattr(error, "response", None), "status_code", None)
    token = "the nodes' HF_TOKEN" if get_token() else "an HF_TOKEN, which the nodes do not have"
    if isinstance(error, NothingThere):
        return Failed(
            code=f"{kind}_file_not_found",
            message=f"{place}: no file there is one that is named and may be fetched",
            hint="weights as safetensors, data as Parquet, JSON lines, CSV or text: pickled files and code never are",
        )
    if isinstance(error, errors.GatedRepoError):
        return Failed(
            code=f"{kind}_gated",
            message=f"{what} is gated, and {where} does not give it to this node",
            hint=f"accept its terms there, with the account of {token}",
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return Failed(
            code=f"{kind}_not_found",
            message=f"{where} has no {kind} {name.repo}, or shows it to others only",
            hint=f"look for a misspelt name; what is private needs {token}",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return Failed(
            code=f"{kind}_revision_not_found",
            message=f"{what} has no revision {name.revision!r}, or has it no more",
            hint="a branch, a tag or a commit of 40 letters; without one it is main",
        )
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return Failed(
            code=f"{kind}_file_not_found",
            message=f"{where} lists a file of {place} and does not have it: {_first_line(error)}",
            hint="it was taken away there; another revision may have it",
        )
    if status in (401, 403):
        return Failed(
            code=f"{kind}_not_allowed",
            message=f"{where} does not give {what} to this node: {status}",
            hint=f"it needs {token}",
        )
    if isinstance(error, OSError) and error.errno is not None and not status:
        return Failed(
            code="hub_cache_unusable",
            message=f"{place} cannot be kept on this node: {error.strerror}: {error.filename or ''}".rstrip(": "),
            hint="FOOTPLATE_HUB_CACHE names the folder; `hf cache` shows and frees what lies in it",
        )
    return Failed(
        code="hub_unreachable",
        message=f"{place} cannot be fetched: {where} does not answer as it should: {_first_line(error)}",
        hint="the nodes' HF_ENDPOINT and proxies say where they ask; what was fetched before needs nobody",
        is_away=True,
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().partition("\n")[0] or type(error).__name__)[:300]


if __name__ == "__main__":
    main()
