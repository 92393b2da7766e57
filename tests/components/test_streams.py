"""Maps over streams yield the rows of an indexed dataset. A resume continues with the next row and reads none twice."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.utils.data import IterableDataset, get_worker_info

from footplate.components import maps
from footplate.contract.errors import DatasetError
from footplate.trainer.data_stream import StreamShard
from footplate.trainer.samplers import DataShard

WORDS = ["the", "film", "is", "dull", "cast", "warm", "and", "story", "moving"]
TEXTS = [" ".join(WORDS[(at * step) % 9] for step in range(1, 2 + at % 7)) for at in range(240)]
ROWS = [{"said": text, "label": ["bad", "good"][at % 2], "note": at} for at, text in enumerate(TEXTS)]


class IndexedRows(list[Any]):
    """An indexed dataset with the rows of `Stream`."""


class Stream(IterableDataset[Any]):
    """A stream that can save its position. Each loader worker reads its own share of the rows."""

    def __init__(self) -> None:
        self.at = self.start = 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        share = ROWS[info.id :: info.num_workers] if info else ROWS
        self.at, self.start = self.start, 0
        for row in share[self.at :]:
            self.at += 1
            yield row

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["at"]


def tokens(rows: Any, tokenizer: Any) -> Any:
    return maps.tokenize(maps.keep(rows, columns=["said"]), tokenizer, column="said", truncation=False)


def chatted(rows: Any, tokenizer: Any) -> Any:
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    chats = maps.mapped(rows, lambda several: [{"messages": [{"role": "user", "content": r["said"]}]} for r in several])
    return maps.chat(chats, tokenizer)


MAPS: dict[str, Callable[[Any, Any], Any]] = {
    "rename": lambda rows, _: maps.rename(rows, columns={"said": "text"}),
    "drop": lambda rows, _: maps.drop(rows, columns=["note"]),
    "labels": lambda rows, _: maps.labels(rows, None, column="label", names=["bad", "good"]),
    "tokenize": tokens,
    "chat": chatted,
    "chunk": lambda rows, tokenizer: maps.chunk(tokens(rows, tokenizer), tokenizer, block_size=16),
    "chunk of long rows": lambda rows, tokenizer: maps.chunk(tokens(rows, tokenizer), tokenizer, block_size=2),
}


@pytest.mark.parametrize("name", MAPS)
def test_a_map_gives_the_same_rows_for_a_stream_and_an_indexed_dataset(tokenizer: Any, name: str) -> None:
    by_number = MAPS[name](IndexedRows(ROWS), tokenizer)

    stream = MAPS[name](Stream(), tokenizer)

    assert [*stream] == [by_number[at] for at in range(len(by_number))]
    assert [*stream] == [by_number[at] for at in range(len(by_number))], "a second epoch must yield the same rows"


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("row_count", [1, 7, 50])
def test_a_resumed_mapped_stream_continues_with_the_next_row(tokenizer: Any, name: str, row_count: int) -> None:
    first, rows = MAPS[name](Stream(), tokenizer), []
    reading = iter(first)
    rows += [next(reading) for _ in range(row_count)]
    place = json.loads(json.dumps(first.state_dict()))

    resumed = MAPS[name](Stream(), tokenizer)
    resumed.load_state_dict(place)
    assert resumed.state_dict() == place, "a stream has its restored position before it reads the next row"

    assert [*rows, *resumed] == [*MAPS[name](Stream(), tokenizer)]


def test_each_process_reads_and_resumes_its_own_share_of_a_stream(tokenizer: Any) -> None:
    def shares() -> list[Any]:
        return [StreamShard(MAPS["chunk"](Stream(), tokenizer), DataShard(rank, 2), 3) for rank in (0, 1)]

    whole = [[*share] for share in shares()]
    begun = shares()
    reading = [iter(share) for share in begun]
    first_rows = [[next(item) for _ in range(6)] for item in reading]
    after = shares()
    for share, before in zip(after, begun, strict=True):
        share.load_state_dict(before.state_dict())

    assert [[*first, *rest] for first, rest in zip(first_rows, after, strict=True)] == whole
    all_rows = sorted(str(row) for share in whole for row in share)
    assert all_rows == sorted(str(row) for row in MAPS["chunk"](Stream(), tokenizer))


def test_an_unusable_row_of_a_mapped_stream_is_reported_by_its_number(tokenizer: Any) -> None:
    begun = maps.rename(Stream(), columns={"sayd": "text"})
    with pytest.raises(DatasetError, match=r"row 1.*'sayd'"):
        next(iter(begun))

    reading = maps.drop(Stream(), columns=["note"])
    reading.load_state_dict({"rows": {"at": 5}, "number": 5})
    unknown = maps.labels(reading, None, column="label", names=["good"])
    unknown.load_state_dict({"rows": {"rows": {"at": 6}, "number": 6}, "number": 6})
    with pytest.raises(DatasetError, match=r"row 7.*'bad'"):
        next(iter(unknown))


def test_a_map_of_a_stream_without_a_state_has_no_state_dict(tokenizer: Any) -> None:
    class Nowhere(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(ROWS)

    mapped = maps.drop(Nowhere(), columns=["note"])

    assert not hasattr(mapped, "state_dict")
    assert not hasattr(mapped, "remove_columns")
    assert pickle.loads(pickle.dumps(maps.drop(Stream(), columns=["note"]))).state_dict() == {
        "number": 0, "rows": {"at": 0},
    }  # fmt: skip
