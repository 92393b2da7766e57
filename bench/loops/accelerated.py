"""The hand-written loop over Accelerate, as its documentation has it."""

from __future__ import annotations

from itertools import count

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from bench.loops.raw import Mark
from bench.loops.work import LOG_EVERY, RATE, SEED, Work, falling, groups


def train(work: Work, steps: int, mark: Mark) -> None:
    model, data = work.fresh_model(), work.data()
    order = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=SEED)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=work.accumulate, dataloader_config=order)
    optimizer = torch.optim.AdamW(groups(model), lr=RATE, fused=True)
    schedule = LambdaLR(optimizer, falling(steps))
    loader = DataLoader(data, work.batch, shuffle=True, collate_fn=work.collate)  # type: ignore[arg-type]
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    model.train()
    history, step, total = [], 0, torch.tensor(0.0)
    for epoch in count():
        loader.set_epoch(epoch)  # type: ignore[attr-defined]
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch)["loss"]
                accelerator.backward(loss)
                total += loss.detach() / work.accumulate
                if accelerator.sync_gradients:
                    norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if not accelerator.sync_gradients:
                continue
            step += 1
            if step % LOG_EVERY == 0:
                logged = {"loss": total.item() / LOG_EVERY, "norm": norm.item(), "rate": schedule.get_last_lr()[0]}
                history.append(logged)
                print(logged)
                total.zero_()
                mark(step, logged["loss"])
            if step == steps:
                accelerator.end_training()
                return
