"""Names on a hub: a repository of a model or of a dataset, a revision, and perhaps files in it.

    hub://owner/name                             a model, or its tokenizer, at branch main when the job begins
    hub://owner/name@v1.0/checkpoints/last       a folder in it, at a branch, a tag or a commit
    hub://datasets/owner/name/data/*.parquet     files of a dataset

Nothing is fetched unless the operator sets FOOTPLATE_HUB=on. The commit of a revision is looked up once for each job.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

SCHEME, DATASETS = "hub://", "datasets/"
PATH_ARGUMENTS = frozenset({"path", "paths", "file", "files", "folder"})
"""The arguments whose strings are paths. Other arguments' strings are never read as paths."""

Kind = Literal["model", "dataset"]

_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?"
_NAME = re.compile(
    rf"(?P<repo>{_WORD}(?P<owned>/{_WORD})?)(?:@(?P<revision>[A-Za-z0-9][A-Za-z0-9._-]{{0,199}}))?(?P<path>(?(owned)(?:/.*)?|))"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubName:
    """A parsed hub name. `path` is relative to the repository, and empty for the whole repository."""

    kind: Kind
    repo: str
    revision: str = "main"
    path: str = ""

    @property
    def place(self) -> str:
        """The name of the repository and its revision, under which a job stores the commit."""
        return f"{SCHEME}{DATASETS if self.kind == 'dataset' else ''}{self.repo}@{self.revision}"

    @property
    def commit(self) -> str | None:
        """The revision if it is a commit, else None for a branch or a tag."""
        return self.revision if _COMMIT.fullmatch(self.revision) else None


def is_hub_name(text: str) -> bool:
    return text.startswith(SCHEME)


def hub_name(text: str) -> HubName:
    """Parses a hub name. Raises ValueError with the reason."""
    name = text.removeprefix(SCHEME)
    kind: Kind = "dataset" if name.startswith(DATASETS) else "model"
    match = _NAME.fullmatch(name.removeprefix(DATASETS))
    if match is None or ".." in match["repo"] or "--" in match["repo"]:
        raise ValueError("it is not the name of a repository")
    path = match["path"].removeprefix("/").removesuffix("/")
    if path and (not path.isprintable() or {"", ".", ".."} & set(path.split("/"))):
        raise ValueError("its path in the repository contains '.', '..', '//' or an unprintable character")
    return HubName(kind, match["repo"], match["revision"] or "main", path)


def base_model(arguments: dict[str, Any]) -> str | None:
    """Returns the repository in a model's arguments, such as owner/name. None if they name no whole repository."""
    path = arguments.get("path")
    name = hub_name(path) if isinstance(path, str) and is_hub_name(path) else None
    return None if name is None or name.path else name.repo


HOW = "hub://owner/name, hub://owner/name@revision, or hub://datasets/owner/name/data/*.parquet"


def of_data(value: Any, *, is_path: bool = False) -> Any:
    """Adds `datasets/` to hub names in a dataset's arguments, where users may leave it out."""
    if isinstance(value, str):
        is_short = is_path and is_hub_name(value) and not value.startswith(SCHEME + DATASETS)
        return SCHEME + DATASETS + value.removeprefix(SCHEME) if is_short else value
    if isinstance(value, list):
        return [of_data(item, is_path=is_path) for item in value]
    if isinstance(value, dict):
        return {key: of_data(item, is_path=is_path or key in PATH_ARGUMENTS) for key, item in value.items()}
    return value
