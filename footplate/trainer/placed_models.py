"""Sets the Trainer's model, and moves it to the device unless it was split over devices or quantized when loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from footplate.trainer import adapters
from footplate.trainer.model_signature import ModelSignature

if TYPE_CHECKING:
    from footplate.trainer.arguments import TrainingArguments
    from footplate.trainer.trainer import Trainer


def set_model(trainer: Trainer, model: nn.Module) -> None:
    """Sets the Trainer's model, and moves it to the device if allowed."""
    require_a_model(model)
    refuse_quantized(model)
    internals, args = trainer._footplate, trainer.args
    strategy = internals.strategy
    trainer.is_model_parallel = is_model_parallel(model, strategy.device)
    trainer.place_model_on_device = strategy.moves_model = may_move(model, args, strategy.device)
    trainer.model = trainer.model_wrapped = strategy.place(model) if trainer.place_model_on_device else model
    internals.model_signature = ModelSignature.of(model)
    internals.model_divides_by_items = None
    config: Any = getattr(model, "config", None)
    if config is not None and hasattr(config, "__dict__"):
        config.use_cache = args.use_cache


def set_attributes_of_the_model(trainer: Trainer) -> None:
    """Sets the attributes that the model's class decides. A subclass may change them after `Trainer.__init__`.

    So a new model of `model_init` does not set them again.
    """
    signature, names = trainer._footplate.model_signature, trainer.args.label_names
    trainer.model_accepts_loss_kwargs = signature.takes_loss_arguments
    trainer._loss_shifts_labels = signature.counts_shifted
    trainer.can_return_loss = signature.can_return_loss
    trainer.label_names = list(signature.labels) if names is None else names


def may_move(model: nn.Module, args: TrainingArguments, device: torch.device) -> bool:
    """Returns True if the Trainer may move the model to its device.

    `place_model_on_device` decides if it is set, but packed 8-bit models and models with a device map never move.
    """
    by_bits = getattr(model, "is_loaded_in_8bit", False) or getattr(model, "is_loaded_in_4bit", False)
    is_packed = by_bits or getattr(model, "quantization_method", None) == "bitsandbytes"
    if is_packed or getattr(model, "hf_device_map", None) is not None:
        return False
    is_requested = args.place_model_on_device
    return not is_model_parallel(model, device) if is_requested is None else is_requested


def is_model_parallel(model: nn.Module, device: torch.device) -> bool:
    """Returns True if the model is on several devices, or on another device than the one that this process uses."""
    if getattr(model, "is_parallelizable", False) and getattr(model, "model_parallel", False):
        return True
    device_map: Any = getattr(model, "hf_device_map", None) or {}
    kind = "cuda" if device.type == "cpu" else device.type
    device_names = {f"{kind}:{place}" if isinstance(place, int) else str(place) for place in device_map.values()} - {
        "cpu",
        "disk",
    }
    devices = {torch.device(name) for name in device_names}
    return len(devices) > 1 or (len(devices) == 1 and devices.pop() != device)


def require_a_model(model: Any) -> None:
    if isinstance(model, type) or not hasattr(model, "parameters"):
        description = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise TypeError(
            f"the model is {description}: pass a torch.nn.Module, or a function that makes one as model_init"
        )


def refuse_quantized(model: nn.Module) -> None:
    """Refuses quantized weights that cannot be trained. Most have no gradients, and need an adapter on top of them."""
    if not getattr(model, "is_quantized", False) or adapters.are_in(model):
        return
    quantizer: Any = getattr(model, "hf_quantizer", None)
    if not getattr(quantizer, "is_qat_trainable", False):
        raise ValueError(
            f"the model, a {type(model).__name__}, is quantized, and quantized weights cannot be trained: put an "
            "adapter on it with peft.get_peft_model, or load it without quantization"
        )
    if not quantizer.is_trainable:
        raise ValueError(
            f"the model is quantized by {quantizer.quantization_config.quant_method}, which does not support training: "
            "load it with another method, or without quantization"
        )
