"""The functions of the maps `tokenize`, `tokenize-words`, `chat` and `answers`, each for several rows at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from footplate.components.answer_tokens import AnswerTokens, UnusableChat
from footplate.components.rows import BadRow, Row, column, kind, plain_messages, texts, without
from footplate.trainer.losses.labels import IGNORE

NOWHERE = (0, 0)
"""The span that marks a missing answer, or an answer that was cut off. It is the first token."""


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
        first_texts = [self.prefix + text for text in texts(rows, self.column)]
        second_texts = () if self.pair is None else (texts(rows, self.pair),)
        limit = self._limit(self.max_length)
        tokens = self.tokenizer(first_texts, *second_texts, truncation=self.truncation, max_length=limit)
        if self.target is not None:
            targets = texts(rows, self.target)
            limit = self._limit(self.max_target_length)
            labels = self.tokenizer(text_target=targets, truncation=self.truncation, max_length=limit)
            tokens["labels"] = labels["input_ids"]
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
            has = f"{len(labels)} numbers" if isinstance(labels, list) else kind(labels)
            raise BadRow(at, f"column {self.labels!r} must hold {words} numbers, one for each word, but holds {has}")
        aligned, before = [], None
        for word in pieces:
            counts = word is not None and (word != before or self.label_every_piece)
            aligned.append(labels[word] if counts and word is not None else IGNORE)
            before = word
        return aligned


@dataclass(frozen=True)
class TokenizeChat:
    tokenizer: Any
    column: str
    max_length: int | None
    answers: AnswerTokens | None
    """Finds the assistant's tokens, if the model learns only these. None: the model learns all tokens."""

    def __call__(self, rows: list[Row]) -> list[Row]:
        return [
            {**without(row, (self.column,)), **self._tokens(messages, at)}
            for at, (row, messages) in enumerate(zip(rows, column(rows, self.column), strict=True))
        ]

    def _tokens(self, messages: Any, at: int) -> Mapping[str, Any]:
        if not isinstance(messages, list) or not all(
            isinstance(message, dict) and "role" in message for message in messages
        ):
            raise BadRow(
                at,
                f"column {self.column!r} holds no conversation",
                hint='a conversation is [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]',
            )
        plain = plain_messages(messages, at, self.column, weights=self.answers is not None)
        if self.answers is not None:
            return self._answers(self.answers, plain, at)
        from jinja2 import TemplateError

        try:
            return self.tokenizer.apply_chat_template(  # type: ignore[no-any-return]
                plain,
                tokenize=True,
                return_dict=True,
                truncation=self.max_length is not None,
                max_length=self.max_length,
            )
        except TemplateError as error:
            raise BadRow(at, f"the chat template refuses this conversation: {error}") from error

    def _answers(self, answers: AnswerTokens, messages: list[Any], at: int) -> Mapping[str, Any]:
        try:
            tokens = answers(messages)
        except UnusableChat as error:
            raise BadRow(at, f"{self.column}{error}") from None
        tokens["attention_mask"] = [1] * len(tokens["input_ids"])
        row_slice = (
            slice(-(self.max_length or 0), None) if self.tokenizer.truncation_side == "left" else slice(self.max_length)
        )
        return {name: values[row_slice] for name, values in tokens.items()}


@dataclass(frozen=True)
class TokenizeAnswers:
    tokenizer: Any
    question: str
    context: str
    column: str
    max_length: int | None

    def __call__(self, rows: list[Row]) -> list[Row]:
        contexts = texts(rows, self.context)
        tokens = self.tokenizer(
            texts(rows, self.question), contexts, truncation="only_second", max_length=self.max_length
        )
        answers = column(rows, self.column)
        spans = [self._span(tokens, at, answer, contexts[at]) for at, answer in enumerate(answers)]
        tokens["start_positions"] = [start for start, _ in spans]
        tokens["end_positions"] = [end for _, end in spans]
        return _with(tokens, rows, (self.question, self.context, self.column))

    def _span(self, tokens: Any, at: int, answer: Any, context: str) -> tuple[int, int]:
        """Returns the first and the last token of the row's first answer in its context, or NOWHERE.

        Further answers of a row are alternatives for evaluation, so they are ignored.
        """
        answers, starts = self._texts_and_starts(answer, at)
        if not answers:
            return NOWHERE
        text, begin = answers[0], starts[0]
        if not text or context[begin : begin + len(text)] != text:
            raise BadRow(at, f"the answer {text[:80]!r} is not at character {begin} of {self.context!r}")
        first_token = tokens.char_to_token(at, begin, sequence_index=1)
        last_token = tokens.char_to_token(at, begin + len(text) - 1, sequence_index=1)
        return NOWHERE if first_token is None or last_token is None else (first_token, last_token)

    def _texts_and_starts(self, answer: Any, at: int) -> tuple[list[str], list[int]]:
        if not isinstance(answer, dict) or not {"text", "answer_start"} <= answer.keys():
            raise BadRow(
                at,
                f"column {self.column!r} holds {kind(answer)}, but an object with text and answer_start is needed",
                hint='for example {"text": ["…"], "answer_start": [0]}',
            )
        answers, starts = answer["text"], answer["answer_start"]
        if len(answers) != len(starts):
            raise BadRow(
                at, f"column {self.column!r} has {len(answers)} texts, but {len(starts)} values of answer_start"
            )
        return answers, starts


def _with(tokens: Any, rows: list[Row], old_names: tuple[str | None, ...]) -> list[Row]:
    columns = {name: tokens[name] for name in tokens}
    return [
        {**without(row, old_names), **{name: values[at] for name, values in columns.items()}}
        for at, row in enumerate(rows)
    ]
