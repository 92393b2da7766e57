"""One of two processes fails while it waits in a message.

The other process never answers, because it waits for another message or computes for long.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import footplate
from tests.trainer.distributed import scenarios
from tests.trainer.distributed.job import without_building


class Fails(footplate.Trainer):
    failing = 1
    other_computes = False
    under_way: Any = None

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 1:
            if self.args.process_index == self.failing:
                self.under_way = dist.all_reduce(torch.ones(3), async_op=True)
                raise scenarios.Boom("in the middle of a message")
            if self.other_computes:
                time.sleep(600)
            dist.recv(torch.ones(1), src=self.failing)
        return super().compute_loss(*args, **kwargs)


if __name__ == "__main__":
    torch.set_num_threads(1)
    asked: dict[str, Any] = json.loads(sys.argv[2])
    Fails.failing, Fails.other_computes = asked.pop("failing"), asked.pop("other_computes")
    if "deepspeed" in asked:
        os.environ["DS_ACCELERATOR"] = "cpu"
        without_building()
    trainer, _ = scenarios._trainer(Path(sys.argv[1]), name="failing", kind=Fails, text=True, ddp_timeout=1800, **asked)
    trainer.train()
