"""Tries to save a checkpoint before the first step, so that a model that cannot be saved is reported at once.

Each tensor is replaced by one number, and tied tensors by the same number. The code that saves the model then sees the
real names, types and ties, but no large file is written.
"""

from __future__ import annotations

import json
import logging
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from footplate.trainer import adapters
from footplate.trainer import checkpoint as files
from footplate.trainer.overrides import Shortcut
from footplate.trainer.saving import checkpoints_folder

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer

log = logging.getLogger("footplate.trainer")


def try_saving(trainer: Trainer, *, resumes: bool) -> None:
    if trainer.args.save_strategy == "no":
        return  # a run that saves nothing needs no folder, even if a callback may request a checkpoint
    parent = checkpoints_folder(trainer)
    state = adapters.state_to_save(trainer.model)
    for name, value in trainer.args.to_dict().items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} is stored in every checkpoint as JSON, which fails: {error}") from error
    scratch = parent / f".tmp-checkpoint-0-{uuid.uuid4().hex[:8]}"
    try:
        scratch.mkdir(parents=True)
        (scratch / "written").write_text("yes")
        is_plain = trainer._footplate.overrides.allow(Shortcut.PLAIN_SAVE)
        if is_plain and not any(map(_is_sharded, state.values())):
            _require_space(parent, state, resumes=resumes)
            # peft cannot compute an adapter from stand-ins, because they do not have the shapes of the weights.
            if not adapters.computed(trainer.model):
                _save_stand_ins(trainer, state, scratch)
    except OSError as error:
        problem = f"no checkpoint could be written to {parent}: {error}"
        if not resumes:
            advice = 'Set output_dir to a folder that can be written, or save_strategy to "no"'
            raise files.CannotSave(f"{problem}. {advice}") from error
        # Only a warning, because a resumed run has a checkpoint, and the disk may be freed before the next save.
        log.warning("%s", problem)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _save_stand_ins(trainer: Trainer, state: dict[str, Any], folder: Path) -> None:
    for name, value in state.items():
        _require_plain(name, value)
    try:
        trainer._save(str(folder), state_dict=stand_ins(state))
    except OSError:
        raise
    except Exception as error:
        raise ValueError(
            f"the model, a {type(trainer.model).__name__}, cannot be saved, so training it would be useless: {error}"
        ) from error


def _require_plain(name: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, Tensor):
        problem, instead = f"a {type(value).__name__} and not a tensor", "let get_extra_state return a tensor"
    elif value.is_meta:
        problem, instead = "on the device meta, so it has no values", "load the model before it is trained"
    elif value.layout is not torch.strided:
        problem, instead = f"of the layout {value.layout}", "keep it dense, or register it with persistent=False"
    else:
        return
    raise ValueError(f"{name} of the model's state is {problem}, and cannot be saved: {instead}")


def stand_ins(state: dict[str, Any]) -> dict[str, Tensor]:
    """Returns a tensor of one number for each tensor of the state.

    Tied tensors get the same tensor, and tensors that share storage get slices of one tensor.
    """
    views: dict[tuple[Any, int], dict[tuple[Any, ...], list[str]]] = {}
    for name, value in state.items():
        if isinstance(value, Tensor):
            storage = (value.device, value.untyped_storage().data_ptr() or id(value))  # empty tensors have no address
            view = (value.data_ptr(), value.shape, value.stride(), value.dtype)
            views.setdefault(storage, {}).setdefault(view, []).append(name)
    tensors: dict[str, Tensor] = {}
    for views_of_storage in views.values():
        dtypes = {view[3] for view in views_of_storage}
        shared_tensor = torch.zeros(len(views_of_storage), dtype=dtypes.pop()) if len(dtypes) == 1 else None
        for at, (view, names) in enumerate(views_of_storage.items()):
            stand_in = torch.zeros(1, dtype=view[3]) if shared_tensor is None else shared_tensor[at : at + 1]
            tensors.update(dict.fromkeys(names, stand_in))
    return {name: tensors[name] for name in state if name in tensors}


def _require_space(parent: Path, state: dict[str, Any], *, resumes: bool) -> None:
    """Raises CannotSave if the disk has no room for the weights. A resumed run gets a warning instead."""
    tensors = [value for value in state.values() if isinstance(value, Tensor) and not value.is_meta]
    dense = [tensor.untyped_storage() for tensor in tensors if tensor.layout is torch.strided]
    storages = {storage.data_ptr(): storage.nbytes() for storage in dense}
    needed, free = sum(storages.values()), shutil.disk_usage(parent).free
    if needed <= free:
        return
    problem = f"the weights of a checkpoint need {needed / 1e9:.1f} GB, but {free / 1e9:.1f} GB are free at {parent}"
    if not resumes:
        raise files.CannotSave(f"{problem}: make room, or set output_dir to another disk")
    log.warning("%s: saving may fail", problem)


def _is_sharded(value: Any) -> bool:
    """Returns True for a tensor that is sharded over processes. Its strategy saves such a tensor."""
    return hasattr(value, "_local_tensor") or hasattr(value, "ds_id")
