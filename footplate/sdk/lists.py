"""The lists that the SDK returns. Some load their pages as needed, and all are shown as tables in a notebook."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from itertools import count
from typing import Any, Generic, TypeVar, overload

from footplate.errors import Unreachable
from footplate.sdk.notebook import optional
from footplate.sdk.wire import run

T = TypeVar("T")
SHOWN = 20


class Rows(list[dict[str, Any]]):
    """A job's metrics: a list with a dict for each log and each evaluation."""

    def to_pandas(self) -> Any:
        """Returns a pandas DataFrame with a column for each metric."""
        return optional("pandas", "to_pandas()").DataFrame(list(self))

    def to_polars(self) -> Any:
        """Returns a polars DataFrame with a column for each metric."""
        return optional("polars", "to_polars()").DataFrame(list(self), infer_schema_length=None)


class Table(list[T]):
    """A list that a notebook shows as a table."""

    def __init__(self, items: Sequence[T], html: Callable[[Sequence[T]], str]) -> None:
        super().__init__(items)
        self._html = html

    def _repr_html_(self) -> str:
        return self._html(self)


class _Pages(Generic[T]):
    """The loaded items of a list whose pages are requested as they are needed."""

    def __init__(self, items: AsyncGenerator[T, None], html: Callable[[Sequence[T]], str]) -> None:
        self._items, self._html = items, html
        self._loaded, self._next = list[T](), 0
        self._is_interrupted = False

    async def _load(self, needed: int | None) -> None:
        """Loads the first `needed` items, or all items if `needed` is None.

        Refuses to load more after an error, which has ended the items' generator. The list would look complete.
        """
        while needed is None or len(self._loaded) < needed:
            if self._is_interrupted:
                raise Unreachable(
                    f"only {len(self._loaded)} items of this list were loaded, because a request failed or was "
                    "interrupted",
                    hint="request the list again",
                )
            try:
                self._loaded.append(await anext(self._items))
            except StopAsyncIteration:
                return
            except BaseException:
                self._is_interrupted = True
                raise


class Listing(_Pages[T], Sequence[T]):
    """A list that loads its pages as they are needed. `len()` and negative indices load all of them."""

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        ends = (index.start, index.stop) if isinstance(index, slice) else (index, index + 1)
        is_backwards = isinstance(index, slice) and (index.step or 1) < 0
        needs_all = is_backwards or any(end is not None and end < 0 for end in ends) or ends[1] is None
        run(self._load(None if needs_all else ends[1]))
        return self._loaded[index]

    def __len__(self) -> int:
        run(self._load(None))
        return len(self._loaded)

    def __bool__(self) -> bool:
        run(self._load(1))
        return bool(self._loaded)

    def __iter__(self) -> Iterator[T]:
        # Sequence's own loop would take an IndexError of a request for the end of the list.
        for index in count():
            run(self._load(index + 1))
            if index == len(self._loaded):
                return
            yield self._loaded[index]

    def __next__(self) -> T:
        """Returns the next item of the list. `next(client.jobs.list())` is the newest job."""
        run(self._load(self._next + 1))
        if self._next == len(self._loaded):
            raise StopIteration
        self._next += 1
        return self._loaded[self._next - 1]

    def __repr__(self) -> str:
        first_items = self[: SHOWN + 1]
        lines = [f"  {item!r}," for item in first_items[:SHOWN]] + (["  …"] if len(first_items) > SHOWN else [])
        return "\n".join(["[", *lines, "]"]) if lines else "[]"

    def _repr_html_(self) -> str:
        first_items = self[: SHOWN + 1]
        return self._html(first_items[:SHOWN]) + (f"<p>… the first {SHOWN}</p>" if len(first_items) > SHOWN else "")


class AsyncListing(_Pages[T]):
    """A list for `async for`, page by page. `await` loads all of it. Each loop begins with the first item."""

    async def __aiter__(self) -> AsyncGenerator[T, None]:
        for index in count():
            await self._load(index + 1)
            if index == len(self._loaded):
                return
            yield self._loaded[index]

    async def __anext__(self) -> T:
        await self._load(self._next + 1)
        if self._next == len(self._loaded):
            raise StopAsyncIteration
        self._next += 1
        return self._loaded[self._next - 1]

    def __await__(self) -> Generator[Any, None, Table[T]]:
        return self._all().__await__()

    async def _all(self) -> Table[T]:
        await self._load(None)
        return Table(self._loaded, self._html)

    async def aclose(self) -> None:
        await self._items.aclose()
