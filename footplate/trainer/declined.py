"""Methods of Hugging Face's Trainer that ours does not have, each with what to use instead.

An override of such a method would never be called, and the run would silently differ. So a class that overrides
one of these methods is refused when the class is defined.
"""

from __future__ import annotations

from footplate.contract.errors import NotAvailableYet

_LOOP = "training_step, get_batch_samples or a callback: the loop itself is in footplate/trainer/loop.py"
_FILES = "_save_checkpoint, _save and _load_from_checkpoint, or a callback with state"
_STRATEGY = "the arguments of the strategy: it wraps the model"

NEVER_CALLED = {
    "_tune_save_checkpoint": "search with optuna: Ray Tune is not supported",
    "_init_training_state": _LOOP,
    "_prepare_for_training": "create_optimizer, create_scheduler and create_accelerator_and_postprocess",
    "_run_epoch": _LOOP,
    "_finalize_training": "a callback's on_train_end",
    "_maybe_log_save_evaluate": "log, evaluate, _save_checkpoint, or a callback that sets the control",
    "_update_auto_batch_size": _LOOP,
    "_track_num_input_tokens": "include_num_input_tokens_seen, or a callback",
    "_clip_grad_norm": "a callback's on_pre_optimizer_step, with max_grad_norm=0",
    "_get_grad_norm": "a callback's on_pre_optimizer_step",
    "_mixed_mesh_grad_norm": _STRATEGY,
    "_has_mixed_mesh_grads": _STRATEGY,
    "_wrap_model": _STRATEGY,
    "_prepare_context_parallel_inputs": _STRATEGY,
    "_defer_fsdp_gradient_reduction": _STRATEGY,
    "_sync_replicated_trainable_parameters": _STRATEGY,
    "_move_model_to_device": _STRATEGY,
    "_save_rng_state": _FILES,
    "_save_optimizer_and_scheduler": _FILES,
    "_save_scaler": _FILES,
    "_load_rng_state": _FILES,
    "_load_scaler": _FILES,
    "_issue_warnings_after_load": _FILES,
}
"""Private methods. The Trainer never calls them, so an override has no effect."""


def refuse_overrides(subclass: type) -> None:
    """Raises NotAvailableYet if a subclass overrides a method that the Trainer never calls, or defines `_footplate`."""
    for kind in subclass.__mro__:
        if kind.__module__.startswith("footplate.trainer."):
            continue
        for name, instead in NEVER_CALLED.items():
            if name in vars(kind):
                raise NotAvailableYet(
                    f"{kind.__name__} overrides {name}, which this Trainer never calls", hint=f"instead: {instead}"
                )
        if "_footplate" in vars(kind):
            raise NotAvailableYet(
                f"{kind.__name__} defines a name that this Trainer uses for its own state: _footplate",
                hint="give it another name",
            )
