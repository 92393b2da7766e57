"""What users import: the client's and the Trainer's public names, each loaded when it is first asked for.

`from footplate import Trainer` imports torch; `import footplate` and `from footplate import Client` do not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from footplate.contract.import_speed import without_collecting

if TYPE_CHECKING:
    from footplate.contract.errors import CheckpointCorrupt as CheckpointCorrupt
    from footplate.contract.errors import FootplateError as FootplateError
    from footplate.errors import JobCancelled as JobCancelled
    from footplate.errors import JobFailed as JobFailed
    from footplate.sdk.blocking import Job as Job
    from footplate.sdk.client import AsyncClient as AsyncClient
    from footplate.sdk.client import Client as Client
    from footplate.sdk.jobs import AsyncJob as AsyncJob
    from worker.notes import note as note
    from worker.trainer.accelerator_config import AcceleratorConfig as AcceleratorConfig
    from worker.trainer.argparser import HfArg as HfArg
    from worker.trainer.argparser import HfArgumentParser as HfArgumentParser
    from worker.trainer.arguments import TrainingArguments as TrainingArguments
    from worker.trainer.callbacks import CallbackHandler as CallbackHandler
    from worker.trainer.callbacks import DefaultFlowCallback as DefaultFlowCallback
    from worker.trainer.callbacks import EarlyStoppingCallback as EarlyStoppingCallback
    from worker.trainer.callbacks import ExportableState as ExportableState
    from worker.trainer.callbacks import PrinterCallback as PrinterCallback
    from worker.trainer.callbacks import ProgressCallback as ProgressCallback
    from worker.trainer.callbacks import TrainerCallback as TrainerCallback
    from worker.trainer.checkpoint import PREFIX_CHECKPOINT_DIR as PREFIX_CHECKPOINT_DIR
    from worker.trainer.checkpoint import TRAINER_STATE_NAME as TRAINER_STATE_NAME
    from worker.trainer.checkpoint import Checkpoint as Checkpoint
    from worker.trainer.checkpoint import get_last_checkpoint as get_last_checkpoint
    from worker.trainer.checkpoint import latest_checkpoint as latest_checkpoint
    from worker.trainer.checkpoint import verify as verify
    from worker.trainer.collators import DataCollatorForLanguageModeling as DataCollatorForLanguageModeling
    from worker.trainer.collators import DataCollatorForMultipleChoice as DataCollatorForMultipleChoice
    from worker.trainer.collators import (
        DataCollatorForPermutationLanguageModeling as DataCollatorForPermutationLanguageModeling,
    )
    from worker.trainer.collators import DataCollatorForSeq2Seq as DataCollatorForSeq2Seq
    from worker.trainer.collators import DataCollatorForT5MLM as DataCollatorForT5MLM
    from worker.trainer.collators import DataCollatorForTokenClassification as DataCollatorForTokenClassification
    from worker.trainer.collators import DataCollatorForWholeWordMask as DataCollatorForWholeWordMask
    from worker.trainer.collators import DataCollatorMixin as DataCollatorMixin
    from worker.trainer.collators import DataCollatorWithFlattening as DataCollatorWithFlattening
    from worker.trainer.collators import DataCollatorWithPadding as DataCollatorWithPadding
    from worker.trainer.collators import DefaultDataCollator as DefaultDataCollator
    from worker.trainer.collators import compute_input_and_target_lengths as compute_input_and_target_lengths
    from worker.trainer.collators import default_data_collator as default_data_collator
    from worker.trainer.collators import stack_collator as stack_collator
    from worker.trainer.fitting import find_executable_batch_size as find_executable_batch_size
    from worker.trainer.losses import LabelSmoother as LabelSmoother
    from worker.trainer.named import NamedOptimizer as NamedOptimizer
    from worker.trainer.names import DebugOption as DebugOption
    from worker.trainer.names import FSDPOption as FSDPOption
    from worker.trainer.names import HPSearchBackend as HPSearchBackend
    from worker.trainer.names import HubStrategy as HubStrategy
    from worker.trainer.names import IntervalStrategy as IntervalStrategy
    from worker.trainer.names import OptimizerNames as OptimizerNames
    from worker.trainer.names import SaveStrategy as SaveStrategy
    from worker.trainer.names import SchedulerType as SchedulerType
    from worker.trainer.optimizers import Adafactor as Adafactor
    from worker.trainer.optimizers import AdafactorSchedule as AdafactorSchedule
    from worker.trainer.optimizers import AdamWScheduleFree as AdamWScheduleFree
    from worker.trainer.optimizers import Lion as Lion
    from worker.trainer.optimizers import SGDScheduleFree as SGDScheduleFree
    from worker.trainer.samplers import BatchRebalanceSampler as BatchRebalanceSampler
    from worker.trainer.samplers import LengthGroupedSampler as LengthGroupedSampler
    from worker.trainer.schedules import TYPE_TO_SCHEDULER_FUNCTION as TYPE_TO_SCHEDULER_FUNCTION
    from worker.trainer.schedules import GreedyLR as GreedyLR
    from worker.trainer.schedules import StreamingAverage as StreamingAverage
    from worker.trainer.schedules import get_constant_schedule as get_constant_schedule
    from worker.trainer.schedules import get_constant_schedule_with_warmup as get_constant_schedule_with_warmup
    from worker.trainer.schedules import get_cosine_schedule_with_warmup as get_cosine_schedule_with_warmup
    from worker.trainer.schedules import (
        get_cosine_with_hard_restarts_schedule_with_warmup as get_cosine_with_hard_restarts_schedule_with_warmup,
    )
    from worker.trainer.schedules import (
        get_cosine_with_min_lr_schedule_with_warmup as get_cosine_with_min_lr_schedule_with_warmup,
    )
    from worker.trainer.schedules import (
        get_cosine_with_min_lr_schedule_with_warmup_lr_rate as get_cosine_with_min_lr_schedule_with_warmup_lr_rate,
    )
    from worker.trainer.schedules import get_greedy_schedule as get_greedy_schedule
    from worker.trainer.schedules import get_inverse_sqrt_schedule as get_inverse_sqrt_schedule
    from worker.trainer.schedules import get_linear_schedule_with_warmup as get_linear_schedule_with_warmup
    from worker.trainer.schedules import (
        get_polynomial_decay_schedule_with_warmup as get_polynomial_decay_schedule_with_warmup,
    )
    from worker.trainer.schedules import get_reduce_on_plateau_schedule as get_reduce_on_plateau_schedule
    from worker.trainer.schedules import get_scheduler as get_scheduler
    from worker.trainer.schedules import get_wsd_schedule as get_wsd_schedule
    from worker.trainer.search import BestRun as BestRun
    from worker.trainer.seeds import enable_full_determinism as enable_full_determinism
    from worker.trainer.seeds import set_seed as set_seed
    from worker.trainer.seq2seq import Seq2SeqTrainer as Seq2SeqTrainer
    from worker.trainer.seq2seq import Seq2SeqTrainingArguments as Seq2SeqTrainingArguments
    from worker.trainer.state import EvalLoopOutput as EvalLoopOutput
    from worker.trainer.state import EvalPrediction as EvalPrediction
    from worker.trainer.state import PredictionOutput as PredictionOutput
    from worker.trainer.state import TrainerControl as TrainerControl
    from worker.trainer.state import TrainerState as TrainerState
    from worker.trainer.state import TrainOutput as TrainOutput
    from worker.trainer.trainer import Trainer as Trainer

_HOMES = {
    "footplate.contract.errors": (
        "CheckpointCorrupt",
        "FootplateError",
    ),
    "footplate.errors": (
        "JobCancelled",
        "JobFailed",
    ),
    "footplate.sdk.blocking": ("Job",),
    "footplate.sdk.client": (
        "AsyncClient",
        "Client",
    ),
    "footplate.sdk.jobs": ("AsyncJob",),
    "worker.notes": ("note",),
    "worker.trainer.accelerator_config": ("AcceleratorConfig",),
    "worker.trainer.argparser": (
        "HfArg",
        "HfArgumentParser",
    ),
    "worker.trainer.arguments": ("TrainingArguments",),
    "worker.trainer.callbacks": (
        "CallbackHandler",
        "DefaultFlowCallback",
        "EarlyStoppingCallback",
        "ExportableState",
        "PrinterCallback",
        "ProgressCallback",
        "TrainerCallback",
    ),
    "worker.trainer.checkpoint": (
        "Checkpoint",
        "PREFIX_CHECKPOINT_DIR",
        "TRAINER_STATE_NAME",
        "get_last_checkpoint",
        "latest_checkpoint",
        "verify",
    ),
    "worker.trainer.collators": (
        "DataCollatorForLanguageModeling",
        "DataCollatorForMultipleChoice",
        "DataCollatorForPermutationLanguageModeling",
        "DataCollatorForSeq2Seq",
        "DataCollatorForT5MLM",
        "DataCollatorForTokenClassification",
        "DataCollatorForWholeWordMask",
        "DataCollatorMixin",
        "DataCollatorWithFlattening",
        "DataCollatorWithPadding",
        "DefaultDataCollator",
        "compute_input_and_target_lengths",
        "default_data_collator",
        "stack_collator",
    ),
    "worker.trainer.fitting": ("find_executable_batch_size",),
    "worker.trainer.losses": ("LabelSmoother",),
    "worker.trainer.named": ("NamedOptimizer",),
    "worker.trainer.names": (
        "DebugOption",
        "FSDPOption",
        "HPSearchBackend",
        "HubStrategy",
        "IntervalStrategy",
        "OptimizerNames",
        "SaveStrategy",
        "SchedulerType",
    ),
    "worker.trainer.optimizers": (
        "Adafactor",
        "AdafactorSchedule",
        "AdamWScheduleFree",
        "Lion",
        "SGDScheduleFree",
    ),
    "worker.trainer.samplers": (
        "BatchRebalanceSampler",
        "LengthGroupedSampler",
    ),
    "worker.trainer.schedules": (
        "GreedyLR",
        "StreamingAverage",
        "TYPE_TO_SCHEDULER_FUNCTION",
        "get_constant_schedule",
        "get_constant_schedule_with_warmup",
        "get_cosine_schedule_with_warmup",
        "get_cosine_with_hard_restarts_schedule_with_warmup",
        "get_cosine_with_min_lr_schedule_with_warmup",
        "get_cosine_with_min_lr_schedule_with_warmup_lr_rate",
        "get_greedy_schedule",
        "get_inverse_sqrt_schedule",
        "get_linear_schedule_with_warmup",
        "get_polynomial_decay_schedule_with_warmup",
        "get_reduce_on_plateau_schedule",
        "get_scheduler",
        "get_wsd_schedule",
    ),
    "worker.trainer.search": ("BestRun",),
    "worker.trainer.seeds": (
        "enable_full_determinism",
        "set_seed",
    ),
    "worker.trainer.seq2seq": (
        "Seq2SeqTrainer",
        "Seq2SeqTrainingArguments",
    ),
    "worker.trainer.state": (
        "EvalLoopOutput",
        "EvalPrediction",
        "PredictionOutput",
        "TrainOutput",
        "TrainerControl",
        "TrainerState",
    ),
    "worker.trainer.trainer": ("Trainer",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'footplate' has no attribute {name!r}")
    with without_collecting():
        value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
