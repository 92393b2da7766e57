"""Trains with transformers' own Trainer, and leaves its checkpoints where job.json goes on from one.

python examples/continue-from-transformers/prepare.py .footplate

Data and tokenizer are those of examples/sentences.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

try:
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments
except ModuleNotFoundError as error:
    sys.exit(f'{error}. This script needs footplate[hf]: make up ARGS="--extras hf", then .venv/bin/python')

SENTENCES = Path(__file__).parent.parent / "sentences" / "prepare.py"
LABELS = {0: "bad", 1: "good"}


def prepare(home: Path) -> None:
    runpy.run_path(str(SENTENCES))["prepare"](home)
    bert = home / "models/bert-tiny"
    tokenizer = AutoTokenizer.from_pretrained(bert)
    rows = [json.loads(line) for line in (home / "data/sst2/train.jsonl").read_text().splitlines()]
    sentences = [{**tokenizer(row["sentence"], truncation=True, max_length=64), "label": row["label"]} for row in rows]
    names = {name: at for at, name in LABELS.items()}
    config = AutoConfig.from_pretrained(bert, id2label=LABELS, label2id=names)
    arguments = TrainingArguments(
        output_dir=str(home / "models/their-run"), num_train_epochs=3, per_device_train_batch_size=16,
        learning_rate=1e-3, logging_steps=8, save_strategy="epoch", use_cpu=True, report_to=[], disable_tqdm=True,
    )  # fmt: skip
    model = AutoModelForSequenceClassification.from_config(config)
    Trainer(model=model, args=arguments, train_dataset=sentences, processing_class=tokenizer).train()


if __name__ == "__main__":
    prepare(Path(sys.argv[1] if len(sys.argv) > 1 else ".footplate"))
