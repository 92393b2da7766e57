"""Finds the data files of a split in a dataset's repository, by the dataset card or by the names of the files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from footplate.components.rows import not_chosen
from footplate.contract.errors import DatasetError

SUFFIXES = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
}
METADATA_FILES = frozenset(
    {"dataset_infos.json", "dataset_info.json", "dataset_dict.json", "state.json", "config.json"}
)
"""Files of a dataset that contain no rows."""
WORDS = {"train": "train|training", "validation": "validation|valid|val|dev", "test": "test|testing|eval|evaluation"}
"""The words in file names that mark each split, as in the library `datasets`."""

Splits = dict[str, list[Path]]


def files_of(folder: Path, config: str | None, split: str | None) -> tuple[str, list[Path]]:
    """Returns the format of a split's files (`parquet`, `jsonl` or `csv`), and their paths.

    Raises DatasetError if the split does not exist, or if its files have several formats.
    """
    splits = _splits(folder, config)
    if not splits:
        raise DatasetError(
            f"{folder.name} has no data file: it is neither a folder of save_to_disk nor a dataset's repository",
            hint="write it with datasets.load_dataset(…).save_to_disk(folder) in Python, or put data files into it: "
            f"{', '.join(SUFFIXES)}",
        )
    if split is None and len(splits) == 1:
        (split,) = splits
    if split is None or split not in splits:
        raise not_chosen("the dataset", "split", split, splits)
    kinds = {SUFFIXES[file.suffix.lower()] for file in splits[split]}
    if len(kinds) != 1:
        raise DatasetError(
            f"the split {split} is in files of several kinds: {', '.join(sorted(kinds))}",
            hint="name the files in files/parquet, files/jsonl or files/csv",
        )
    (kind,) = kinds
    return kind, splits[split]


def _splits(folder: Path, config: str | None) -> Splits:
    """Returns the files of each split, in the order of their names."""
    configs = _configs(folder / "README.md")
    if configs:
        return _of_card(folder, configs, config)
    if config is not None:
        raise DatasetError(f"the dataset has one configuration, and {config!r} was requested", hint="leave config out")
    splits: Splits = {}
    paths = (path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    for file in sorted(path for path in paths if path.name not in METADATA_FILES and path.is_file()):
        splits.setdefault(_split_of(str(file.relative_to(folder))), []).append(file)
    unnamed = splits.pop("", [])
    # If no file name has the name of a split, all files are training data.
    return splits or ({"train": unnamed} if unnamed else {})


def _split_of(name: str) -> str:
    for split, words in WORDS.items():
        if re.search(rf"(^|[/._\-0-9])({words})([/._\-0-9]|$)", name.lower()):
            return split
    return ""


# The card


def _configs(card: Path) -> list[dict[str, Any]]:
    """Returns the configurations in the dataset's card, or an empty list if it has none."""
    if not card.is_file():
        return []
    yaml: Any = import_module("yaml")
    header = re.match(r"\s*---[ \t]*\n(.*?)\n---[ \t]*(\n|$)", card.read_text(errors="replace"), re.DOTALL)
    try:
        card_data = yaml.safe_load(header[1]) if header else {}
    except yaml.YAMLError as error:
        raise DatasetError(f"the dataset's card, README.md, cannot be read: {error}") from error
    configs = card_data.get("configs") if isinstance(card_data, dict) else None
    return [config for config in configs or [] if isinstance(config, dict) and config.get("data_files")]


def _of_card(folder: Path, configs: list[dict[str, Any]], config_name: str | None) -> Splits:
    names = {str(config.get("config_name", "default")): config for config in configs}
    defaults = [name for name, config in names.items() if config.get("default") or name == "default" or len(names) == 1]
    name = config_name or next(iter(defaults), None)
    if name is None or name not in names:
        raise not_chosen("the dataset", "config", name, names)
    files = names[name]["data_files"]
    entries = (
        files if isinstance(files, list) and all(isinstance(entry, dict) for entry in files) else [{"path": files}]
    )
    within = str(names[name].get("data_dir") or "")
    splits = {str(entry.get("split", "train")): list(_named(folder, within, entry.get("path"))) for entry in entries}
    return {split: paths for split, paths in splits.items() if paths}


def _named(folder: Path, within: str, patterns: Any) -> Iterator[Path]:
    for pattern in patterns if isinstance(patterns, list) else [patterns]:
        text = str(pattern)
        if text.startswith("/") or ".." in text.split("/") or ".." in within.split("/"):
            raise DatasetError(f"the dataset's card names files outside of the repository: {text[:80]!r}")
        yield from sorted(file for file in (folder / within).glob(text) if file.suffix.lower() in SUFFIXES)
