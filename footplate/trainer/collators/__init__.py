"""Collators turn samples into a batch. They have Hugging Face's names and accept any processor with a method `pad`.

- `stacking.py`: default_data_collator, and stack_collator, which keeps every key
- `padding.py`: padding, token classification, multiple choice, seq2seq
- `language_modelling.py`: masked (also whole words) and causal language modelling
- `permutation.py`: XLNet's permutation language modelling
- `t5.py`: T5's span corruption
- `flattening.py`: padding-free batches
- `choose.py`: the choice of a collator if none is given, and the check of a batch
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
