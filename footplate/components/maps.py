"""Maps, which change the rows of every dataset of a job before they are collated, in the order of the spec.

A row is changed when it is read, and keeps its number, so nothing is written to disk. Only `chunk` reads all rows
before training, because a block depends on all rows before it. Maps over streams keep the stream's position
(streams.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from footplate.components.answer_tokens import AnswerTokens
from footplate.components.chunking import Chunks
from footplate.components.hf_processors import require_chat_template, require_fast_tokenizer, require_tokenizer
from footplate.components.rows import BadRow, Mapped, Row, column, is_stream, kind, require_rows, without
from footplate.components.streams import ChunkedStream, MappedStream
from footplate.components.tokenizing import Tokenize, TokenizeAnswers, TokenizeChat, TokenizeWords
from footplate.contract.errors import NotBuildable, did_you_mean

Longest = Annotated[int | None, "The largest number of tokens; longer texts are cut. null uses the tokenizer's limit"]


def tokenize(
    rows: Any,
    processor: Any,
    /,
    *,
    column: Annotated[str, "Column with the text"],
    pair: Annotated[str | None, "Column with a second text, read after the first"] = None,
    target: Annotated[str | None, "Column with the text to generate; its tokens become labels"] = None,
    prefix: Annotated[str, "Written before each text, such as T5's `summarize: `"] = "",
    max_length: Longest = None,
    max_target_length: Annotated[int | None, "The largest number of tokens of target; null uses max_length"] = None,
    truncation: Annotated[bool, "Cut longer texts; false keeps them whole"] = True,
) -> Any:
    """Replaces texts by tokens. The columns with the texts are removed, and all other columns stay."""
    require_tokenizer(processor, "tokenize")
    longest = max_target_length or max_length
    return mapped(rows, Tokenize(processor, column, pair, target, prefix, max_length, longest, truncation))


def tokenize_words(
    rows: Any,
    processor: Any,
    /,
    *,
    column: Annotated[str, "Column with a list of words"] = "tokens",
    labels: Annotated[str | None, "Column with a number for each word"] = None,
    max_length: Longest = None,
    label_every_piece: Annotated[bool, "Label all tokens of a word; false labels only its first token"] = False,
) -> Any:
    """Turns lists of words into tokens, and labels of words into labels of tokens."""
    require_fast_tokenizer(processor, "tokenize-words", "words")
    return mapped(rows, TokenizeWords(processor, column, labels, max_length, label_every_piece))


def answers(
    rows: Any,
    processor: Any,
    /,
    *,
    question: Annotated[str, "Column with the question"] = "question",
    context: Annotated[str, "Column with the text that contains the answer"] = "context",
    column: Annotated[
        str, 'Column with {"text": [answer], "answer_start": [character]}; empty lists mean no answer'
    ] = "answers",
    max_length: Longest = None,
) -> Any:
    """Turns questions and texts into tokens, and answers into positions of their first and last token (SQuAD)."""
    require_fast_tokenizer(processor, "answers", "positions")
    return mapped(rows, TokenizeAnswers(processor, question, context, column, max_length))


def chunk(
    rows: Any,
    processor: Any,
    /,
    *,
    block_size: Annotated[int, "Tokens in each block"],
    end_texts: Annotated[bool, "Put the end token between texts, if the tokenizer has one"] = True,
) -> Any:
    """Joins the tokens of all rows, and cuts them into blocks of one length. The rest at the end is dropped."""
    if block_size < 1:
        raise NotBuildable(f"chunk: block_size is {block_size}, but a block needs at least one token")
    end = getattr(processor, "eos_token_id", None) if end_texts else None
    if is_stream(rows):
        return ChunkedStream(rows, block_size, end)
    require_rows(rows)
    return Chunks(rows, block_size, end)


def chat(
    rows: Any,
    processor: Any,
    /,
    *,
    column: Annotated[str, 'Column with a list of {"role": …, "content": …}'] = "messages",
    max_length: Longest = None,
    learn: Annotated[
        Literal["all", "assistant"], "The tokens that the model learns: all, or those of the assistant"
    ] = "all",
) -> Any:
    """Turns conversations into tokens with the tokenizer's chat template."""
    require_tokenizer(processor, "chat")
    require_chat_template(processor, "chat")
    answers = AnswerTokens(processor) if learn == "assistant" else None
    return mapped(rows, TokenizeChat(processor, column, max_length, answers))


def rename(rows: Any, /, *, columns: Annotated[dict[str, str], "Old names to new ones"]) -> Any:
    """Renames columns, and keeps all others."""
    if repeated_names := [name for name, count in Counter(columns.values()).items() if count > 1]:
        raise NotBuildable(
            f"rename: two columns would both be called {repeated_names[0]!r}", hint="give each column its own name"
        )
    return mapped(rows, partial(_renamed, dict(columns)))


