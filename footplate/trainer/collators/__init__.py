"""Collators turn samples into a batch. They have Hugging Face's names and accept any processor with a method `pad`.

- `stacking.py`: default_data_collator, stack_collator, which keeps every key, and padding-free batches (flattening)
- `padding.py`: padding, token classification, multiple choice, seq2seq
- `language_modelling.py`: masked (also whole words) and causal language modelling, and XLNet's permutation
- `t5.py`: T5's span corruption
- `choose.py`: the choice of a collator if none is given, and the check of a batch
"""

from footplate.trainer.collators.language_modelling import (
    DataCollatorForLanguageModeling as DataCollatorForLanguageModeling,
)
from footplate.trainer.collators.language_modelling import (
    DataCollatorForPermutationLanguageModeling as DataCollatorForPermutationLanguageModeling,
)
from footplate.trainer.collators.language_modelling import DataCollatorForWholeWordMask as DataCollatorForWholeWordMask
from footplate.trainer.collators.padding import DataCollatorForMultipleChoice as DataCollatorForMultipleChoice
from footplate.trainer.collators.padding import DataCollatorForSeq2Seq as DataCollatorForSeq2Seq
from footplate.trainer.collators.padding import DataCollatorForTokenClassification as DataCollatorForTokenClassification
from footplate.trainer.collators.padding import DataCollatorWithPadding as DataCollatorWithPadding
from footplate.trainer.collators.stacking import DataCollatorMixin as DataCollatorMixin
from footplate.trainer.collators.stacking import DataCollatorWithFlattening as DataCollatorWithFlattening
from footplate.trainer.collators.stacking import DefaultDataCollator as DefaultDataCollator
from footplate.trainer.collators.stacking import default_data_collator as default_data_collator
from footplate.trainer.collators.stacking import stack_collator as stack_collator
from footplate.trainer.collators.t5 import DataCollatorForT5MLM as DataCollatorForT5MLM
from footplate.trainer.collators.t5 import compute_input_and_target_lengths as compute_input_and_target_lengths
