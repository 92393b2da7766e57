"""A save before the first step, with next to nothing in it: what could not be saved is told now, and not hours later.

Every tensor is stood in for by one number, tied ones by the same, so that names, kinds and ties go through the very
code that will save them. Nothing large is written, nothing is drawn from a generator.
"""

from __future__ import annotations

import json
import logging
import shutil
import uuid
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from footplate.trainer import adapters
from footplate.trainer import checkpoint as files
from footplate.trainer.facade import Facade
from footplate.trainer.saving import saves_plainly

log = logging.getLogger("footplate.trainer")


def rehearse_saving(trainer: Facade, *, resumes: bool) -> None:
    if trainer.args.save_strategy == "no":
        return  # a callback may still ask for one; who writes nothing needs no folder
    parent = Path(trainer._get_output_dir(trial=trainer._footplate.trial))
    state = adapters.to_copy(trainer.model)
    _require_arguments(trainer.args)
    scratch = parent / f".tmp-checkpoint-0-{uuid.uuid4().hex[:8]}"
    try:
        scratch.mkdir(parents=True)
        (scratch / "written").write_text("yes")
        if saves_plainly(trainer) and not any(map(_is_in_pieces, state.values())):
            _require_space(parent, state, resumes=resumes)
            _save_stand_ins(trainer, state, scratch)
    except OSError as error:
        said = f"no checkpoint could be written to {parent}: {error}"
        if not resumes:
            advice = 'Set output_dir to a folder that can be written, or save_strategy to "no"'
            raise files.CannotSave(f"{said}. {advice}") from error
        # What it goes on from stands, and a disk may be freed by then: a save that fails is borne three times.
        log.warning("%s", said)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _require_arguments(args: Any) -> None:
    for name, value in args.to_dict().items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} goes into every checkpoint as JSON, and cannot: {error}") from error


def _save_stand_ins(trainer: Facade, state: dict[str, Any], folder: Path) -> None:
    for name, value in state.items():
        _require_plain(name, value)
    try:
        trainer._save(str(folder), state_dict=stand_ins(state))
    except OSError:
        raise
    except Exception as error:
        raise ValueError(
            f"the model, a {type(trainer.model).__name__}, cannot be saved; training it would be in vain: {error}"
        ) from error


def _require_plain(name: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, Tensor):
        what, instead = f"a {type(value).__name__} and no tensor", "let get_extra_state return a tensor"
    elif value.is_meta:
        what, instead = "on the device meta, so it has no values", "load the model before it is trained"
    elif value.layout is not torch.strided:
        what, instead = f"of the layout {value.layout}", "keep it dense, or register it with persistent=False"
    else:
        return
    raise ValueError(f"{name} of the model's state is {what}, and cannot be saved: {instead}")


def stand_ins(state: dict[str, Any]) -> dict[str, Tensor]:
    """One number for every tensor; the same one for those that are one, neighbours for parts of one storage."""
    views: dict[tuple[Any, int], dict[tuple[Any, ...], list[str]]] = {}
    for name, value in state.items():
        if isinstance(value, Tensor):
            storage = (value.device, value.untyped_storage().data_ptr() or id(value))  # empty ones lie nowhere
            view = (value.data_ptr(), value.shape, value.stride(), value.dtype)
            views.setdefault(storage, {}).setdefault(view, []).append(name)
    made: dict[str, Tensor] = {}
    for parts in views.values():
        kinds = {view[3] for view in parts}
        whole = torch.zeros(len(parts), dtype=kinds.pop()) if len(kinds) == 1 else None
        for at, (view, names) in enumerate(parts.items()):
            one = torch.zeros(1, dtype=view[3]) if whole is None else whole[at : at + 1]
            made.update(dict.fromkeys(names, one))
    return {name: made[name] for name in state if name in made}


def _require_space(parent: Path, state: dict[str, Any], *, resumes: bool) -> None:
    """For the weights, which is the least. Where a run goes on, what is there is let go of once the next one stands."""
    seen = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in _tensors(state)}
    needed, free = sum(seen.values()), shutil.disk_usage(parent).free
    if needed <= free:
        return
    said = f"a checkpoint has {needed / 1e9:.1f} GB of weights alone, and {free / 1e9:.1f} GB are free at {parent}"
    if not resumes:
        raise files.CannotSave(f"{said}: make room, or set output_dir to another disk")
    log.warning("%s: saving may fail", said)


def _tensors(state: dict[str, Any]) -> list[Tensor]:
    every = (each for each in state.values() if isinstance(each, Tensor) and not each.is_meta)
    return [each for each in every if each.layout is torch.strided]


def _is_in_pieces(value: Any) -> bool:
    """Of which this process has a part: how that is saved is its strategy's."""
    return hasattr(value, "_local_tensor") or hasattr(value, "ds_id")
