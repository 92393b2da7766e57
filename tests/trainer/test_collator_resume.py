"""Tests that a run whose collator has a random generator resumes bit-identically, also with loader workers."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info
from transformers.data import data_collator as theirs

from footplate.trainer import collators as ours
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.trainer import Trainer
from tests.support.training import Events, StopAt, digest
from tests.trainer.parts.tokenizers import WORDS, bert, t5

SIZE = 64
ROWS = [{"input_ids": [7 + (row + place) % 20 for place in range(9 + row % 4)]} for row in range(14)]


class Tagger(torch.nn.Module):
    """Predicts each label from its token alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(SIZE, SIZE)

    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None) -> dict[str, torch.Tensor]:
        width = min(input_ids.shape[1], labels.shape[1])
        scores = self.table(input_ids[:, :width])
        return {"loss": torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels[:, :width].flatten())}


class Arrays(theirs.DataCollatorForLanguageModeling):
    """Hugging Face's collator with a generator of NumPy."""

    def __call__(self, features: Any, return_tensors: Any = None) -> Any:
        return {name: torch.as_tensor(value) for name, value in super().__call__(features, "np").items()}


class OwnGenerators:
    """A collator of a user's own, with three generators that exist from the start."""

    def __init__(self) -> None:
        self.python, self.numpy, self.older = random.Random(2), numpy.random.default_rng(3), numpy.random.RandomState(4)

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        tokens = torch.tensor([row["input_ids"][:8] for row in rows])
        moved = self.python.randrange(8) + int(self.numpy.integers(8)) + self.older.randint(8)
        return {"input_ids": tokens, "labels": (tokens + moved) % SIZE}


def masked(module: Any, **options: Any) -> Any:
    return module.DataCollatorForLanguageModeling(bert(), mlm_probability=0.5, seed=3, **options)


def inside_a_function() -> Any:
    collator = masked(theirs)

    def collate(rows: list[dict[str, Any]]) -> Any:
        return collator([dict(row) for row in rows])

    return collate


COLLATORS: dict[str, Callable[[], Any]] = {
    "masked-lm": lambda: masked(ours),
    "t5-spans": lambda: ours.DataCollatorForT5MLM(t5(), noise_density=0.3, mean_noise_span_length=2, seed=3),
    "transformers": lambda: masked(theirs),
    "transformers with numpy": lambda: Arrays(bert(), mlm_probability=0.5, seed=3, return_tensors="np"),
    "own generators": OwnGenerators,
    "inside a function": inside_a_function,
}


class Noisy(list[Any]):
    """Samples that also draw from the global generator, so that the Trainer reads one batch ahead."""

    def __getitem__(self, number: Any) -> Any:
        row = super().__getitem__(number)
        return {"input_ids": [*row["input_ids"], 7 + random.randrange(len(WORDS))]}


class Stream(IterableDataset[Any]):
    """A stream with a position, whose samples also draw from the global generator."""

    def __init__(self) -> None:
        self.position = self.start = 0

    def __iter__(self) -> Any:
        process: Any = get_worker_info()
        first, step = (process.id, process.num_workers) if process else (0, 1)
        self.position, self.start = self.start, 0
        for row in ROWS[first::step][self.position :]:
            self.position += 1
            yield {"input_ids": [*row["input_ids"], 7 + random.randrange(len(WORDS))]}

    def state_dict(self) -> dict[str, int]:
        return {"read": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["read"]


def run(folder: Path, make: Callable[[], Any], data: Any, *, stop: int | None = None, **more: Any) -> Any:
    """Trains 9 steps: two epochs of 4 batches, and one further batch."""
    events = Events()
    args = TrainingArguments(
        str(folder), per_device_train_batch_size=4, max_steps=9, learning_rate=0.1, logging_steps=1,
        save_strategy="no", disable_tqdm=True, **more,
    )  # fmt: skip
    stops = [StopAt(stop)] if stop else []
    trainer = Trainer(
        Tagger(), args, make(), train_dataset=copy(data), eval_dataset=ROWS[:5], callbacks=[events, *stops]
    )
    trainer.train(resume_from_checkpoint=bool(list(folder.glob("checkpoint-*"))))
    return events.losses, digest(trainer.model.state_dict())


def same_after_a_stop(folder: Path, make: Callable[[], Any], data: Any, stop: int, **more: Any) -> bool:
    losses, weights = run(folder / "whole", make, data, **more)
    run(folder / "cut", make, data, stop=stop, **more)
    assert run(folder / "cut", make, data, **more) == (losses[stop:], weights)
    return True


@pytest.mark.parametrize("name", COLLATORS)
def test_the_generator_of_a_collator_continues_after_a_resume(tmp_path: Path, name: str) -> None:
    assert same_after_a_stop(tmp_path, COLLATORS[name], ROWS, 3)


def test_the_generator_of_a_collator_continues_after_a_stop_between_two_epochs(tmp_path: Path) -> None:
    assert same_after_a_stop(tmp_path, COLLATORS["transformers"], ROWS, 4)


@pytest.mark.parametrize("name", ["transformers", "own generators"])
def test_the_generator_of_a_collator_in_loader_workers_continues_after_a_resume(tmp_path: Path, name: str) -> None:
    assert same_after_a_stop(tmp_path, COLLATORS[name], ROWS, 3, dataloader_num_workers=2)


def test_a_prefetched_batch_is_masked_the_same_after_a_resume(tmp_path: Path) -> None:
    assert same_after_a_stop(tmp_path, COLLATORS["transformers"], Noisy(ROWS), 3)


def test_evaluations_that_use_the_same_collator_do_not_change_a_resumed_run(tmp_path: Path) -> None:
    assert same_after_a_stop(tmp_path, COLLATORS["transformers"], ROWS, 6, eval_strategy="steps", eval_steps=2)


@pytest.mark.parametrize("processes", [0, 2])
def test_a_stream_is_masked_the_same_after_a_resume(tmp_path: Path, processes: int) -> None:
    assert same_after_a_stop(tmp_path, COLLATORS["masked-lm"], Stream(), 3, dataloader_num_workers=processes)
