"""Samples to a batch: the reference's collators by its names and signatures, over any processor that can `pad`.

stacking.py            default_data_collator; stack_collator, which keeps every key
padding.py             padding, token classification, multiple choice, seq2seq
language_modelling.py  masked (whole words too) and causal
permutation.py         XLNet's
t5.py                  span corruption
flattening.py          padding-free
choose.py              which one, when none is given; what a batch must look like
"""

from footplate.trainer.collators.choose import choose_collator, require_batch
from footplate.trainer.collators.flattening import DataCollatorWithFlattening
from footplate.trainer.collators.language_modelling import (
    DataCollatorForLanguageModeling,
    DataCollatorForWholeWordMask,
)
from footplate.trainer.collators.padding import (
    DataCollatorForMultipleChoice,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
)
from footplate.trainer.collators.permutation import DataCollatorForPermutationLanguageModeling
from footplate.trainer.collators.stacking import (
    DataCollatorMixin,
    DefaultDataCollator,
    default_data_collator,
    stack_collator,
)
from footplate.trainer.collators.t5 import DataCollatorForT5MLM, compute_input_and_target_lengths

__all__ = [
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
    "choose_collator",
    "compute_input_and_target_lengths",
    "default_data_collator",
    "require_batch",
    "stack_collator",
]
