"""TrainingArguments: one truth for service and worker, validated at POST and read by the loop. Without torch."""

from contract.arguments.notyet import NOT_YET, SERVER_OWNED, NotYet
from contract.arguments.read import read_arguments
from contract.arguments.training import Seq2SeqTrainingArguments, TrainingArguments, changed

__all__ = [
    "NOT_YET",
    "SERVER_OWNED",
    "NotYet",
    "Seq2SeqTrainingArguments",
    "TrainingArguments",
    "changed",
    "read_arguments",
]
