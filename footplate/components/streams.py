"""Maps over streams. A row is changed when it is read.

If a stream can save its position by `state_dict` and `load_state_dict`, a map over the stream can as well. The position
of a map includes data that was read but not yet yielded, such as tokens that do not fill a block.
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
    """The base of maps over streams. Subclasses change a row, and add their own state to the position."""

    def __init__(self, rows: Any) -> None:
        self.rows, self.number = rows, 0
        self._restored: State | None = None

    def __iter__(self) -> Iterator[Row]:
        restored, self._restored = self._restored, None
        self.number = restored["number"] if restored else 0
        yield from self._restore(restored)
        for row in self.rows:
            self.number += 1
            yield from self._map_row(dict(row))

    def where(self) -> str:
        is_ours = isinstance(self.rows, StreamMap | FileStream)
        return self.rows.where() if is_ours else f"row {self.number} of the stream"

    def _restore(self, state: State | None) -> Iterator[Row]:
        """Restores the map's own state, or clears it if `state` is None.

        Yields the finished rows that the state still holds, such as whole blocks of tokens.
        """
        return iter(())

    def _map_row(self, row: Row) -> Iterator[Row]:
        raise NotImplementedError

    def _pending_state(self) -> State:
        return {}

    def _state(self) -> State:
        if self._restored is not None:
            # No row was read since the position was restored.
            return self._restored
        return {"number": self.number, **self._pending_state(), "rows": self.rows.state_dict()}

    def _go_to(self, state: State) -> None:
        self._restored = state
        self.rows.load_state_dict(state["rows"])

    def __getattr__(self, name: str) -> Any:
        # The stream's other methods are hidden, because one that renames columns, for example, would bypass the map.
        method_names = {"state_dict": "_state", "load_state_dict": "_go_to"}
        if name in method_names and hasattr(self.rows, name):
            return getattr(self, method_names[name])
        if name == "set_epoch":
            return getattr(self.rows, name)
        raise AttributeError(name)


class MappedStream(StreamMap):
    """A map that changes each row of a stream into one row."""

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
    """A map that joins the tokens of all rows, and cuts them into blocks of one length."""

    def __init__(self, rows: Any, block_size: int, end: int | None) -> None:
        super().__init__(rows)
        self.block_size, self.end = block_size, end
        self.waiting: list[int] = []

    def _restore(self, state: State | None) -> Iterator[Row]:
        self.waiting = list(state["waiting"]) if state else []
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
