"""Our curve at the same seed equals that of Hugging Face's loop, with its data order, draws, schedule and numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader, RandomSampler

from footplate.components import toy
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.collators import default_data_collator
from footplate.trainer.testing import Events, digest
from footplate.trainer.trainer import Trainer, set_seed

STEPS, BATCH, SEED = 30, 8, 42


def reference(accumulate: int) -> tuple[list[float], dict[str, Any]]:
    """Trains by hand, with the epochs, windows and draws of Hugging Face's loop."""
    set_seed(7)
    model, data = toy.mlp(hidden=16, dropout=0.2), toy.regression(n=100)
    set_seed(SEED)
    plain = DataLoader(data, batch_size=BATCH, sampler=RandomSampler(data), collate_fn=default_data_collator)
    loader = prepare_data_loader(plain, put_on_device=False, use_seedable_sampler=True)
    decay = [value for name, value in model.named_parameters() if "bias" not in name]
    rest = [value for name, value in model.named_parameters() if "bias" in name]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, (STEPS - step) / STEPS))
    losses: list[float] = []
    model.train()
    while len(losses) < STEPS:
        batches = list_windows(iter(loader), accumulate)
        for window in batches:
            total = torch.tensor(0.0)
            for batch in window:
                loss = model(**batch)["loss"] / len(window)
                loss.backward()
                total += loss.detach()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(float(total))
            if len(losses) == STEPS:
                break
    return losses, model.state_dict()


def list_windows(batches: Any, accumulate: int) -> Any:
    while window := [batch for _, batch in zip(range(accumulate), batches, strict=False)]:
        yield window


@pytest.mark.parametrize("accumulate", [1, 4])
def test_losses_and_weights_equal_the_reference_s(tmp_path: Path, accumulate: int) -> None:
    expected_losses, expected_weights = reference(accumulate)
    set_seed(7)
    model, events = toy.mlp(hidden=16, dropout=0.2), Events()
    args = TrainingArguments(
        str(tmp_path),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=accumulate,
        learning_rate=1e-2,
        weight_decay=0.1,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    Trainer(model, args, train_dataset=toy.regression(n=100), callbacks=[events]).train()

    assert events.losses == expected_losses
    assert digest(model.state_dict()) == digest(expected_weights)
