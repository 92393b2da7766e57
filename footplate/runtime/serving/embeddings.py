"""Returns a vector of length 1 for each text: an encoder's own, or else the mean of the model's last hidden states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.functional import normalize

from footplate.components.st_trainers import is_encoder
from footplate.contract.serving import ServingRequest
from footplate.runtime.serving.loaded_model import CannotAnswer, LoadedModel
from footplate.runtime.serving.texts import Clients


def embed(model: LoadedModel, request: ServingRequest, clients: Clients) -> dict[str, Any]:
    """Answers a request for embeddings with a loaded model."""
    if is_encoder(model.base):
        return _encoded(model, request, clients)
    tokenizer = model.require_tokenizer()
    rows = [list(tokenizer(text)["input_ids"]) if isinstance(text, str) else text for text in request.body["inputs"]]
    for row in rows:
        if not row:
            raise CannotAnswer("an input is empty", hint="send texts with at least one token")
        model.require_known(row)
        model.require_room(len(row))
    vectors = [vector for batch in _batches(rows, model, request, clients) for vector in _vectors(model, batch)]
    return {"vectors": vectors, "prompt_tokens": sum(map(len, rows))}


def _batches(inputs: list[Any], model: LoadedModel, request: ServingRequest, clients: Clients) -> Iterator[list[Any]]:
    """Yields the inputs in batches, until the client withdraws its request."""
    size = model.limits.max_batch
    for start in range(0, len(inputs), size):
        if clients.is_withdrawn(request.id):
            return
        yield inputs[start : start + size]
        clients.tick()


def _encoded(model: LoadedModel, request: ServingRequest, clients: Clients) -> dict[str, Any]:
    """Returns the vectors of an encoder, with the pooling and the default prompt that belong to the model."""
    encoder, texts = model.prepared, request.body["inputs"]
    counts: list[int] = []
    for text in texts:
        if not isinstance(text, str):
            raise CannotAnswer(
                "an encoder of sentence-transformers reads texts, and an input is a list of token ids",
                code="bad_input",
                hint="send the text itself",
            )
        counts.append(_count(model, encoder.prompts.get(encoder.default_prompt_name, "") + text))
        model.require_room(counts[-1])
    vectors: list[list[float]] = []
    for batch in _batches(texts, model, request, clients):
        embeddings = encoder.encode(batch, batch_size=len(batch), convert_to_tensor=True, show_progress_bar=False)
        vectors += normalize(embeddings.float(), dim=-1).tolist()
    return {"vectors": vectors, "prompt_tokens": sum(counts)}


def _count(model: LoadedModel, text: str) -> int:
    """Returns the number of tokens of a text. An encoder with static vectors has a tokenizer without a call."""
    tokenizer = model.base.tokenizer
    return len(tokenizer(text)["input_ids"] if callable(tokenizer) else tokenizer.encode(text).ids)


def _vectors(loaded: LoadedModel, rows: list[list[int]]) -> list[list[float]]:
    batch = loaded.padded(rows, on_left=False)
    model, config = loaded.prepared, loaded.config
    if config is None:
        raise CannotAnswer(
            f"a {type(loaded.base).__name__} is not from transformers, so embeddings cannot be read from it",
            code="not_a_language_model",
            hint="POST /jobs/{job}/predict answers with this model's own outputs",
        )
    if getattr(config, "is_encoder_decoder", False):
        model = loaded.base.get_encoder()
    with torch.inference_mode():
        hidden_states = model(**batch, output_hidden_states=True).hidden_states[-1].float()
    mask = batch["attention_mask"].unsqueeze(-1).float()
    means = (hidden_states * mask).sum(dim=1) / mask.sum(dim=1)
    vectors: list[list[float]] = normalize(means, dim=-1).tolist()
    return vectors
