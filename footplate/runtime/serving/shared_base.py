"""Several adapters on one loaded model: a session answers for other jobs that trained adapters on the same base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from footplate.contract.errors import CheckpointCorrupt, NotBuildable
from footplate.contract.host.artifacts import AttemptFiles
from footplate.contract.serving import AdapterOffer
from footplate.trainer import adapters
from footplate.trainer.checkpoint import verify
from footplate.trainer.saving import averaging_optimizer

FIRST = "default"
"""The adapter of the session's own checkpoint."""
MOST = 8
"""The largest number of adapters in memory. The one that was not used for the longest time is dropped."""


class SharedBase:
    """The loaded model and its adapters, of which one is active."""

    def __init__(self, model: Any, files: AttemptFiles) -> None:
        self._model, self._files = model, files
        self._names = [FIRST]
        """The loaded adapters, in the order of their last use."""

    def use(self, offer: AdapterOffer | None) -> None:
        """Makes this adapter the active one, and loads it if needed. None is the session's own checkpoint.

        Raises CheckpointCorrupt or NotBuildable if this model cannot have the adapter.
        """
        if offer is None and len(self._names) == 1:
            return
        name = FIRST if offer is None else offer.id
        if offer is not None and name not in self._names:
            self._load(offer, name)
        self._names = [*(other_name for other_name in self._names if other_name != name), name]
        self._model.set_adapter(name)

    def _load(self, offer: AdapterOffer, name: str) -> None:
        from peft import PeftConfig
        from peft.utils import set_peft_model_state_dict
        from safetensors.torch import load_file

        folder: Path = self._files.existing(offer.path)
        verify(folder, offer.manifest_sha256)
        has_more = (folder / adapters.REST).is_file() or averaging_optimizer(folder) is not None
        if not adapters.are_in(self._model) or has_more:
            raise NotBuildable(
                "this session's model cannot be shared: it has no adapter, or the checkpoint has trained weights "
                "outside of its adapter, or weights that must be averaged",
                hint="a new session, which shares no model, can load the checkpoint",
            )
        if len(self._names) >= MOST:
            oldest_name = next(name for name in self._names if name != FIRST)
            self._model.delete_adapter(oldest_name)
            self._names.remove(oldest_name)
        self._model.add_adapter(name, PeftConfig.from_pretrained(str(folder)))
        weights = load_file(folder / adapters.WEIGHTS)
        result = set_peft_model_state_dict(self._model, weights, adapter_name=name)
        if result.unexpected_keys:
            self._model.delete_adapter(name)
            raise CheckpointCorrupt(
                f"the adapter belongs to another model: this model has no weight {result.unexpected_keys[0]}"
            )
        self._model.to(next(self._model.parameters()).device).eval()
