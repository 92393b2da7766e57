"""The loaded model of a serving session, with its tokenizer and its limits, and other jobs' adapters on that model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from footplate.contract.errors import CheckpointCorrupt, FootplateError, NotBuildable
from footplate.contract.host.artifacts import AttemptFiles
from footplate.contract.serving import AdapterOffer
from footplate.contract.spec import JobSpec
from footplate.contract.spec_parts import Serve
from footplate.trainer import adapters
from footplate.trainer.checkpoint import verify
from footplate.trainer.collators.padding import pad_rows
from footplate.trainer.losses.labels import require_labels
from footplate.trainer.resuming import averaging_optimizer
from footplate.trainer.trainer import Trainer

IDS = ("input_ids", "decoder_input_ids", "token_type_ids")
"""The columns of a batch whose numbers are rows of an embedding."""
FIRST_ADAPTER = "default"
"""The adapter of the session's own checkpoint."""
MOST_ADAPTERS = 8
"""The largest number of adapters in memory. The one that was not used for the longest time is dropped."""


class CannotAnswer(FootplateError):
    """The model cannot answer this request. Another request may work."""

    code = "cannot_answer"
    status = 422
    title = "The model cannot answer this"

    def __init__(self, message: str, *, code: str = "cannot_answer", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


@dataclass(frozen=True)
class LoadedModel:
    """The model of a session, ready for evaluation, with the tokenizer, the limits and the rest that requests need."""

    spec: JobSpec
    limits: Serve
    trainer: Trainer
    prepared: Any
    """The model, prepared for evaluation on its device."""
    tokenizer: Any
    """The job's processor, which may be None or not a tokenizer."""

    @property
    def base(self) -> Any:
        """The model without peft's wrapper."""
        return adapters.base_model(self.prepared)

    @property
    def config(self) -> Any:
        return getattr(self.base, "config", None)

    @property
    def device(self) -> torch.device:
        return self.trainer._footplate.strategy.device

    @cached_property
    def context_length(self) -> int | None:
        """The largest number of tokens that the model can read, or None if it has no limit."""
        # An encoder of sentence-transformers would cut longer texts.
        if isinstance(own_length := getattr(self.base, "max_seq_length", None), int):
            return own_length
        config = getattr(self.config, "text_config", self.config)
        length = getattr(config, "max_position_embeddings", None)
        if not isinstance(length, int) or length <= 0:
            return None
        # RoBERTa and its relatives count positions from the one after that of the padding.
        padding = [
            module.padding_idx
            for name, module in self.base.named_modules()
            if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None
        ]
        return length - padding[0] - 1 if padding else length

    def require_tokenizer(self) -> Any:
        if not callable(getattr(self.tokenizer, "convert_tokens_to_ids", None)):
            raise CannotAnswer(
                "the job has no tokenizer, so this model cannot read texts",
                code="no_tokenizer",
                hint="POST /jobs/{job}/predict takes rows with the columns of the job's data",
            )
        return self.tokenizer

    def require_room(self, tokens: int, answer: int = 0) -> None:
        """Raises CannotAnswer if the model cannot read an input and an answer with these numbers of tokens."""
        length = self.context_length
        if length is not None and tokens + answer > length:
            sizes = f"the input has {tokens:,} tokens" if tokens > length or not answer else (
                f"the input and the answer have {tokens:,} and {answer:,} tokens"
            )  # fmt: skip
            raise CannotAnswer(
                f"{sizes}, and this model reads at most {length:,}",
                code="context_length_exceeded",
                hint="send a shorter text" + (", or set a lower max_tokens" if answer > 1 else ""),
            )

    @cached_property
    def vocabulary(self) -> int | None:
        """The number of tokens that the model has, or None if it has no embeddings of tokens."""
        try:
            return int(self.base.get_input_embeddings().weight.shape[0])
        except (AttributeError, NotImplementedError):
            return None

    @property
    def padding(self) -> int:
        """The token at places that the mask hides: the tokenizer's, or 0 if the model does not have that token."""
        token: int = getattr(self.tokenizer, "pad_token_id", None) or 0
        return token if 0 <= token < (self.vocabulary or 0) else 0

    def require_known(self, tokens: Sequence[int]) -> None:
        """Raises CannotAnswer for a token that the model does not have. On a GPU it would end the whole session."""
        if self.vocabulary is not None:
            _require_below(self.vocabulary, tokens, "token")

    def require_in_range(self, batch: Mapping[str, Any]) -> None:
        """Raises CannotAnswer for ids in a batch that the model does not have, and DatasetError for such labels."""
        ids = {name: batch[name].flatten().tolist() for name in IDS if isinstance(batch.get(name), Tensor)}
        self.require_known([*ids.get("input_ids", ()), *ids.get("decoder_input_ids", ())])
        # DeBERTa has a size of 0 and ignores the types.
        if types := getattr(self.config, "type_vocab_size", None):
            _require_below(types, ids.get("token_type_ids", ()), "token type")
        require_labels(batch, self.base, self.trainer.label_names)

    def padded(self, rows: Sequence[Sequence[int]], *, on_left: bool) -> dict[str, Tensor]:
        """Returns the tokens of several texts as one batch, and the mask of its padding."""
        width, side = max(map(len, rows)), "left" if on_left else "right"
        ids = pad_rows(rows, width, self.padding, side)
        mask = pad_rows([[1] * len(row) for row in rows], width, 0, side)
        return {"input_ids": ids.to(self.device), "attention_mask": mask.to(self.device)}


class SharedBase:
    """A loaded model and its adapters, of which one is active: the session's own, or one of another job."""

    def __init__(self, model: Any, files: AttemptFiles) -> None:
        self._model, self._files = model, files
        self._names = [FIRST_ADAPTER]
        """The loaded adapters, in the order of their last use."""

    def use(self, offer: AdapterOffer | None) -> None:
        """Makes this adapter the active one, and loads it if needed. None is the session's own checkpoint.

        Raises CheckpointCorrupt or NotBuildable if this model cannot have the adapter.
        """
        if offer is None and len(self._names) == 1:
            return
        name = FIRST_ADAPTER if offer is None else offer.id
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
        if len(self._names) >= MOST_ADAPTERS:
            oldest_name = next(name for name in self._names if name != FIRST_ADAPTER)
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


def _require_below(count: int, numbers: Sequence[int], name: str) -> None:
    if unknown_numbers := [number for number in numbers if not 0 <= number < count]:
        detail = f"the input has the {name} {unknown_numbers[0]}, but this model's {name}s are 0 to {count - 1}"
        raise CannotAnswer(detail, code="bad_token")
