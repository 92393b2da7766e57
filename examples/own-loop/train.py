"""A script that knows of no job server: `accelerate launch train.py --steps 30`. It continues from its own file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--fail-at", type=int, default=0, help="the last process dies there once, as machines do")
options = parser.parse_args()

accelerator = Accelerator()
torch.manual_seed(0)
model = nn.Linear(4, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
place = Path("state")
first = 0
if (place / "step.json").exists():
    accelerator.load_state(str(place))
    first = json.loads((place / "step.json").read_text())["step"]
    accelerator.print(f"continues at step {first}", flush=True)

x = torch.linspace(-1, 1, 64).reshape(16, 4)
for step in range(first, options.steps):
    loss = nn.functional.mse_loss(model(x.to(accelerator.device)), x.sum(1, keepdim=True).to(accelerator.device))
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    if (step + 1) % 10 == 0:
        accelerator.save_state(str(place))
        if accelerator.is_main_process:
            (place / "step.json").write_text(json.dumps({"step": step + 1}))
        accelerator.print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
    if step + 1 == options.fail_at and first == 0 and accelerator.is_last_process:
        raise SystemExit(3)
accelerator.print("done", flush=True)
