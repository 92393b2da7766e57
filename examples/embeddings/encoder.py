"""A tiny encoder with random weights and a tokenizer of whole words, so that the scripts here download nothing.

With a real one, the scripts write `SentenceTransformer("models/my-encoder")` instead.
"""

from __future__ import annotations

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def tiny_encoder(folder: str, words: list[str]) -> SentenceTransformer:
    tokens = {word: number for number, word in enumerate([*SPECIAL, *words])}
    inner = Tokenizer(models.WordLevel(tokens, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]",
        model_max_length=16,
    )  # fmt: skip
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokens), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    encoder = Transformer(folder)
    return SentenceTransformer(modules=[encoder, Pooling(encoder.get_embedding_dimension())])
