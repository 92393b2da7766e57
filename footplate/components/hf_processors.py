"""Tokenizers of Hugging Face, read from a folder. Code in that folder is never run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from footplate.components.component import needs
from footplate.components.hf_loading import first_line
from footplate.contract.errors import NotBuildable, did_you_mean


@needs("transformers", extra="hf")
def tokenizer(
    *,
    path: Annotated[str, "Folder with tokenizer.json, as save_pretrained writes it"],
    padding_side: Annotated[
        Literal["left", "right"] | None, "The side of padding; null uses the tokenizer's default"
    ] = None,
    truncation_side: Annotated[
        Literal["left", "right"] | None, "The side on which texts are cut; null uses the default"
    ] = None,
    model_max_length: Annotated[int | None, "The largest number of tokens of a text; null uses the tokenizer's"] = None,
    pad_token: Annotated[str | None, "A known token to pad with, for tokenizers without a pad token"] = None,
    chat_template: Annotated[str | None, "Jinja template for conversations; null uses the tokenizer's"] = None,
) -> Any:
    """A tokenizer from a folder, with transformers' AutoTokenizer."""
    # The tokenizer's threads conflict with forked data workers, which causes a warning each time.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers import AutoTokenizer

    settings = {
        "padding_side": padding_side,
        "truncation_side": truncation_side,
        "model_max_length": model_max_length,
        "chat_template": chat_template,
    }
    options = {name: value for name, value in settings.items() if value is not None}
    try:
        processor = AutoTokenizer.from_pretrained(path, trust_remote_code=False, local_files_only=True, **options)
    except (OSError, ValueError) as error:
        raise NotBuildable(
            f"no tokenizer can be read from {Path(path).name}: {first_line(error)}",
            hint="write the tokenizer to that folder with tokenizer.save_pretrained; code in the folder is never run",
        ) from error
    if pad_token is not None:
        vocabulary = processor.get_vocab()
        if pad_token not in vocabulary:
            special = ", ".join(map(repr, processor.all_special_tokens)) or "none"
            raise NotBuildable(
                f"pad_token: the tokenizer knows no {pad_token!r}; its special tokens: {special}",
                hint=did_you_mean(pad_token, [name for name in vocabulary if not name.isalnum()]),
            )
        processor.pad_token = pad_token
    return processor


NEEDS_FAST = "use a model whose tokenizer transformers can write as tokenizer.json"
"""The hint for a tokenizer that does not report the positions of its tokens. AutoTokenizer converts all others."""


def require_tokenizer(processor: Any, component: str) -> None:
    if not callable(getattr(processor, "convert_tokens_to_ids", None)):
        existing = "none" if processor is None else type(processor).__name__
        raise NotBuildable(
            f"{component} needs a tokenizer, and the job has {existing}",
            hint='add "processor": {"use": "hf/tokenizer", "args": {"path": "models://…"}}',
        )


def require_fast_tokenizer(processor: Any, component: str, reports: str) -> None:
    require_tokenizer(processor, component)
    if not getattr(processor, "is_fast", False):
        raise NotBuildable(
            f"{component} needs a fast tokenizer: this one does not report the {reports} of its tokens", hint=NEEDS_FAST
        )


def require_chat_template(processor: Any, component: str) -> None:
    if not getattr(processor, "chat_template", None):
        raise NotBuildable(
            f"{component} needs a chat template, and the tokenizer has none",
            hint='give it one: "processor": {"use": "hf/tokenizer", "args": {"path": …, "chat_template": "{% for …"}}',
        )


def require_pad_token(processor: Any, component: str) -> None:
    require_tokenizer(processor, component)
    if getattr(processor, "pad_token", None) is None:
        end_token = getattr(processor, "eos_token", None)
        example = end_token if isinstance(end_token, str) else "…"
        raise NotBuildable(
            f"{component} pads texts, but this tokenizer has no pad token",
            hint=f'say which: "processor": {{"use": "hf/tokenizer", "args": {{"path": …, "pad_token": "{example}"}}}}',
        )