def _renamed(names: dict[str, str], rows: list[Row]) -> list[Row]:
    _require_columns(tuple(names), rows)
    for at, row in enumerate(rows):
        for name, new_name in names.items():
            if new_name in row and new_name not in names and new_name != name:
                existing = f"there is already a column {new_name!r}"
                detail = f"column {name!r} cannot be renamed to {new_name!r}, because {existing}"
                raise BadRow(at, detail, hint=f"remove column {new_name!r} with the map drop before the map rename")
    return [{names.get(name, name): value for name, value in row.items()} for row in rows]


def keep(rows: Any, /, *, columns: Annotated[list[str], "Names of columns"]) -> Any:
    """Keeps these columns, and removes all others."""
    return mapped(rows, partial(_kept, tuple(columns)))


def _kept(names: Sequence[str], rows: list[Row]) -> list[Row]:
    _require_columns(names, rows)
    return [{name: row[name] for name in names} for row in rows]


def drop(rows: Any, /, *, columns: Annotated[list[str], "Names of columns"]) -> Any:
    """Removes these columns from every row."""
    return mapped(rows, partial(_dropped, tuple(columns)))


def _dropped(names: Sequence[str], rows: list[Row]) -> list[Row]:
    _require_columns(names, rows)
    return [without(row, names) for row in rows]


def _require_columns(names: Sequence[str], rows: list[Row]) -> None:
    for name in names:
        column(rows, name)


def labels(
    rows: Any,
    model: Any,
    /,
    *,
    column: Annotated[str, "Column with a name, or a list of names"] = "label",
    names: Annotated[list[str] | None, "Names in the order of their numbers; null uses the model's config"] = None,
) -> Any:
    """Replaces names of classes by their numbers, and stores the names in the model's config."""
    config = getattr(model, "config", None)
    numbers_of_model = dict(getattr(config, "label2id", None) or {})
    if all(name.startswith("LABEL_") for name in numbers_of_model):
        numbers_of_model = {}  # LABEL_0, LABEL_1 and so on are not names.
    numbers = {name: at for at, name in enumerate(names)} if names is not None else numbers_of_model
    if not numbers:
        raise NotBuildable(
            "labels: the names of the classes are not known",
            hint='name them: {"use": "labels", "args": {"names": […]}}, or set labels in the args of the model',
        )
    if names is not None:
        name_classes(config, names, numbers_of_model)
    return mapped(rows, _Numbered(column, numbers))


@dataclass(frozen=True)
class _Numbered:
    """The change of the map `labels`, which replaces names of classes by their numbers."""

    column: str
    numbers: dict[str, int]

    def __call__(self, rows: list[Row]) -> list[Row]:
        values = column(rows, self.column)
        return [
            {**row, self.column: self._number(value, at)}
            for at, (row, value) in enumerate(zip(rows, values, strict=True))
        ]

    def _number(self, value: Any, at: int) -> Any:
        if isinstance(value, list):
            return [self._number(name, at) for name in value]
        # The name of a class may be a whole number, such as a rating from 1 to 5.
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            raise BadRow(at, f"column {self.column!r} holds {kind(value)}, but the name of a class is needed")
        if value not in self.numbers:
            names = ", ".join(list(self.numbers)[:20])
            raise BadRow(
                at, f"no class is named {value[:80]!r}. Known: {names}", hint=did_you_mean(value[:80], self.numbers)
            )
        return self.numbers[value]


def name_classes(config: Any, names: list[str], existing: dict[str, int]) -> None:
    """Stores class names in a model's config. Raises NotBuildable if `existing`, the names it already has, differ."""
    numbers = {name: at for at, name in enumerate(names)}
    if len(numbers) != len(names):
        repeated_name = next(name for name in names if names.count(name) > 1)
        raise NotBuildable(f"labels: the argument names has {repeated_name!r} twice", hint="name each class once")
    if existing and existing != numbers:
        existing_names = ", ".join(sorted(existing, key=existing.__getitem__))
        raise NotBuildable(
            f"labels: the model's config has other names, or another order: {existing_names}",
            hint="leave names out, or give them in this order",
        )
    classes = getattr(config, "num_labels", None)
    if classes is not None and classes < len(names):
        raise NotBuildable(
            f"labels: there are {len(names)} names, and the model has {classes} classes",
            hint=f"set num_labels to {len(names)}, or labels to these names, in the args of the model",
        )
    if config is not None and classes == len(names):
        config.id2label, config.label2id = dict(enumerate(names)), numbers


def mapped(rows: Any, change: Callable[[list[Row]], list[Row]]) -> Any:
    """Returns rows, or a stream of rows, to which the function `change` is applied when they are read."""
    return MappedStream(rows, change) if is_stream(rows) else Mapped(rows, change)
