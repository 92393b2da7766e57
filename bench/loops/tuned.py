"""The loop by hand, tuned for a GPU: bf16, compiled, fused, with batches that are copied one ahead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, RandomSampler

from bench.loops.raw import Mark
from bench.loops.work import LOG_EVERY, RATE, SEED, Work, falling, groups


def train(work: Work, steps: int, mark: Mark, *, compiles: bool) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, data = work.fresh_model().to(device), work.data()
    optimizer = torch.optim.AdamW(groups(model), lr=RATE, fused=True)
    schedule = LambdaLR(optimizer, falling(steps))
    order = torch.Generator()
    sampler: Any = RandomSampler(data, generator=order)  # type: ignore[arg-type]
    loader: Any = DataLoader(
        data, work.batch, sampler=sampler, collate_fn=work.collate, pin_memory=device.type == "cuda"
    )  # type: ignore[arg-type]
    forward: Any = torch.compile(model) if compiles else model
    model.train()
    step, total = 0, torch.zeros((), device=device)
    for epoch in count():
        order.manual_seed(SEED + epoch)
        for batch in one_ahead(loader, device):
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
                loss = forward(**batch)["loss"]
            loss.backward()
            total += loss.detach()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            if step % LOG_EVERY == 0:
                logged = {"loss": total.item() / LOG_EVERY, "norm": norm.item(), "rate": schedule.get_last_lr()[0]}
                print(logged)
                total.zero_()
                mark(step, logged["loss"])
            if step == steps:
                return


def one_ahead(batches: Iterable[Any], device: torch.device) -> Iterator[Any]:
    """Yields batches on the device. The next one is copied while this one is computed."""
    if device.type != "cuda":
        yield from batches
        return
    beside, now = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    next_batch = None
    for batch in batches:
        with torch.cuda.stream(beside):
            on_device = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
        if next_batch is not None:
            yield next_batch
        now.wait_stream(beside)
        for tensor in on_device.values():
            tensor.record_stream(now)
        next_batch = on_device
    yield next_batch
