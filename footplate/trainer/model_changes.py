"""Changes to the model for the time of a run: kernels, activation checkpointing, NEFTune, compilation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from footplate.trainer.activations import checkpoint_activations, uncheckpoint_activations
from footplate.trainer.facade import Facade
from footplate.trainer.liger import use_liger_kernels
from footplate.trainer.neftune import activate_neftune, deactivate_neftune
from footplate.trainer.precision import compile_model


@contextmanager
def changed_for_training(trainer: Facade) -> Iterator[None]:
    """Changes the model inside the `with` block, and restores it. Compiled code and kernels remain afterwards."""
    args, model = trainer.args, trainer.model
    if args.use_liger_kernel:
        use_liger_kernels(model, args.liger_kernel_config, trainer._footplate.strategy.device)
    if args.activation_checkpointing:
        checkpoint_activations(model, _options(args.activation_checkpointing_kwargs))
    noise = None if args.neftune_noise_alpha is None else activate_neftune(model, args.neftune_noise_alpha)
    if args.torch_compile:
        compile_model(model, args.torch_compile_backend, args.torch_compile_mode)
    try:
        yield
    finally:
        if noise is not None:
            deactivate_neftune(model, noise)
        if args.activation_checkpointing:
            uncheckpoint_activations(model)


def _options(kwargs: object) -> dict[str, object]:
    return dict(kwargs) if isinstance(kwargs, dict) else {}
