"""One of two processes fails while a message of its own is under way, and the other will never answer it."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.trainer.distributed import scenarios
from tests.trainer.distributed.job import without_building


class Fails(scenarios.Trainer):
    under_way: Any = None

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 1:
            if self.args.process_index == 1:
                self.under_way = dist.all_reduce(torch.ones(3), async_op=True)
                raise scenarios.Boom("in the middle of a message")
            time.sleep(600)  # computes for long
        return super().compute_loss(*args, **kwargs)


if __name__ == "__main__":
    torch.set_num_threads(1)
    values: dict[str, Any] = json.loads(sys.argv[2])
    if "deepspeed" in values:
        os.environ["DS_ACCELERATOR"] = "cpu"
        without_building()
    trainer, _ = scenarios._trainer(
        Path(sys.argv[1]), name="failing", kind=Fails, text=True, ddp_timeout=1800, **values
    )
    trainer.train()
