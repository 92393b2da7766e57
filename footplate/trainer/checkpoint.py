"""Checkpoints that are complete or do not exist: written to a temporary folder, synced, sealed and renamed.

A folder named `checkpoint-<step>` is therefore complete, unless a disk has lost or changed data since. `verify` reads
every byte again and names what differs. This module does not know the Trainer, which passes a function that writes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import torch
from numpy._core.multiarray import _reconstruct
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from footplate.contract.crash_points import Moment, reached
from footplate.contract.errors import CheckpointCorrupt, listing
from footplate.trainer import adapters, weights

log = logging.getLogger("footplate.trainer")

MANIFEST = "manifest.json"
MODEL, OPTIMIZER, SCHEDULER = weights.MODEL, "optimizer.pt", "scheduler.pt"
RNG, STATE, ARGUMENTS, SCALER = "rng_state.pth", "trainer_state.json", "training_args.json", "scaler.pt"
PICKLED_ARGUMENTS = "training_args.bin"
PIECES, OPTIMIZER_PIECES = "pytorch_model_fsdp_0", "optimizer_0"
UNFINISHED = ".tmp-checkpoint-"
"""The beginning of the names of folders into which checkpoints are saved. A save that is killed leaves its folder."""
PREFIX_CHECKPOINT_DIR, TRAINER_STATE_NAME = "checkpoint", STATE
_NAME = re.compile(r"^checkpoint-(\d+)$")
_NUMPY_CONSTRUCTORS: list[Any] = [_reconstruct, numpy.ndarray, numpy.dtype, numpy.dtypes.UInt32DType]
_ASIDE = re.compile(r"^\.old-(checkpoint-\d+)-[0-9a-f]+$")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A committed checkpoint, as `on_save` receives it."""

    path: Path
    step: int
    bytes: int
    manifest_sha256: str


class CannotSave(OSError):
    """The files could not be written, for example on a full disk. Nothing was committed; older checkpoints remain."""


# Writing


def commit(parent: Path, step: int, write: Callable[[Path], None], stamp: dict[str, Any]) -> Checkpoint:
    """Writes `checkpoint-<step>` below `parent`, completely or not at all."""
    scratch = parent / f"{UNFINISHED}{step}-{uuid.uuid4().hex[:8]}"
    try:
        scratch.mkdir(parents=True)
        write(scratch)
        reached(Moment.AFTER_CHECKPOINT_WRITTEN)
        sealed = seal(scratch, step, stamp)
        reached(Moment.AFTER_CHECKPOINT_SEALED)
        final = parent / f"checkpoint-{step}"
        _move_into_place(scratch, final)
        reached(Moment.AFTER_CHECKPOINT_COMMITTED)
    except BaseException as error:
        shutil.rmtree(scratch, ignore_errors=True)
        if isinstance(error, (OSError, SafetensorError)):
            raise CannotSave(f"checkpoint-{step} could not be written: {error}") from error
        raise
    return replace(sealed, path=final)


def seal(folder: Path, step: int, stamp: dict[str, Any]) -> Checkpoint:
    """Flushes a finished checkpoint folder to the disk, and writes the manifest with the sha256 of every file."""
    # safetensors writes files that only their owner may read, so another user could not continue from the checkpoint.
    # Each file gets the read rights of the folder, which follow the umask.
    for path in _files(folder):
        path.chmod(path.stat().st_mode | (folder.stat().st_mode & 0o444))
    files = {str(path.relative_to(folder)): _synced(path) for path in _files(folder)}
    manifest = {"format": 1, "step": step, "stamp": stamp, "versions": _versions(), "files": files}
    text = json.dumps(manifest, indent=2, sort_keys=True).encode() + b"\n"
    path = folder / MANIFEST
    path.write_bytes(text)
    _synced(path)
    for directory in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        _sync_directory(directory)
    size = sum(file["bytes"] for file in files.values()) + len(text)
    return Checkpoint(folder, step, size, hashlib.sha256(text).hexdigest())


