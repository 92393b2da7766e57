"""What the callbacks of `callbacks.py` do."""

from __future__ import annotations

from typing import Any

from worker.trainer.callbacks import EarlyStoppingCallback
from worker.trainer.state import TrainerControl, TrainerState


class EarlyStopping(EarlyStoppingCallback):
    """The reference's, which follows the loss where nothing else is named."""

    def on_init_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if args.metric_for_best_model is None:
            args.metric_for_best_model, args.greater_is_better = "loss", False
