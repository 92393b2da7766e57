"""Writes the data and models that the jobs of this folder name.

Texts, tagged words and questions are written to data/stories. A tokenizer and a tiny Llama for lora.json are written
to models/.

    python examples/language-models/prepare.py .footplate

The other models are built from each job's `config`, with the vocabulary of the tokenizer.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

try:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
except ModuleNotFoundError as error:
    sys.exit(f'{error}. This script needs footplate[hf]: make up ARGS="--extras hf", then .venv/bin/python')

SENTINELS = [f"<extra_id_{number}>" for number in range(16)]
SPECIAL = ["<pad>", "</s>", "<unk>", "<mask>", *SENTINELS]

NAMES = ["anna", "ben", "clara", "david", "emma", "felix"]
PLACES = ["paris", "cairo", "lima", "oslo"]
DEEDS = ["sees", "leaves", "reaches", "remembers"]
TAGS = {**dict.fromkeys(NAMES, "person"), **dict.fromkeys(PLACES, "place")}


def sentence(dice: random.Random) -> list[str]:
    words = [dice.choice(NAMES), dice.choice(DEEDS), dice.choice(PLACES)]
    if dice.random() < 0.5:
        words += ["and", dice.choice(DEEDS), dice.choice(NAMES)]
    return [*words, "."]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_tokenizer(folder: Path, texts: list[str]) -> int:
    """Words, with T5's sentinels and BERT's mask, in the files that save_pretrained writes. How many, it answers."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=SPECIAL, show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64, "pad_token": "<pad>",
        "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>",
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    return int(tokenizer.get_vocab_size())


def write_llama(folder: Path, vocabulary: int) -> None:
    """One that has learned nothing yet: its adapter has all to do."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, bos_token_id=None, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


def prepare(home: Path) -> None:
    dice = random.Random(0)
    for name, number in {"train": 256, "dev": 48}.items():
        rows = [sentence(dice) for _ in range(number)]
        texts = [" ".join(words) for words in rows]
        folder = home / "data/stories"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.txt").write_text("\n".join(texts) + "\n")
        write_rows(
            folder / f"tagged-{name}.jsonl", [{"words": w, "tags": [TAGS.get(e, "other") for e in w]} for w in rows]
        )
        # To say who and where, in this order.
        answers = [" ".join(word for word in words if word in TAGS) for words in rows]
        write_rows(folder / f"pairs-{name}.jsonl", [{"text": t, "who": a} for t, a in zip(texts, answers, strict=True)])
        if name == "train":
            write_llama(home / "models/tiny-llama", write_tokenizer(home / "models/stories", texts))


if __name__ == "__main__":
    home = Path(sys.argv[1] if len(sys.argv) > 1 else ".footplate")
    prepare(home)
    print(f"Wrote data/stories, models/stories and models/tiny-llama in {home}.")
