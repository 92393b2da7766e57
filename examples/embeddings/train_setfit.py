"""Trains a classifier of sentences on a dozen examples, with SetFit. A script as it stands."""

from __future__ import annotations

import sys

from datasets import Dataset
from encoder import tiny_encoder
from setfit import SetFitModel, Trainer, TrainingArguments
from sklearn.linear_model import LogisticRegression

GOOD, BAD = ["great", "warm", "funny", "moving"], ["awful", "dull", "cold", "clumsy"]
WORDS = ["the", "film", "cast", "was", *GOOD, *BAD]


def main(steps: int) -> None:
    model = SetFitModel(
        model_body=tiny_encoder("tiny-encoder", WORDS), model_head=LogisticRegression(), labels=["bad", "good"]
    )
    texts = [f"the film was {word}" for word in (*GOOD[:3], *BAD[:3])]
    data = Dataset.from_dict({"text": texts, "label": [1] * 3 + [0] * 3})
    args = TrainingArguments(
        output_dir="out", batch_size=4, max_steps=steps, body_learning_rate=1e-3, logging_steps=5, save_steps=10,
        report_to="none",
    )  # fmt: skip
    trainer = Trainer(model=model, args=args, train_dataset=data)
    trainer.train()
    answers = model.predict([f"the cast was {word}" for word in (GOOD[0], BAD[0])])
    (base,) = {kind.__module__ for kind in type(trainer.st_trainer).__mro__ if kind.__name__ == "Trainer"}
    print(f"trained by {base}, answers: {' '.join(map(str, answers))}")
    model.save_pretrained("outputs")


if __name__ == "__main__":
    main(int(sys.argv[sys.argv.index("--steps") + 1]))
