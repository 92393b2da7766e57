"""NEFTune (arXiv:2310.05914) adds noise to embeddings in training, so that fine-tuning memorises less of its data."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn


class Handle(Protocol):
    def remove(self) -> None: ...


def activate_neftune(model: nn.Module, neftune_noise_alpha: float, accelerator: Any = None) -> Handle:
    """Adds uniform noise of ± alpha / √(length · width) to the embedding's output. The handle removes it."""
    embeddings = _embeddings(accelerator.unwrap_model(model) if accelerator is not None else model)
    embeddings.neftune_noise_alpha = neftune_noise_alpha  # type: ignore[assignment]
    return embeddings.register_forward_hook(neftune_post_forward_hook)


def deactivate_neftune(model: nn.Module, hook_handle: Handle, accelerator: Any = None) -> None:
    hook_handle.remove()
    embeddings = _embeddings(accelerator.unwrap_model(model) if accelerator is not None else model)
    if hasattr(embeddings, "neftune_noise_alpha"):
        del embeddings.neftune_noise_alpha


def neftune_post_forward_hook(module: nn.Module, input: Any, output: Tensor) -> Tensor:
    if not module.training:
        return output
    size = torch.tensor(output.size(1) * output.size(2))
    alpha: Any = module.neftune_noise_alpha
    reach = alpha / torch.sqrt(size)
    return output + torch.zeros_like(output).uniform_(-reach, reach)


def _embeddings(model: nn.Module) -> nn.Module:
    """Returns the model's input embedding, also below peft's adapters. For a plain module, its first embedding."""
    base = getattr(getattr(model, "base_model", None), "model", None)
    whole = base if base is not None and hasattr(model, "peft_config") else model
    get_input_embeddings: Any = getattr(whole, "get_input_embeddings", None)
    if get_input_embeddings is not None:
        return get_input_embeddings()  # type: ignore[no-any-return]
    embedding = next((module for module in whole.modules() if isinstance(module, nn.Embedding)), None)
    if embedding is None:
        raise ValueError(
            f"neftune_noise_alpha adds noise to embeddings, but {type(model).__name__} has none: leave it out"
        )
    return embedding