def _move_into_place(scratch: Path, final: Path) -> None:
    """Renames the temporary folder to its final name. An older checkpoint of that name is deleted afterwards."""
    old_folder = None
    if final.exists():
        old_folder = final.parent / f".old-{final.name}-{uuid.uuid4().hex[:8]}"
        final.rename(old_folder)
    scratch.rename(final)
    reached(Moment.AFTER_CHECKPOINT_RENAMED)
    _sync_directory(final.parent)
    if old_folder is not None:
        shutil.rmtree(old_folder, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Deletes temporary folders of interrupted saves, and restores checkpoints that such a save had renamed."""
    if not parent.is_dir():
        return
    for path in list(parent.iterdir()):
        old_name = _ASIDE.match(path.name)
        if old_name and not (parent / old_name[1]).exists():
            path.rename(parent / old_name[1])
        elif old_name or path.name.startswith(UNFINISHED):
            shutil.rmtree(path, ignore_errors=True)


def rotate(
    parent: Path, limit: int | None, checkpoint: Checkpoint, protect: set[Path], *, counts_protected: bool = True
) -> None:
    """Deletes the oldest checkpoints until `limit` remain. Those in `protect` are never deleted.

    With `counts_protected`, the protected ones count as well. Without it, they remain beside the newest `limit`.
    """
    if limit is None:
        return
    paths = _oldest_first(parent, checkpoint.step)
    surplus = len(paths) - limit
    protected = {path.resolve() for path in (checkpoint.path, *protect)}
    for path in paths if counts_protected else paths[:-limit]:
        if surplus > 0 and path.resolve() not in protected:
            shutil.rmtree(path, ignore_errors=True)
            surplus -= 1
            reached(Moment.AFTER_CHECKPOINT_ROTATED)


def _oldest_first(parent: Path, step: int) -> list[Path]:
    """Returns the checkpoints below `parent`, if the newest one is that of `step`.

    A run counts its steps upwards, so a checkpoint of a later step belongs to an earlier run in the same folder.
    """
    return [path for _, path in sorted(_numbered(parent), key=lambda numbered: (numbered[0] <= step, numbered[0]))]


def _synced(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": digest}


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@cache
def _versions() -> dict[str, str]:
    import platform
    from importlib.metadata import version

    names = ("footplate", "torch", "accelerate", "safetensors")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


# Finding and checking


def latest_checkpoint(folder: str | Path) -> Path | None:
    """Returns the newest complete checkpoint, or None. Incomplete or damaged ones are skipped with a warning."""
    for _, path in reversed(_numbered(Path(folder))):
        try:
            verify(path)
        except CheckpointCorrupt as error:
            log.warning("skipped: %s", error)
        else:
            return path
    return None


def get_last_checkpoint(folder: str | Path) -> str | None:
    """Returns the path of the newest complete checkpoint or None, under Hugging Face's name."""
    path = latest_checkpoint(folder)
    return None if path is None else str(path)


class Verified(str):
    """The path of a checkpoint that has been verified, so that it need not be verified again."""


def verify(folder: str | Path, manifest_sha256: str | None = None) -> dict[str, Any]:
    """Compares every file of a checkpoint with its manifest and returns the manifest, or raises CheckpointCorrupt.

    A file that cannot be read counts as damaged, because a failing disk or missing rights affect this checkpoint only.
    `manifest_sha256` is the checksum of the committed manifest, if the caller has stored it.
    """
    folder = Path(folder)
    try:
        if not folder.is_dir():
            raise CheckpointCorrupt(f"{folder.name} no longer exists")
    except OSError as error:
        raise CheckpointCorrupt(f"{folder.name} cannot be read ({error})") from error
    manifest = _read_manifest(folder, manifest_sha256)
    for name, expected in manifest["files"].items():
        try:
            wrong = _difference(folder / name, expected)
        except OSError as error:
            raise CheckpointCorrupt(f"{folder.name}: {name} cannot be read ({error})") from error
        if wrong and not (manifest_sha256 is None and _was_replaced(folder, name, manifest)):
            raise CheckpointCorrupt(f"{folder.name}: {name} {wrong}")
    return manifest


def _was_replaced(folder: Path, name: str, manifest: dict[str, Any]) -> bool:
    """Returns True if the weights were converted or split into shards after the checkpoint was written.

    A damaged disk loses files, but never writes new weights in another layout.
    """
    path = weights.file_in(folder)
    if name != MODEL or (folder / name).exists() or path is None or path.name in manifest["files"]:
        return False
    log.warning(
        "%s: %s has replaced %s after the checkpoint was written, so the weights are not verified",
        folder.name,
        path.name,
        name,
    )
    return True


def _difference(path: Path, expected: dict[str, Any]) -> str | None:
    """Returns how a file differs from its entry in the manifest, or None."""
    if path.is_symlink():
        return "is a link, but was written as a file"
    if not path.is_file():
        return "is missing"
    size = path.stat().st_size
    if size != expected["bytes"]:
        return f"has {size} bytes, but was written with {expected['bytes']}"
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != expected["sha256"]:
            return "has changed since it was written (its sha256 differs)"
    return None


def _read_manifest(folder: Path, sha256: str | None) -> dict[str, Any]:
    try:
        text = (folder / MANIFEST).read_bytes()
        manifest = json.loads(text)
    except FileNotFoundError:
        raise CheckpointCorrupt(
            f"{folder.name}: {MANIFEST} is missing: the checkpoint was never completed, or another Trainer wrote it"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointCorrupt(f"{folder.name}: {MANIFEST} cannot be read ({error})") from error
    if sha256 and hashlib.sha256(text).hexdigest() != sha256:
        raise CheckpointCorrupt(f"{folder.name}: {MANIFEST} is not the one that was committed (its sha256 differs)")
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise CheckpointCorrupt(f"{folder.name}: {MANIFEST} does not list the checkpoint's files")
    for name, file in manifest["files"].items():
        if not isinstance(file, dict) or not {"bytes", "sha256"} <= file.keys():
            raise CheckpointCorrupt(f"{folder.name}: {MANIFEST} has no size and sha256 of {name}")
    return manifest


def _numbered(parent: Path) -> list[tuple[int, Path]]:
    if not parent.is_dir():
        return []
    matches = ((_NAME.match(path.name), path) for path in parent.iterdir() if path.is_dir())
    return sorted((int(match[1]), path) for match, path in matches if match)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != MANIFEST)


# Files of a checkpoint


def save_weights(model: nn.Module, path: Path, state_dict: dict[str, Tensor] | None = None) -> None:
    """Writes one safetensors file. Tied weights are stored once, and the metadata lists their other names."""
    tensors: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    names_by_place: dict[tuple[Any, ...], str] = {}
    for name, tensor in (model.state_dict() if state_dict is None else state_dict).items():
        if not isinstance(tensor, Tensor):
            continue
        place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and place in names_by_place:
            tied[name] = names_by_place[place]
        else:
            names_by_place[place] = name
            tensors[name] = tensor.detach()
    save_file(_without_overlap(tensors), path, metadata={"format": "pt", **tied})


def _without_overlap(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies tensors that share storage, such as slices of a fused weight, because safetensors refuses overlaps."""
    owners: set[tuple[torch.device, int]] = set()
    separate: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        storage = (tensor.device, tensor.untyped_storage().data_ptr())
        shares = storage in owners or tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()
        separate[name] = tensor.clone(memory_format=torch.contiguous_format) if shares else tensor.contiguous()
        owners.add(storage)
    return separate


def load_weights(model: nn.Module, folder: Path) -> None:
    """Loads a checkpoint's weights, or its adapters if it holds nothing else, into the model."""
    if holds_adapters_only(model, folder):
        return adapters.load(model, folder)
    model.load_state_dict(read_weights(model, folder), strict=False)
    return None


def read_weights(model: nn.Module, folder: Path) -> dict[str, Tensor]:
    """Returns the stored weights by name. A parameter may be missing only if it is tied to a stored one.

    A buffer may be missing in the model or in the file, or differ in shape. The model's `load_state_dict` decides
    whether that is an error.
    """
    if holds_adapters_only(model, folder):
        return adapters.read(model, folder)
    stored, current = weights.read(folder), model.state_dict()
    saved_addresses = {_address(current[name]) for name in stored if name in current}
    buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    missing = [
        name
        for name in current
        if name not in stored and current[name].numel() and _address(current[name]) not in saved_addresses
    ]
    extra = [name for name in stored if name not in current]
    wrong = [name for name in missing if name not in buffers]
    modules = {name for name, _ in model.named_modules(remove_duplicate=False)}
    wrong += [name for name in extra if name.rpartition(".")[0] not in modules]
    wrong += [n for n in stored if n in current and n not in buffers and current[n].shape != stored[n].shape]
    if wrong:
        raise ValueError(
            f"{folder.name} belongs to another model: {listing(wrong, 3)} are missing in the checkpoint or in "
            "the model, or differ in shape"
        )
    if missing:
        log.warning("%s lacks these buffers, which keep their values: %s", folder.name, ", ".join(missing))
    if extra:
        log.warning("%s has tensors that the model lacks, which are left out: %s", folder.name, ", ".join(extra))
    return stored


def holds_adapters_only(model: nn.Module, folder: Path) -> bool:
    """Returns True if the model has adapters, and the folder does not hold the weights of the model without them."""
    return adapters.are_in(model) and weights.file_in(folder) is None


def _address(tensor: Tensor) -> int:
    """Returns the memory address of the tensor, or of its shard in this process if it is sharded."""
    local: Tensor = getattr(tensor, "_local_tensor", tensor)
    return local.data_ptr()


def save_tensors(value: Any, path: Path) -> None:
    """Writes a `.pt` file. If torch raises RuntimeError, for example on a full disk, raises CannotSave."""
    try:
        torch.save(value, path)
    except RuntimeError as error:
        raise CannotSave(f"{path.name}: {error}") from error


def load_tensors(folder: Path, name: str) -> Any:
    """Reads a `.pt` file. Only tensors, numbers and containers are accepted, so that a file cannot run code."""
    path = folder / name
    if not path.is_file():
        raise CheckpointCorrupt(f"{folder.name}: {name} is missing")
    with torch.serialization.safe_globals(_NUMPY_CONSTRUCTORS):
        return torch.load(path, map_location="cpu", weights_only=True)


def rng_name(rank: int, world: int) -> str:
    """Returns the file name of a rank's random state, as Hugging Face names it."""
    return RNG if world == 1 else f"rng_state_{rank}.pth"


def rng_states(folder: Path) -> list[Any]:
    """Returns the random states of all processes that wrote the checkpoint."""
    if (folder / RNG).exists() or not (folder / rng_name(0, 2)).exists():
        return [load_tensors(folder, RNG)]
    count = len(list(folder.glob("rng_state_*.pth")))
    return [load_tensors(folder, rng_name(rank, 2)) for rank in range(count)]


def is_sharded(folder: Path) -> bool:
    """Returns True for a sharded checkpoint, to which several processes wrote their shards."""
    return (folder / PIECES).is_dir() or (folder / OPTIMIZER_PIECES).is_dir()


def is_optimizer(name: str) -> bool:
    """Returns True if a file of a checkpoint belongs to the optimizer, by its path in the folder."""
    return name.startswith("optimizer")


def holds_model(folder: Path) -> bool:
    """Returns True if the folder holds a whole model, or the adapters of one."""
    return weights.file_in(folder) is not None or (folder / adapters.WEIGHTS).exists()


def holds_optimizer(folder: Path) -> bool:
    return (folder / (OPTIMIZER_PIECES if is_sharded(folder) else OPTIMIZER)).exists()
