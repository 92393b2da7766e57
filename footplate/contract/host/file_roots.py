"""Resolves names of files: `data://`, `models://`, `hub://`, URLs, and ids of uploaded files.

A spec can reach files only by these names. Links that lead out of a root are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from footplate.contract.errors import DatasetError, did_you_mean
from footplate.contract.files import is_url, sha256_of, shown
from footplate.contract.host.artifacts import FileChanged, open_stored
from footplate.contract.hub import PATH_ARGUMENTS, hub_name, is_hub_name
from footplate.contract.ids import FileId, is_file

ROOTS = ("data://", "models://", "hub://")

MOST_FILES = 100_000
"""A pattern that matches more files is a mistake, and listing them would take minutes."""


Files = dict[str, list[str]]
"""Maps names in a spec, such as `data://a/*.jsonl`, to the paths of their files."""


@dataclass(frozen=True, slots=True)
class Roots:
    """The folders of `data://`, `models://` and uploaded files on this node."""

    data: Path
    models: Path
    uploads: Path | None = None
    hub: Mapping[str, str] = field(default_factory=dict)
    """Maps each repository and each URL that was downloaded to its folder or file."""
    read: Files = field(default_factory=dict, compare=False)
    """The files of each `data://` name that was resolved. Uploaded files are not listed, because they cannot change."""

    def resolve(self, name: str) -> str:
        """Returns the path on this node of `data://a/b`, of an uploaded file's id or of a URL.

        Raises DatasetError for a name without a root, if there is no such file, or if a link leads out of its root.
        """
        if is_file(name):
            return str(self._uploaded(FileId(name)))
        if is_url(name):
            return self._fetched(name)
        root, relative_path = self._parts(name)
        path = _inside(root, root / relative_path, name)
        if not path.exists():
            neighbours = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
            fetched = f"fetched files: {', '.join(sorted(neighbours)[:20]) or 'none'}; pickled files are never fetched"
            hint = did_you_mean(path.name, neighbours) or (fetched if is_hub_name(name) else f"put it below {root}")
            raise DatasetError(f"{name} is not on this node: there is no {path}", hint=hint)
        return self._recorded(name, [str(path)])[0]

    def _uploaded(self, name: FileId) -> Path:
        """Returns the path of an uploaded file.

        Every byte is verified first, because a retry must not get other data.
        """
        if self.uploads is None:
            raise DatasetError(f"{name} is an uploaded file, but this process has no artifact store to read it from")
        path = self.uploads / name
        hint = "POST the same file to /files again, then resume the job"
        try:
            open_stored(path, sha256_of(name)).close()
        except FileNotFoundError as error:
            raise DatasetError(f"{name} is not in the artifact store", hint=hint) from error
        except FileChanged as error:
            raise DatasetError(str(error), hint=f"DELETE it; {hint}") from error
        except OSError as error:
            raise DatasetError(f"{name} cannot be read from the artifact store: {error.strerror}") from error
        return path

    def _fetched(self, url: str) -> str:
        if url not in self.hub:
            raise DatasetError(
                f"{shown(url)} was not downloaded before training, because no dataset of the spec names it",
                hint="name it as the path of a dataset in the spec",
            )
        return self.hub[url]

    def matching(self, name: str) -> list[str]:
        """Returns the files of a pattern such as `data://a/part-*.jsonl`, sorted by name. A plain name has one file."""
        if is_url(name) or not any(letter in name for letter in "*?["):
            return [self.resolve(name)]
        root, relative_path = self._parts(name)
        paths = list(islice(root.glob(relative_path), MOST_FILES + 1))
        if len(paths) > MOST_FILES:
            hint = "write a pattern that matches fewer files, or join files"
            raise DatasetError(f"{name} matches more than {MOST_FILES} files", hint=hint)
        files = sorted({str(_inside(root, path, name)) for path in paths if path.is_file()})
        if not files:
            raise DatasetError(
                f"{name} matches no file on this node", hint=f"the node searched for {relative_path} in {root}"
            )
        return self._recorded(name, files)

    def _recorded(self, name: str, paths: list[str]) -> list[str]:
        if name.startswith("data://"):
            self.read[name] = paths
        return paths

    def _parts(self, name: str) -> tuple[Path, str]:
        if is_hub_name(name):
            name_on_hub = hub_name(name)
            if name_on_hub.place not in self.hub:
                raise DatasetError(
                    f"{name} was not downloaded before training, because no component of the spec names it",
                    hint="give this name as the `path` of a component in the spec",
                )
            return Path(self.hub[name_on_hub.place]), name_on_hub.path
        scheme, _, relative_path = name.partition("://")
        root, relative_path = {"data": self.data, "models": self.models}.get(scheme), relative_path.lstrip("/")
        if root is None:
            hint = "write data://…, models://…, hub://… or an uploaded file's id"
            raise DatasetError(f"{name!r} has no root such as data://", hint=hint)
        if ".." in relative_path.split("/"):
            raise DatasetError(f"{name} leads out of {scheme}://", hint="write the path without '..'")
        return root.resolve(), relative_path


def _inside(root: Path, path: Path, name: str) -> Path:
    target, is_of_hub = path.resolve(), is_hub_name(name)
    # A file in the hub's cache is a link to its content, which is stored beside the repository's commits.
    if not target.is_relative_to(root.resolve().parent.parent if is_of_hub else root):
        scheme = name.partition("://")[0]
        hint = f"name a file or folder below {scheme}:// that is not a link to a place outside of it"
        raise DatasetError(f"{name} leads out of {scheme}://", hint=hint)
    return path if is_of_hub else target


def resolved(args: Mapping[str, Any], roots: Roots) -> dict[str, Any]:
    """Returns a component's arguments, in which names such as `data://a` are replaced by paths on this node."""
    return {name: _value(value, roots, name in PATH_ARGUMENTS) for name, value in args.items()}


def _value(value: Any, roots: Roots, is_path: bool) -> Any:
    if isinstance(value, str):
        # A URL is the name of a file only in an argument that is a path.
        return roots.resolve(value) if is_path or value.startswith(ROOTS) or is_file(value) else value
    if isinstance(value, list):
        return list(_items(value, roots, is_path))
    if isinstance(value, dict):
        return {name: _value(item, roots, is_path or name in PATH_ARGUMENTS) for name, item in value.items()}
    return value


def _items(values: list[Any], roots: Roots, is_path: bool) -> Iterator[Any]:
    """Yields the items of a list. In a list of files, a pattern becomes all files that it matches."""
    for value in values:
        if is_path and isinstance(value, str):
            yield from roots.matching(value)
        else:
            yield _value(value, roots, is_path)
