"""TrainingArguments, without torch: validated at POST and read by the loop."""

from footplate.contract.arguments.not_supported import NOT_YET, SERVER_OWNED, NotYet
from footplate.contract.arguments.read import read_arguments
from footplate.contract.arguments.training import Seq2SeqTrainingArguments, TrainingArguments, changed, stated

__all__ = [
    "NOT_YET",
    "SERVER_OWNED",
    "NotYet",
    "Seq2SeqTrainingArguments",
    "TrainingArguments",
    "changed",
    "read_arguments",
    "stated",
]
