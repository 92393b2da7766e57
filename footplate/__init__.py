"""What users import: the Trainer's public names, each loaded when it is first asked for.

`from footplate import Trainer` imports torch; `import footplate` does not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contract.errors import CheckpointCorrupt as CheckpointCorrupt
    from worker.trainer.arguments import TrainingArguments as TrainingArguments
    from worker.trainer.callbacks import DefaultFlowCallback as DefaultFlowCallback
    from worker.trainer.callbacks import EarlyStoppingCallback as EarlyStoppingCallback
    from worker.trainer.callbacks import ExportableState as ExportableState
    from worker.trainer.callbacks import PrinterCallback as PrinterCallback
    from worker.trainer.callbacks import ProgressCallback as ProgressCallback
    from worker.trainer.callbacks import TrainerCallback as TrainerCallback
    from worker.trainer.checkpoint import Checkpoint as Checkpoint
    from worker.trainer.checkpoint import latest_checkpoint as latest_checkpoint
    from worker.trainer.checkpoint import verify as verify
    from worker.trainer.collators import default_data_collator as default_data_collator
    from worker.trainer.state import EvalLoopOutput as EvalLoopOutput
    from worker.trainer.state import EvalPrediction as EvalPrediction
    from worker.trainer.state import PredictionOutput as PredictionOutput
    from worker.trainer.state import TrainerControl as TrainerControl
    from worker.trainer.state import TrainerState as TrainerState
    from worker.trainer.state import TrainOutput as TrainOutput
    from worker.trainer.trainer import Trainer as Trainer
    from worker.trainer.trainer import set_seed as set_seed

_HOMES = {
    "contract.errors": ("CheckpointCorrupt",),
    "worker.trainer.arguments": ("TrainingArguments",),
    "worker.trainer.callbacks": (
        "DefaultFlowCallback",
        "EarlyStoppingCallback",
        "ExportableState",
        "PrinterCallback",
        "ProgressCallback",
        "TrainerCallback",
    ),
    "worker.trainer.checkpoint": ("Checkpoint", "latest_checkpoint", "verify"),
    "worker.trainer.collators": ("default_data_collator",),
    "worker.trainer.state": (
        "EvalLoopOutput",
        "EvalPrediction",
        "PredictionOutput",
        "TrainOutput",
        "TrainerControl",
        "TrainerState",
    ),
    "worker.trainer.trainer": ("Trainer", "set_seed"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'footplate' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
