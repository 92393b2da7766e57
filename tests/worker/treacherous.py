"""A program with a data loader whose process ends as its argument says. It prints how the end is classified.

It is a process of its own, because torch reports a dead data worker from a signal handler, which interrupts any code.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from footplate.contract.host.outcome import of_exception


class FailingDataset(Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        if index == 20 and sys.argv[1] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if index == 20:
            raise ConnectionResetError("the dataset's own server hung up")
        return torch.zeros(2)


if __name__ == "__main__":
    try:
        list(DataLoader(FailingDataset(), batch_size=4, num_workers=1))
    except Exception as error:
        # Otherwise torch's handler could raise again during the next lines.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        verdict = of_exception(error)
        print(verdict.reason, verdict.error.code, verdict.error.message)
