"""Real tokenizers of transformers, made of a few words without a download."""

from __future__ import annotations

from functools import cache
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SENTENCE = "the cat sat on a mat while dogs ran far away from home and birds sang loud songs in tall trees"
WORDS = SENTENCE.split()
PIECES = ["##s", "##ing", "##ed", "##er", "walk", "talk", "sing", "play"]


@cache
def bert() -> Any:
    """Returns a WordPiece tokenizer with [CLS] and [SEP], in which `walking` has two pieces."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys([*special, *WORDS, *PIECES]))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


@cache
def t5() -> Any:
    """Returns a tokenizer with words, an end token and the sentinels of T5 at the end of the vocabulary."""
    sentinels = [f"<extra_id_{number}>" for number in reversed(range(30))]
    vocabulary = {word: number for number, word in enumerate(["<pad>", "</s>", "<unk>", *WORDS, *sentinels])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        extra_special_tokens=sentinels,
    )


TEXTS = [
    "the cat sat on a mat",
    "dogs walking far",
    "birds singing loud songs in tall trees while dogs played",
    "talked walker",
]
