"""Prepares conversations for TRL's SFTTrainer with `assistant_only_loss`, also if messages have weights.

TRL itself needs a chat template with marks, and ignores the weights of messages. So the rows are tokenized here. TRL
only cuts rows that already have `input_ids` and `labels` at `max_length`.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from footplate.components.answer_tokens import AnswerTokens, UnusableChat, is_marked
from footplate.components.hf_datasets import as_dataset
from footplate.components.notes import note
from footplate.components.rows import BadRow, Row, where
from footplate.contract.conversations import Message
from footplate.contract.errors import DatasetError
from footplate.trainer.losses.labels import IGNORE


def with_answers_to_learn(rows: Any, name: str, processor: Any, config: Any) -> Any:
    """Returns conversations as a dataset of tokens and labels. `config` is TRL's SFTConfig.

    Notes for the user begin with the dataset's `name`. Raises DatasetError for the first row whose tokens to learn
    cannot be found, and if `max_length` cuts off the tokens to learn of all rows.
    """
    find = AnswerTokens(processor, _template_of_trl(processor))
    begins_at_completion = config.completion_only_loss is not False
    dataset = as_dataset(rows)
    change = partial(_tokenized, find=find, cut=_kept_part(config), begins_at_completion=begins_at_completion)
    try:
        tokenized = dataset.map(change, with_indices=True, remove_columns=dataset.column_names)
    except BadRow as bad:
        raise DatasetError(f"{where(rows, bad.at)}: {bad.message}") from None
    cut, is_lost = sum(tokenized["is_cut"]), tokenized["is_lost"]
    if all(is_lost):
        detail = f"{name}: max_length={config.max_length} cuts off all words of the assistant in every conversation"
        raise DatasetError(detail, hint="raise training.max_length, or shorten what comes before the answers")
    if cut and config.process_index == 0:
        note(_sentence(rows, name, config, cut, is_lost))
    return tokenized.remove_columns(["is_cut", "is_lost"])


def _tokenized(row: Row, index: int, *, find: AnswerTokens, cut: slice | None, begins_at_completion: bool) -> Row:
    prompt = row.get("prompt") or []
    tools = row.get("tools")
    try:
        encoded = find(
            _messages(row),
            begin=len(prompt) if begins_at_completion else 0,
            tools=(json.loads(tools) if isinstance(tools, str) else tools) or None,
            **(row.get("chat_template_kwargs") or {}),
        )
    except UnusableChat as error:
        raise BadRow(index, f"messages{error}") from None
    labels = encoded["labels"] if cut is None else encoded["labels"][cut]
    is_lost = all(label == IGNORE for label in labels)
    return {**encoded, "is_cut": len(labels) < len(encoded["labels"]), "is_lost": is_lost}


def _messages(row: Row) -> list[Message]:
    if turns := row.get("conversations"):
        return [{"role": message["from"], "content": message["value"]} for message in turns]
    return row.get("messages") or [*row["prompt"], *row["completion"]]


def _template_of_trl(processor: Any) -> str | None:
    """Returns the template with marks that TRL has for the processor's template, or None."""
    if is_marked(processor.chat_template):
        return None
    from jinja2 import TemplateError
    from trl.chat_template_utils import get_training_chat_template

    try:
        return get_training_chat_template(processor)  # type: ignore[no-any-return]
    except (ValueError, TypeError, TemplateError):
        return None


def _kept_part(config: Any) -> slice | None:
    """Returns the part of a row that TRL keeps, or None for all of it. Packing keeps all, except the strategy "bfd"."""
    if config.max_length is None or (config.packing and config.packing_strategy != "bfd"):
        return None
    return slice(-config.max_length, None) if config.truncation_mode == "keep_end" else slice(config.max_length)


def _sentence(rows: Any, name: str, config: Any, cut: int, is_lost: list[bool]) -> str:
    side = "beginning" if config.truncation_mode == "keep_end" else "end"
    sentence = (
        f"{name}: {cut:,} of {len(is_lost):,} conversations have more than max_length={config.max_length:,} tokens "
        f"and are cut at the {side}"
    )
    if any(is_lost):
        place = where(rows, is_lost.index(True))
        sentence += f"; {sum(is_lost):,} of them lose all words of the assistant and are left out, the first is {place}"
    return sentence
