"""Changes of rows that the maps `tokenize`, `tokenize-words` and `chat` make, several rows at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from footplate.components.rows import BadRow, Row, column, kind, texts, without
from footplate.trainer.losses.labels import IGNORE


@dataclass(frozen=True)
class Tokenize:
    tokenizer: Any
    column: str
    pair: str | None
    target: str | None
    prefix: str
    max_length: int | None
    max_target_length: int | None
    truncation: bool

    def __call__(self, rows: list[Row]) -> list[Row]:
        first = [self.prefix + text for text in texts(rows, self.column)]
        second = () if self.pair is None else (texts(rows, self.pair),)
        tokens = self.tokenizer(first, *second, truncation=self.truncation, max_length=self._limit(self.max_length))
        if self.target is not None:
            said = texts(rows, self.target)
            limit = self._limit(self.max_target_length)
            tokens["labels"] = self.tokenizer(text_target=said, truncation=self.truncation, max_length=limit)[
                "input_ids"
            ]
        return _with(tokens, rows, (self.column, self.pair, self.target))

    def _limit(self, length: int | None) -> int | None:
        return length if self.truncation else None


@dataclass(frozen=True)
class TokenizeWords:
    tokenizer: Any
    column: str
    labels: str | None
    max_length: int | None
    label_every_piece: bool

    def __call__(self, rows: list[Row]) -> list[Row]:
        words = column(rows, self.column)
        for at, value in enumerate(words):
            if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
                raise BadRow(at, f"column {self.column!r} holds {kind(value)}, and a list of words is needed")
        tokens = self.tokenizer(words, is_split_into_words=True, truncation=True, max_length=self.max_length)
        if self.labels is not None:
            numbers = column(rows, self.labels)
            tokens["labels"] = [
                self._aligned(tokens.word_ids(at), labels, len(words[at]), at) for at, labels in enumerate(numbers)
            ]
        return _with(tokens, rows, (self.column, self.labels))

    def _aligned(self, pieces: list[int | None], labels: Any, words: int, at: int) -> list[int]:
        """Returns a label for each token. A word's first token has its label, and special tokens have -100."""
        if not isinstance(labels, list) or len(labels) != words:
            has = f"{len(labels)} of them" if isinstance(labels, list) else kind(labels)
            raise BadRow(at, f"column {self.labels!r} has a number for each of {words} words, and this row has {has}")
        aligned, before = [], None
        for word in pieces:
            counts = word is not None and (word != before or self.label_every_piece)
            aligned.append(labels[word] if counts and word is not None else IGNORE)
            before = word
        return aligned


@dataclass(frozen=True)
class Chat:
    tokenizer: Any
    column: str
    max_length: int | None
    assistant_alone: bool

    def __call__(self, rows: list[Row]) -> list[Row]:
        changed = []
        for at, (row, messages) in enumerate(zip(rows, column(rows, self.column), strict=True)):
            tokens = dict(self._tokens(messages, at))
            masks = tokens.pop("assistant_masks", None)
            if self.assistant_alone:
                pairs = zip(tokens["input_ids"], masks or [], strict=True)
                tokens["labels"] = [token if counts else IGNORE for token, counts in pairs]
            changed.append({**without(row, (self.column,)), **tokens})
        return changed

    def _tokens(self, messages: Any, at: int) -> Mapping[str, Any]:
        if not isinstance(messages, list) or not all(
            isinstance(message, dict) and "role" in message for message in messages
        ):
            raise BadRow(
                at,
                f"column {self.column!r} holds no conversation",
                hint='a conversation is [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]',
            )
        from jinja2 import TemplateError

        try:
            return self.tokenizer.apply_chat_template(  # type: ignore[no-any-return]
                messages,
                tokenize=True,
                return_dict=True,
                return_assistant_tokens_mask=self.assistant_alone,
                truncation=self.max_length is not None,
                max_length=self.max_length,
            )
        except TemplateError as error:
            raise BadRow(at, f"the chat template refuses this conversation: {error}") from error


def _with(tokens: Any, rows: list[Row], gone: tuple[str | None, ...]) -> list[Row]:
    made = {name: tokens[name] for name in tokens}
    return [
        {**without(row, gone), **{name: values[at] for name, values in made.items()}} for at, row in enumerate(rows)
    ]
