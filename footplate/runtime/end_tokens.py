"""Finds the tokens that end an answer, for serving sessions and for the models that a job writes."""

from __future__ import annotations

from typing import Any

_ANSWER = "footplate-answer"


def end_of_answer(tokenizer: Any) -> int | None:
    """Returns the token that the chat template writes after an answer, or None if it writes none.

    A chat model learns this token. It may differ from the tokenizer's end token, for example if a base model gets a
    template of chats.
    """
    messages = [{"role": "user", "content": "question"}, {"role": "assistant", "content": _ANSWER}]
    try:
        text = str(tokenizer.apply_chat_template(messages, tokenize=False))
    except Exception:
        # The tokenizer has no template, or the template refuses this conversation.
        return None
    suffix = text.rpartition(_ANSWER)[2].lstrip()
    added_tokens = getattr(tokenizer, "added_tokens_decoder", {})
    ends = {str(added): token for token, added in added_tokens.items() if suffix.startswith(str(added))}
    return ends[max(ends, key=len)] if ends else None


def end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """Returns the tokens that end a text, by the model's generation config, its tokenizer and its chat template."""
    of_model = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    of_tokenizer = getattr(tokenizer, "eos_token_id", None)
    return list(dict.fromkeys(_listed(of_model) + _listed(of_tokenizer) + _listed(end_of_answer(tokenizer))))


def write_end_tokens(model: Any, tokenizer: Any) -> None:
    """Writes the end tokens into the generation config, where servers such as vLLM look for them."""
    config = getattr(model, "generation_config", None)
    if config is not None and (ends := end_tokens(model, tokenizer)) != _listed(config.eos_token_id):
        config.eos_token_id = ends


def _listed(ids: Any) -> list[int]:
    return [] if ids is None else list(ids) if isinstance(ids, list | tuple) else [ids]
