"""The rows of the map `chunk`: blocks of tokens. Tokens are kept in a temporary file, after all rows were read once."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy

from footplate.components.rows import Row, copy_rows, where
from footplate.contract.errors import DatasetError

AT_ONCE = 1000


class Chunks:
    """Rows that are blocks of equal length. The file has four bytes per token, and all data workers share it."""

    def __init__(self, rows: Any, block_size: int, end: int | None) -> None:
        self.rows, self.block_size = rows, block_size
        with tempfile.TemporaryFile(prefix="tokens-") as file:
            total = 0
            for tokens in _tokens(rows, end):
                file.write(tokens.tobytes())
                total += len(tokens)
            file.flush()
            self.blocks = total // block_size
            if self.blocks == 0:
                raise DatasetError(
                    f"chunk: all rows together have {total} tokens, but one block needs {block_size}",
                    hint="use a smaller block_size, or more text",
                )
            # The memory map can be used after the temporary file was closed and deleted.
            self.tokens = numpy.memmap(file, dtype=numpy.int32, mode="r", shape=(self.blocks, block_size))

    def __len__(self) -> int:
        return self.blocks

    def __getitem__(self, index: int) -> Row:
        return {"input_ids": self.tokens[index].tolist(), "attention_mask": [1] * self.block_size}

    def where(self, index: int) -> str:
        return f"block {index}"


def _tokens(rows: Any, end: int | None) -> Iterator[Any]:
    for start in range(0, len(rows), AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, len(rows)))
        copies = copy_rows(rows, numbers)
        for number, row in zip(numbers, copies, strict=True):
            tokens = tokens_of(row, end, partial(where, rows, number))
            yield numpy.asarray(tokens, dtype=numpy.int32)


def tokens_of(row: Row, end: int | None, where: Callable[[], str]) -> list[int]:
    """Returns the row's tokens. The token `end`, if it is not None, is added unless the tokens already end with it."""
    if "input_ids" not in row:
        raise DatasetError(
            f"{where()}: chunk needs the column input_ids, and this row has only: {', '.join(row)}",
            hint='put {"use": "tokenize", "args": {"column": …, "truncation": false}} before it',
        )
    tokens = list(row["input_ids"])
    return tokens if end is None or (tokens and tokens[-1] == end) else [*tokens, end]
