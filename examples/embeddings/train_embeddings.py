"""Trains an embedding model on questions and their answers, with sentence-transformers. A script as it stands."""

from __future__ import annotations

import sys

from datasets import Dataset
from encoder import tiny_encoder
from sentence_transformers import (
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.losses import MultipleNegativesRankingLoss

COLORS = {"sky": "blue", "grass": "green", "snow": "white", "coal": "black", "sun": "yellow", "rose": "red"}
WORDS = ["what", "color", "has", "the", "it", "is", *COLORS, *COLORS.values()]


def main(steps: int) -> None:
    model = tiny_encoder("tiny-encoder", WORDS)
    questions, answers = [f"what color has the {thing}" for thing in COLORS], [f"it is {c}" for c in COLORS.values()]
    data = Dataset.from_dict({"anchor": questions * 8, "positive": answers * 8})
    args = SentenceTransformerTrainingArguments(
        output_dir="out", max_steps=steps, per_device_train_batch_size=6, learning_rate=5e-3, logging_steps=5,
        save_steps=10, report_to="none", batch_sampler="no_duplicates",
    )  # fmt: skip
    loss = MultipleNegativesRankingLoss(model)
    SentenceTransformerTrainer(model=model, args=args, train_dataset=data, loss=loss).train()
    nearest = model.similarity(model.encode(questions), model.encode(answers)).argmax(dim=1)
    right = sum(int(at) == number for number, at in enumerate(nearest)) / len(questions)
    (base,) = {kind.__module__ for kind in SentenceTransformerTrainer.__mro__ if kind.__name__ == "Trainer"}
    print(f"trained by {base}, nearest answer right: {right:.2f}")
    model.save_pretrained("outputs")


if __name__ == "__main__":
    main(int(sys.argv[sys.argv.index("--steps") + 1]))
