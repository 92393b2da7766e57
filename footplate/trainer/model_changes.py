"""Changes the model for training: kernels, activation checkpointing, noise on embeddings, compilation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from footplate.trainer import adapters
from footplate.trainer.activations import checkpoint_activations, uncheckpoint_activations
from footplate.trainer.precision import compile_model

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer


@contextmanager
def changed_for_training(trainer: Trainer) -> Iterator[None]:
    """Changes the model as the arguments say. Activation checkpointing and noise end with the `with` block."""
    args, model = trainer.args, trainer.model
    align_special_tokens(model, trainer.processing_class)
    if args.use_liger_kernel:
        use_liger_kernels(model, args.liger_kernel_config, trainer._footplate.strategy.device)
    if args.activation_checkpointing:
        options = args.activation_checkpointing_kwargs
        checkpoint_activations(model, options if isinstance(options, dict) else None)
    noise = None if args.neftune_noise_alpha is None else add_noise(model, args.neftune_noise_alpha)
    if args.torch_compile:
        compile_model(model, args.torch_compile_backend, args.torch_compile_mode)
    try:
        yield
    finally:
        if noise is not None:
            noise.remove()
        if args.activation_checkpointing:
            uncheckpoint_activations(model)


def align_special_tokens(model: nn.Module, processor: Any) -> None:
    """Copies the ids of a transformers tokenizer's special tokens to the configs of a transformers model.

    `generate` and the saved model then use tokens that a script added before training.
    """
    if not hasattr(getattr(model, "config", None), "get_text_config"):
        return
    transformers = import_module("transformers")
    if isinstance(processor, (transformers.PreTrainedTokenizerBase, transformers.ProcessorMixin)):
        import_module("transformers.trainer_utils").align_special_tokens(model, processor)


def use_liger_kernels(model: nn.Module, config: dict[str, Any] | None, device: torch.device) -> None:
    """Replaces layers of a transformers model by Liger's kernels, which save memory and time.

    Results differ by rounding only. The config selects kernels, such as `rope`, `rms_norm` or `swiglu`.
    """
    base = adapters.base_model(model)
    if not hasattr(getattr(base, "config", None), "model_type"):
        raise ValueError(
            f"use_liger_kernel is for models of transformers, and {type(base).__name__} is not one: leave it out"
        )
    if device.type == "cpu":
        raise ValueError("use_liger_kernel needs a GPU, and this run is on the CPU: leave it out here")
    try:
        from liger_kernel.transformers import _apply_liger_kernel_to_instance
    except ImportError as error:
        raise ImportError("use_liger_kernel needs the extra liger: pip install 'footplate[liger]'") from error
    _apply_liger_kernel_to_instance(model=base, **(config or {}))


def add_noise(model: nn.Module, alpha: float) -> RemovableHandle:
    """Adds uniform noise of ± alpha / √(length · width) to embeddings in training, as NEFTune does (arXiv:2310.05914).

    The model then memorises less of its data. The returned handle removes the noise.
    """
    return _embeddings(model).register_forward_hook(partial(_with_noise, alpha))


def _with_noise(alpha: float, embedding: nn.Module, input: Any, output: Tensor) -> Tensor:
    if not embedding.training:
        return output
    reach: Any = alpha / torch.sqrt(torch.tensor(output.size(1) * output.size(2)))
    return output + torch.zeros_like(output).uniform_(-reach, reach)


def _embeddings(model: nn.Module) -> nn.Module:
    """Returns the model's input embedding, or a plain module's first embedding. peft's wrapper is looked through."""
    base = adapters.base_model(model)
    get_input_embeddings: Any = getattr(base, "get_input_embeddings", None)
    if get_input_embeddings is not None:
        return get_input_embeddings()  # type: ignore[no-any-return]
    embedding = next((module for module in base.modules() if isinstance(module, nn.Embedding)), None)
    if embedding is None:
        raise ValueError(
            f"neftune_noise_alpha adds noise to embeddings, but {type(model).__name__} has none: leave it out"
        )
    return embedding
