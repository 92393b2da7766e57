"""A script for transformers' Trainer that knows nothing of a job server: `python train.py --steps 12`."""

import argparse
import time

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--seconds-per-step", type=float, default=0.0, help="wait so long after each step")
options = parser.parse_args()


class Wait(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(options.seconds_per_step)


torch.manual_seed(0)
rows = []
for _ in range(64):
    words = torch.randint(0, 32, (8,))
    rows.append({"input_ids": words, "labels": int(words[0] > 15)})
size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
trainer = Trainer(
    BertForSequenceClassification(BertConfig(vocab_size=32, max_position_embeddings=8, **size)),
    TrainingArguments(
        "out",
        max_steps=options.steps,
        learning_rate=1e-2,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=4,
        save_steps=2,
        report_to=[],
    ),
    train_dataset=rows[:48],
    eval_dataset=rows[48:],
    callbacks=[Wait()],
)
trainer.train()
trainer.save_model("model")
print("done", trainer.evaluate()["eval_loss"])
