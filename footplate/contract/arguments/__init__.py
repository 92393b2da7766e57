"""TrainingArguments without torch. The service validates them when a job is submitted, and the Trainer reads them."""

from footplate.contract.arguments.not_supported import NOT_YET, SERVER_OWNED, NotYet
from footplate.contract.arguments.training import Seq2SeqTrainingArguments, TrainingArguments, changed, stated

__all__ = [
    "NOT_YET",
    "SERVER_OWNED",
    "NotYet",
    "Seq2SeqTrainingArguments",
    "TrainingArguments",
    "changed",
    "stated",
]
