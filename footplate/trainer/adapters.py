"""Models with peft's adapters: a checkpoint holds the adapters in peft's files, and loads them into the same model.

peft is imported only if a model has adapters.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from footplate.contract.errors import CheckpointCorrupt, listing

WEIGHTS = "adapter_model.safetensors"
REST = "beside_adapter.safetensors"
"""The file for what peft's own file does not hold: trained weights outside of the adapters, and prompt encoders."""
PROMPT_ENCODERS = "prompt_encoder."
"""The prefix of the weights from which peft computes a prompt. Its own file holds only the computed prompt."""


def are_in(model: nn.Module) -> bool:
    """Returns True if the model has adapters, from peft or from `add_adapter` of a transformers model."""
    is_pefts = hasattr(model, "base_model") and hasattr(model, "load_adapter")
    return bool(getattr(model, "peft_config", None)) and (is_pefts or getattr(model, "_hf_peft_config_loaded", False))


def base_model(model: nn.Module) -> nn.Module:
    """Returns the model inside peft's wrapper, because the wrapper's `forward` does not list the model's arguments."""
    get_base_model: Any = getattr(model, "get_base_model", None)
    if get_base_model is not None:
        return get_base_model()  # type: ignore[no-any-return]
    mixed_model: Any = getattr(model, "base_model", None)
    return mixed_model.model if are_in(model) and isinstance(getattr(mixed_model, "model", None), nn.Module) else model


def state_to_save(model: nn.Module) -> dict[str, Any]:
    """Returns the tensors that a checkpoint stores. For a model with one adapter, the frozen weights are left out."""
    state = model.state_dict()
    if not are_in(model) or len(model.peft_config) > 1:  # type: ignore[arg-type]
        return state
    frozen = {name for name, parameter in model.named_parameters(remove_duplicate=False) if not parameter.requires_grad}
    return {name: value for name, value in state.items() if name not in frozen or name.startswith(PROMPT_ENCODERS)}


def save_rest(model: nn.Module, folder: Path, state: dict[str, Any] | None = None) -> None:
    """Writes the file REST: trained weights outside of the adapters, prompt encoders, and buffers."""
    model_state = model.state_dict()
    places = {_place(tensor) for name in _names(model) for tensor in _of(model, name, model_state).values()}
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    changing = trained | {name for name, _ in model.named_buffers() if name in model_state}
    state = model_state if state is None else state
    prompts = {name for name in model_state if name.startswith(PROMPT_ENCODERS)}
    outside = {name for name in changing if _place(model_state[name]) not in places}
    if outside | prompts:
        save_file({name: state[name].detach().contiguous() for name in sorted(outside | prompts)}, folder / REST)


def _place(tensor: Tensor) -> int:
    """Returns the address of the tensor's data, or `id(tensor)` if this process holds no part of the data."""
    local: Tensor = getattr(tensor, "_local_tensor", tensor)
    return local.data_ptr() or id(tensor)


def load(model: nn.Module, folder: Path) -> None:
    """Loads every adapter of the model from the files that peft writes."""
    from peft.utils import set_peft_model_state_dict

    other_weights = load_file(folder / REST) if (folder / REST).is_file() else {}
    for name in _names(model):
        stored = _stored(model, name, folder, _of(model, name))
        if not any(key.startswith(f"{PROMPT_ENCODERS}{name}.") for key in other_weights):
            set_peft_model_state_dict(model, stored, adapter_name=name)
    if other_weights:
        model.load_state_dict(other_weights, strict=False)


def read(model: nn.Module, folder: Path) -> dict[str, Tensor]:
    """Returns the stored adapters as unsharded tensors, by their names in the model's state dict."""
    weights: dict[str, Tensor] = {}
    for name in _names(model):
        places = places_of(model, name)
        stored = _stored(model, name, folder, _of(model, name, model.state_dict()))
        weights |= {places[key]: value for key, value in stored.items()}
    return weights | (load_file(folder / REST) if (folder / REST).is_file() else {})


def places_of(model: nn.Module, name: str) -> dict[str, str]:
    """Maps each tensor name in peft's file of an adapter to the tensor's name in the model's state dict."""
    model_state = model.state_dict()
    places = {id(value): key for key, value in model_state.items()}
    of_adapter = _of(model, name, model_state)
    return {key: places[id(value)] for key, value in of_adapter.items() if id(value) in places}


def computed(model: nn.Module) -> list[str]:
    """Returns the adapters whose stored tensors are not those of the model, but computed from them by peft."""
    if not are_in(model):
        return []
    model_state = model.state_dict()
    return [name for name in _names(model) if len(places_of(model, name)) < len(_of(model, name, model_state))]


def require_places(model: nn.Module, strategy: str) -> None:
    """Raises ValueError for an adapter whose tensors peft computes.

    A sharded model is saved tensor by tensor, so such an adapter cannot be saved.
    """
    for name in computed(model):
        kind = getattr(model.peft_config[name], "peft_type", None)  # type: ignore[index]
        raise ValueError(
            f"the adapter {name!r}, a {getattr(kind, 'value', kind)}, computes its tensors when it is saved, but "
            f"{strategy} shards the model: train it with DDP or in one process"
        )


def _stored(model: nn.Module, name: str, folder: Path, current: dict[str, Tensor]) -> dict[str, Tensor]:
    path = (folder if name == "default" else folder / name) / WEIGHTS
    if not path.is_file():
        raise CheckpointCorrupt(f"{folder.name}: {path.relative_to(folder)} is missing")
    stored = load_file(path)
    if getattr(model, "_hf_peft_config_loaded", False):
        # The names in the file have the prefix of peft's wrapper, but a model of transformers has no such wrapper.
        stored = {key.removeprefix("base_model.model."): value for key, value in stored.items()}
    wrong = sorted(stored.keys() ^ current.keys())
    # Parameters that DeepSpeed has sharded have no shape here.
    wrong += [
        key for key in stored if key in current and current[key].numel() and stored[key].shape != current[key].shape
    ]
    if wrong:
        raise ValueError(
            f"{folder.name} belongs to another adapter or another model: {listing(wrong, 3)} are missing "
            "in the checkpoint or in the model, or differ in shape"
        )
    return stored


def merged(model: nn.Module) -> nn.Module:
    """Returns a copy of the model with the adapters merged into its weights, which can be used without peft."""
    if not are_in(model):
        raise ValueError(f"the model, a {type(model).__name__}, has no adapters to merge: save_model saves it as it is")
    copied: nn.Module = copy.deepcopy(model).merge_and_unload(safe_merge=True)  # type: ignore[operator]
    return copied


def _names(model: Any) -> list[str]:
    return list(model.peft_config)


def _of(model: Any, name: str, state: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Returns the tensors of the adapter `name`, by their names in peft's file."""
    from peft.utils import get_peft_model_state_dict

    return get_peft_model_state_dict(model, state_dict=state, adapter_name=name)  # type: ignore[no-any-return]
