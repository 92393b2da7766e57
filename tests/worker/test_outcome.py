from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from contract.lifecycle import Reason
from worker.outcome import of_exception


class Treacherous(Dataset[Any]):
    """Does something to the process that reads it."""

    def __init__(self, deed: Callable[[], None]) -> None:
        self.deed = deed

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        if index == 20:
            self.deed()
        return torch.zeros(2)


def read_with_a_data_worker(deed: Callable[[], None]) -> BaseException:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - which one is the question
        list(DataLoader(Treacherous(deed), batch_size=4, num_workers=1))
    return raised.value


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def raises_a_connection_error() -> None:
    raise ConnectionResetError("the dataset's own server hung up")


def test_a_killed_data_worker_is_a_crash_and_may_be_tried_again() -> None:
    verdict = of_exception(read_with_a_data_worker(killed))

    assert (verdict.reason, verdict.error.code) == (Reason.CRASHED, "data_worker_lost")
    assert verdict.error.hint is not None


def test_what_a_dataset_raises_is_the_users_error_wherever_it_was_raised() -> None:
    verdict = of_exception(read_with_a_data_worker(raises_a_connection_error))

    assert (verdict.reason, verdict.error.code) == (Reason.ERROR, "error")
    assert "hung up" in verdict.error.message
