"""The loop by hand, with which all others are compared."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, RandomSampler

from bench.loops.work import LOG_EVERY, RATE, SEED, Work, falling, groups

Mark = Callable[[int, float], None]
"""A function that is called at each log with the number of steps and their mean loss."""


def train(work: Work, steps: int, mark: Mark) -> None:
    model, data = work.fresh_model(), work.data()
    optimizer = torch.optim.AdamW(groups(model), lr=RATE, fused=True)
    schedule = LambdaLR(optimizer, falling(steps))
    order = torch.Generator()
    loader = DataLoader(
        data,
        work.batch,
        sampler=RandomSampler(data, generator=order),
        collate_fn=work.collate,  # type: ignore[arg-type]
    )
    model.train()
    history, step, total = [], 0, torch.tensor(0.0)
    for epoch in count():
        order.manual_seed(SEED + epoch)
        for number, batch in enumerate(loader, start=1):
            loss = model(**batch)["loss"] / work.accumulate
            loss.backward()
            total += loss.detach()
            if number % work.accumulate:
                continue
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            if step % LOG_EVERY == 0:
                logged = {"loss": total.item() / LOG_EVERY, "norm": norm.item(), "rate": schedule.get_last_lr()[0]}
                history.append(logged)
                print(logged)
                total.zero_()
                mark(step, logged["loss"])
            if step == steps:
                return
