"""Writes what job.json names: sentences with a verdict under data/sst2, and a tiny BERT under models/bert-tiny.

    python examples/sentences/prepare.py .footplate

With the real ones in their place (SST-2 as JSON lines, bert-base-uncased as its save_pretrained writes it) the job
stays the same.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

try:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
except ModuleNotFoundError as error:
    sys.exit(f'{error}. This script needs footplate[hf]: make up ARGS="--extras hf", then .venv/bin/python')

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CONFIG = {
    "model_type": "bert", "architectures": ["BertModel"], "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 128, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip

GOOD = ["wonderful", "moving", "funny", "brilliant", "warm", "a delight", "worth every minute"]
BAD = ["dull", "clumsy", "a mess", "tedious", "cold", "a waste of time", "painfully slow"]
SUBJECTS = ["the film", "this story", "the cast", "the ending", "every scene", "the script", "the music"]
FRAMES = ["{} is {}", "{} was {} from start to end", "i expected little of {} but it is {}", "in short , {} is {} ."]


def sentences(number: int, seed: int) -> list[dict[str, str | int]]:
    dice = random.Random(seed)
    rows: list[dict[str, str | int]] = []
    for _ in range(number):
        label = dice.randrange(2)
        subject, verdict = dice.choice(SUBJECTS), dice.choice(GOOD if label else BAD)
        rows.append({"sentence": dice.choice(FRAMES).format(subject, verdict), "label": label})
    return rows


def write_rows(path: Path, rows: list[dict[str, str | int]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_tokenizer(folder: Path, texts: list[str]) -> int:
    """Writes a WordPiece tokenizer of these texts as save_pretrained does. Returns the number of its tokens.

    Its vocabulary has all words and letters. A trainer of tokenizers would order it differently in each process.
    """
    words = sorted({word for text in texts for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(text)})
    letters = sorted(set("".join(words)))
    pieces = dict.fromkeys((*SPECIAL, *letters, *(f"##{letter}" for letter in letters), *words))
    tokenizer = Tokenizer(models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    return tokenizer.get_vocab_size()


def prepare(home: Path) -> None:
    train = sentences(256, seed=1)
    for name, rows in {"train": train, "dev": sentences(64, seed=2), "test": sentences(32, seed=3)}.items():
        write_rows(home / "data/sst2" / f"{name}.jsonl", rows)
    folder = home / "models/bert-tiny"
    tokens = write_tokenizer(folder, [str(row["sentence"]) for row in train])
    (folder / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": tokens}, indent=2) + "\n")


if __name__ == "__main__":
    home = Path(sys.argv[1] if len(sys.argv) > 1 else ".footplate")
    prepare(home)
    print(f"Wrote data/sst2 and models/bert-tiny in {home}.")
