"""Models with peft's adapters: what is saved is the adapters, in peft's files, and they come back into what is there.

peft is not imported here until a model has some.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from footplate.contract.errors import CheckpointCorrupt

WEIGHTS = "adapter_model.safetensors"
REST = "beside_adapter.safetensors"
"""What training changes of the model below its adapters, where there is such: peft's own file does not hold it."""


def are_in(model: nn.Module) -> bool:
    """Put there by peft, or by a model of transformers' own `add_adapter`."""
    is_pefts = hasattr(model, "base_model") and hasattr(model, "load_adapter")
    return bool(getattr(model, "peft_config", None)) and (is_pefts or getattr(model, "_hf_peft_config_loaded", False))


def without(model: nn.Module) -> nn.Module:
    """The model that has them: theirs takes anything and says nothing."""
    get_base_model: Any = getattr(model, "get_base_model", None)
    if get_base_model is not None:
        return get_base_model()  # type: ignore[no-any-return]
    mixed: Any = getattr(model, "base_model", None)
    return mixed.model if are_in(model) and isinstance(getattr(mixed, "model", None), nn.Module) else model


def to_copy(model: nn.Module) -> dict[str, Any]:
    """What a save in the background has to hold still: of one adapter, all but the model's own frozen weights."""
    state = model.state_dict()
    if not are_in(model) or len(model.peft_config) > 1:  # type: ignore[arg-type]
        return state
    frozen = {name for name, each in model.named_parameters(remove_duplicate=False) if not each.requires_grad}
    return {name: value for name, value in state.items() if name not in frozen}


def save_rest(model: nn.Module, folder: Path, state: dict[str, Any] | None = None) -> None:
    """What is trained and is in no adapter, and buffers such as a norm's running mean: a resume needs them too."""
    rest = _rest(model, state)
    if rest:
        save_file({name: each.detach().contiguous() for name, each in rest.items()}, folder / REST)


def _rest(model: nn.Module, state: dict[str, Any] | None = None) -> dict[str, Tensor]:
    own = model.state_dict()
    held = {_place(each) for name in _names(model) for each in _of(model, name, own).values()}
    trained = {name for name, each in model.named_parameters() if each.requires_grad}
    changing = trained | {name for name, _ in model.named_buffers() if name in own}
    state = own if state is None else state
    return {name: state[name] for name in sorted(changing) if _place(own[name]) not in held}


def _place(tensor: Tensor) -> int:
    """In memory: of what this process has of it, which may be nothing."""
    local: Tensor = getattr(tensor, "_local_tensor", tensor)
    return local.data_ptr() or id(tensor)


def load(model: nn.Module, folder: Path) -> None:
    """Every adapter that the model has, from where peft puts it."""
    from peft.utils import set_peft_model_state_dict

    for name in _names(model):
        set_peft_model_state_dict(model, _stored(model, name, folder, _of(model, name)), adapter_name=name)
    if (folder / REST).is_file():
        model.load_state_dict(load_file(folder / REST), strict=False)


def read(model: nn.Module, folder: Path) -> dict[str, Tensor]:
    """What the folder holds, under the names of the model's own state: whole, for who has a piece of each."""
    found: dict[str, Tensor] = {}
    for name in _names(model):
        places = places_of(model, name)
        stored = _stored(model, name, folder, _of(model, name, model.state_dict()))
        found |= {places[key]: value for key, value in stored.items()}
    return found | (load_file(folder / REST) if (folder / REST).is_file() else {})


def places_of(model: nn.Module, name: str) -> dict[str, str]:
    """Where in the model's own state an adapter's tensors are, by their names in peft's file."""
    own = model.state_dict()
    places = {id(value): each for each, value in own.items()}
    of_adapter = _of(model, name, own)
    return {key: places[id(value)] for key, value in of_adapter.items() if id(value) in places}


def require_places(model: nn.Module, strategy: str) -> None:
    """Some kinds of adapters are computed as they are saved, which needs all of them in one process."""
    if not are_in(model):
        return
    for name in _names(model):
        if len(places_of(model, name)) < len(_of(model, name, model.state_dict())):
            kind = getattr(model.peft_config[name], "peft_type", None)  # type: ignore[index]
            raise ValueError(
                f"the adapter {name!r}, a {getattr(kind, 'value', kind)}, is computed as it is saved, and {strategy} "
                "cuts a model into pieces: train it with DDP or in one process"
            )


def _stored(model: nn.Module, name: str, folder: Path, own: dict[str, Tensor]) -> dict[str, Tensor]:
    path = (folder if name == "default" else folder / name) / WEIGHTS
    if not path.is_file():
        raise CheckpointCorrupt(f"{folder.name}: {path.relative_to(folder)} is missing")
    stored = load_file(path)
    if getattr(model, "_hf_peft_config_loaded", False):
        # transformers writes what peft would have; the model has no such hull.
        stored = {key.removeprefix("base_model.model."): value for key, value in stored.items()}
    wrong = sorted(stored.keys() ^ own.keys())
    # Of one that DeepSpeed has cut, nothing is here that has a shape.
    wrong += [key for key in stored if key in own and own[key].numel() and stored[key].shape != own[key].shape]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise ValueError(
            f"{folder.name} is of another adapter, or of another model: {', '.join(wrong[:3])}{more} are missing "
            "on one side or have another shape"
        )
    return stored


def merged(model: nn.Module) -> nn.Module:
    """A copy of the model with its adapters worked into its weights: nobody needs peft to use it."""
    if not are_in(model):
        raise ValueError(f"the model, a {type(model).__name__}, has no adapters to merge: save_model saves it as it is")
    made: nn.Module = copy.deepcopy(model).merge_and_unload(safe_merge=True)  # type: ignore[operator]
    return made


def _names(model: Any) -> list[str]:
    return list(model.peft_config)


def _of(model: Any, name: str, state: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """One adapter's tensors, under the names that peft's file has."""
    from peft.utils import get_peft_model_state_dict

    return get_peft_model_state_dict(model, state_dict=state, adapter_name=name)  # type: ignore[no-any-return]
