"""Maps over streams. Each row is changed as it is read, and its position is saved, so that no row is read twice.

If a stream can save its position, with `state_dict` and `load_state_dict`, a map over it can as well. The position
includes what a map holds back, such as tokens that do not fill a block yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import IterableDataset

from footplate.components.chunking import tokens_of
from footplate.components.file_streams import FileStream
from footplate.components.rows import BadRow, Row
from footplate.contract.errors import DatasetError

State = dict[str, Any]


class StreamMap(IterableDataset[Row]):
    """A map over another stream. Subclasses define how a row is changed, and which state belongs to the position."""

    def __init__(self, rows: Any) -> None:
        self.rows, self.number = rows, 0
        self._begins_at: State | None = None

    def __iter__(self) -> Iterator[Row]:
        begins_at, self._begins_at = self._begins_at, None
        self.number = begins_at["number"] if begins_at else 0
        yield from self._restore(begins_at)
        for row in self.rows:
            self.number += 1
            yield from self._map_row(dict(row))

    def where(self) -> str:
        is_ours = isinstance(self.rows, StreamMap | FileStream)
        return self.rows.where() if is_ours else f"row {self.number} of the stream"

    def _restore(self, begins_at: State | None) -> Iterator[Row]:
        """Restores what the map held back at the saved position, and yields the rows that can be made of it at once.

        Without a saved position, the map starts empty.
        """
        return iter(())

    def _map_row(self, row: Row) -> Iterator[Row]:
        raise NotImplementedError

    def _pending_state(self) -> State:
        return {}

    def _state(self) -> State:
        if self._begins_at is not None:
            # Moved to a position but not yet read, so the position is unchanged.
            return self._begins_at
        return {"number": self.number, **self._pending_state(), "rows": self.rows.state_dict()}

    def _go_to(self, state: State) -> None:
        self._begins_at = state
        self.rows.load_state_dict(state["rows"])

    def __getattr__(self, name: str) -> Any:
        # Only methods of the stream itself. Methods that change its columns must not bypass the map.
        own = {"state_dict": "_state", "load_state_dict": "_go_to"}
        if name in own and hasattr(self.rows, name):
            return getattr(self, own[name])
        if name == "set_epoch":
            return getattr(self.rows, name)
        raise AttributeError(name)


class MappedStream(StreamMap):
    """A stream that changes each row of another stream into one row."""

    def __init__(self, rows: Any, change: Callable[[list[Row]], list[Row]]) -> None:
        super().__init__(rows)
        self.change = change

    def __len__(self) -> int:
        """Returns the stream's length, or raises TypeError if the stream has none."""
        return len(self.rows)

    def _map_row(self, row: Row) -> Iterator[Row]:
        try:
            yield self.change([row])[0]
        except BadRow as bad:
            raise DatasetError(f"{self.where()}: {bad.message}", hint=bad.hint) from None


class ChunkedStream(StreamMap):
    """Joins the tokens of all rows into blocks of one length. Tokens that fill no block yet wait for the next row."""

    def __init__(self, rows: Any, block_size: int, end: int | None) -> None:
        super().__init__(rows)
        self.block_size, self.end = block_size, end
        self.waiting: list[int] = []

    def _restore(self, begins_at: State | None) -> Iterator[Row]:
        self.waiting = list(begins_at["waiting"]) if begins_at else []
        return self._blocks()

    def _map_row(self, row: Row) -> Iterator[Row]:
        self.waiting += tokens_of(row, self.end, self.where)
        return self._blocks()

    def _blocks(self) -> Iterator[Row]:
        while len(self.waiting) >= self.block_size:
            block, self.waiting = self.waiting[: self.block_size], self.waiting[self.block_size :]
            yield {"input_ids": block, "attention_mask": [1] * self.block_size}

    def _pending_state(self) -> State:
        return {"waiting": list(self.waiting)}
