"""A plain Accelerate loop that a job server watches, pauses, kills and continues."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main(job: Any, epochs: int = 20, pause: float = 0.0) -> dict[str, float]:
    """Called with the job, and with the `args` of the spec."""
    torch.manual_seed(0)
    accelerator = job.accelerator
    x = torch.randn(256, 8)
    data = TensorDataset(x, x[:, :4].abs())
    model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.1), nn.Tanh(), nn.Linear(32, 4))
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=1e-2), DataLoader(data, batch_size=32, shuffle=True)
    )
    latest = job.latest()
    if latest is not None:
        accelerator.load_state(str(latest.path))
    loss = torch.tensor(0.0)
    for epoch in range(latest.step if latest else 0, epochs):
        loader.set_epoch(epoch)
        for inputs, labels in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(inputs), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            time.sleep(pause)
        job.log({"loss": loss}, step=epoch + 1, epoch=epoch + 1)
        if (epoch + 1) % 2 == 0 or job.should_stop:
            job.checkpoint(step=epoch + 1)
        if job.should_stop:
            break
    model.eval()
    with torch.no_grad():
        job.eval({"loss": nn.functional.mse_loss(model(x), data.tensors[1])}, step=job.step)
    if accelerator.is_main_process:
        torch.save(accelerator.unwrap_model(model).state_dict(), "model.pt")
        job.save("model.pt")
    return {"last_loss": loss.item()}
