"""Changes rows for the map `answers`: finds the first and last token of each answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from footplate.components.rows import BadRow, Row, column, kind, texts, without

NOWHERE = (0, 0)
"""The index of the first token, which marks a missing answer or one that was cut off."""


@dataclass(frozen=True)
class Answers:
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
        made = []
        for at, (row, answer) in enumerate(zip(rows, column(rows, self.column), strict=True)):
            start, end = self._span(tokens, at, answer, contexts[at])
            encoded = {name: tokens[name][at] for name in tokens}
            rest = without(row, (self.question, self.context, self.column))
            made.append({**rest, **encoded, "start_positions": start, "end_positions": end})
        return made

    def _span(self, tokens: Any, at: int, answer: Any, context: str) -> tuple[int, int]:
        """Returns the first answer. Further answers are alternatives for evaluation."""
        said, starts = self._parts(answer, at)
        if not said:
            return NOWHERE
        text, begin = said[0], starts[0]
        if not text or context[begin : begin + len(text)] != text:
            raise BadRow(at, f"the answer {text[:80]!r} is not at character {begin} of {self.context!r}")
        first = tokens.char_to_token(at, begin, sequence_index=1)
        last = tokens.char_to_token(at, begin + len(text) - 1, sequence_index=1)
        return NOWHERE if first is None or last is None else (first, last)

    def _parts(self, answer: Any, at: int) -> tuple[list[str], list[int]]:
        if not isinstance(answer, dict) or not {"text", "answer_start"} <= answer.keys():
            raise BadRow(
                at,
                f"column {self.column!r} holds {kind(answer)}, and not an answer",
                hint='an answer is {"text": ["…"], "answer_start": [0]}',
            )
        said, starts = answer["text"], answer["answer_start"]
        if len(said) != len(starts):
            raise BadRow(at, f"column {self.column!r} has {len(said)} texts, and {len(starts)} places where they begin")
        return said, starts
