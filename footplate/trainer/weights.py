"""Reads a model's weights from a folder with Hugging Face's files: one file, or several files with an index.

Our own weights are one file, unless `save_pretrained` splits a large model.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from footplate.contract.errors import CheckpointCorrupt

MODEL = "model.safetensors"
_NAMES = (MODEL, "pytorch_model.bin")


def file_in(folder: Path) -> Path | None:
    """Returns the file with the weights, or the index of several files, or None."""
    paths = (folder / f"{name}{index}" for name in _NAMES for index in ("", ".index.json"))
    return next((path for path in paths if path.is_file()), None)


def read(folder: Path) -> dict[str, Tensor]:
    """Returns all weights of a folder by name, on the host. Files that would run code when read are refused."""
    path = file_in(folder)
    if path is None:
        raise CheckpointCorrupt(f"{folder.name}: {MODEL} is missing")
    if path.suffix != ".json":
        return _read(path)
    stored: dict[str, Tensor] = {}
    for name in sorted(_named_by(path)):
        stored |= _read(folder / name)
    return stored


def _named_by(index: Path) -> set[str]:
    """Returns the files that an index names. They must be beside the index."""
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise CheckpointCorrupt(f"{index.parent.name}: {index.name} is not an index of weights ({error!r})") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise CheckpointCorrupt(f"{index.parent.name}: {index.name} names {name!r}, which is not a file beside it")
        if not (index.parent / name).is_file():
            raise CheckpointCorrupt(f"{index.parent.name}: {name} is missing, but {index.name} names it")
    return names


def _read(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        stored: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise CheckpointCorrupt(
            f"{path.parent.name}: {path.name} cannot be read as weights only, without running code in it ({error})"
        ) from error
    return stored
