"""The names that users import: the client's and the Trainer's, each loaded at its first use.

`from footplate import Trainer` imports torch; `import footplate` and `from footplate import Client` do not.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from footplate.contract.import_speed import without_collecting

if TYPE_CHECKING:
    from footplate.components.notes import note as note
    from footplate.contract.errors import CheckpointCorrupt as CheckpointCorrupt
    from footplate.contract.errors import FootplateError as FootplateError
    from footplate.drop_in import install as install
    from footplate.drop_in import uninstall as uninstall
    from footplate.errors import JobCancelled as JobCancelled
    from footplate.errors import JobFailed as JobFailed
    from footplate.sdk.blocking import Job as Job
    from footplate.sdk.client import AsyncClient as AsyncClient
    from footplate.sdk.client import Client as Client
    from footplate.sdk.jobs import AsyncJob as AsyncJob
    from footplate.trainer.accelerator_config import AcceleratorConfig as AcceleratorConfig
    from footplate.trainer.argparser import HfArg as HfArg
    from footplate.trainer.argparser import HfArgumentParser as HfArgumentParser
    from footplate.trainer.arguments import TrainingArguments as TrainingArguments
    from footplate.trainer.callbacks import CallbackHandler as CallbackHandler
    from footplate.trainer.callbacks import DefaultFlowCallback as DefaultFlowCallback
    from footplate.trainer.callbacks import EarlyStoppingCallback as EarlyStoppingCallback
    from footplate.trainer.callbacks import ExportableState as ExportableState
    from footplate.trainer.callbacks import PrinterCallback as PrinterCallback
    from footplate.trainer.callbacks import ProgressCallback as ProgressCallback
    from footplate.trainer.callbacks import TrainerCallback as TrainerCallback
    from footplate.trainer.checkpoint import PREFIX_CHECKPOINT_DIR as PREFIX_CHECKPOINT_DIR
    from footplate.trainer.checkpoint import TRAINER_STATE_NAME as TRAINER_STATE_NAME
    from footplate.trainer.checkpoint import Checkpoint as Checkpoint
    from footplate.trainer.checkpoint import get_last_checkpoint as get_last_checkpoint
    from footplate.trainer.checkpoint import latest_checkpoint as latest_checkpoint
    from footplate.trainer.checkpoint import verify as verify
    from footplate.trainer.collators import DataCollatorForLanguageModeling as DataCollatorForLanguageModeling
    from footplate.trainer.collators import DataCollatorForMultipleChoice as DataCollatorForMultipleChoice
    from footplate.trainer.collators import (
        DataCollatorForPermutationLanguageModeling as DataCollatorForPermutationLanguageModeling,
    )
    from footplate.trainer.collators import DataCollatorForSeq2Seq as DataCollatorForSeq2Seq
    from footplate.trainer.collators import DataCollatorForT5MLM as DataCollatorForT5MLM
    from footplate.trainer.collators import DataCollatorForTokenClassification as DataCollatorForTokenClassification
    from footplate.trainer.collators import DataCollatorForWholeWordMask as DataCollatorForWholeWordMask
    from footplate.trainer.collators import DataCollatorMixin as DataCollatorMixin
    from footplate.trainer.collators import DataCollatorWithFlattening as DataCollatorWithFlattening
    from footplate.trainer.collators import DataCollatorWithPadding as DataCollatorWithPadding
    from footplate.trainer.collators import DefaultDataCollator as DefaultDataCollator
    from footplate.trainer.collators import compute_input_and_target_lengths as compute_input_and_target_lengths
    from footplate.trainer.collators import default_data_collator as default_data_collator
    from footplate.trainer.collators import stack_collator as stack_collator
    from footplate.trainer.greedy import GreedyLR as GreedyLR
    from footplate.trainer.greedy import StreamingAverage as StreamingAverage
    from footplate.trainer.losses.smoothing import LabelSmoother as LabelSmoother
    from footplate.trainer.named import NamedOptimizer as NamedOptimizer
    from footplate.trainer.names import DebugOption as DebugOption
    from footplate.trainer.names import FSDPOption as FSDPOption
    from footplate.trainer.names import HPSearchBackend as HPSearchBackend
    from footplate.trainer.names import HubStrategy as HubStrategy
    from footplate.trainer.names import IntervalStrategy as IntervalStrategy
    from footplate.trainer.names import OptimizerNames as OptimizerNames
    from footplate.trainer.names import SaveStrategy as SaveStrategy
    from footplate.trainer.names import SchedulerType as SchedulerType
    from footplate.trainer.optimizers import Adafactor as Adafactor
    from footplate.trainer.optimizers import AdafactorSchedule as AdafactorSchedule
    from footplate.trainer.optimizers import AdamWScheduleFree as AdamWScheduleFree
    from footplate.trainer.optimizers import Lion as Lion
    from footplate.trainer.optimizers import SGDScheduleFree as SGDScheduleFree
    from footplate.trainer.samplers import BatchRebalanceSampler as BatchRebalanceSampler
    from footplate.trainer.samplers import LengthGroupedSampler as LengthGroupedSampler
    from footplate.trainer.schedules import TYPE_TO_SCHEDULER_FUNCTION as TYPE_TO_SCHEDULER_FUNCTION
    from footplate.trainer.schedules import get_constant_schedule as get_constant_schedule
    from footplate.trainer.schedules import get_constant_schedule_with_warmup as get_constant_schedule_with_warmup
    from footplate.trainer.schedules import get_cosine_schedule_with_warmup as get_cosine_schedule_with_warmup
    from footplate.trainer.schedules import (
        get_cosine_with_hard_restarts_schedule_with_warmup as get_cosine_with_hard_restarts_schedule_with_warmup,
    )
    from footplate.trainer.schedules import (
        get_cosine_with_min_lr_schedule_with_warmup as get_cosine_with_min_lr_schedule_with_warmup,
    )
    from footplate.trainer.schedules import (
        get_cosine_with_min_lr_schedule_with_warmup_lr_rate as get_cosine_with_min_lr_schedule_with_warmup_lr_rate,
    )
    from footplate.trainer.schedules import get_greedy_schedule as get_greedy_schedule
    from footplate.trainer.schedules import get_inverse_sqrt_schedule as get_inverse_sqrt_schedule
    from footplate.trainer.schedules import get_linear_schedule_with_warmup as get_linear_schedule_with_warmup
    from footplate.trainer.schedules import (
        get_polynomial_decay_schedule_with_warmup as get_polynomial_decay_schedule_with_warmup,
    )
    from footplate.trainer.schedules import get_reduce_on_plateau_schedule as get_reduce_on_plateau_schedule
    from footplate.trainer.schedules import get_scheduler as get_scheduler
    from footplate.trainer.schedules import get_wsd_schedule as get_wsd_schedule
    from footplate.trainer.search import BestRun as BestRun
    from footplate.trainer.seeds import enable_full_determinism as enable_full_determinism
    from footplate.trainer.seeds import set_seed as set_seed
    from footplate.trainer.seq2seq import Seq2SeqTrainer as Seq2SeqTrainer
    from footplate.trainer.seq2seq import Seq2SeqTrainingArguments as Seq2SeqTrainingArguments
    from footplate.trainer.state import EvalLoopOutput as EvalLoopOutput
    from footplate.trainer.state import EvalPrediction as EvalPrediction
    from footplate.trainer.state import PredictionOutput as PredictionOutput
    from footplate.trainer.state import TrainerControl as TrainerControl
    from footplate.trainer.state import TrainerState as TrainerState
    from footplate.trainer.state import TrainOutput as TrainOutput
    from footplate.trainer.steps.out_of_memory import find_executable_batch_size as find_executable_batch_size
    from footplate.trainer.trainer import Trainer as Trainer


@cache
def home_of() -> dict[str, str]:
    """Returns the module of each name that users import. The imports under `if TYPE_CHECKING` list all of them.

    These imports are read from this file's source, so that no second list of the names is needed.
    """
    import ast
    import inspect

    (block,) = (node for node in ast.parse(inspect.getsource(sys.modules[__name__])).body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(home_of())
    if name.startswith("__") or name not in home_of():
        raise AttributeError(f"module 'footplate' has no attribute {name!r}")
    with without_collecting():
        value = globals()[name] = getattr(import_module(home_of()[name]), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *home_of()]
