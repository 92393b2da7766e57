"""Three components. Their signatures are what `GET /components` shows, and what `POST /jobs` checks `args` against."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils.data import Dataset

from footplate import TrainerCallback


class Sines(nn.Module):
    """A sum of sines, whose frequencies, phases and heights are learned."""

    def __init__(self, waves: Annotated[int, Field(ge=1, le=64), "How many are added up"] = 4) -> None:
        super().__init__()
        self.frequencies = nn.Parameter(torch.linspace(0.5, 3.0, waves))
        self.phases = nn.Parameter(torch.zeros(waves))
        self.heights = nn.Parameter(torch.full((waves,), 0.1))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = (self.heights * torch.sin(self.frequencies * x + self.phases)).sum(-1, keepdim=True)
        return {"logits": logits} if labels is None else {"loss": (logits - labels).square().mean(), "logits": logits}


class Points(Dataset[dict[str, Tensor]]):
    """Points of one wave, as `{"x": [1], "labels": [1]}`."""

    def __init__(
        self,
        n: Annotated[int, Field(ge=1), "How many points"] = 256,
        seed: Annotated[int, "Which points; the wave is the same"] = 0,
    ) -> None:
        self.x = 6 * torch.rand(n, 1, generator=torch.Generator().manual_seed(seed))
        self.labels = 0.8 * torch.sin(1.3 * self.x + 0.5)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": self.x[index], "labels": self.labels[index]}


class Loudest(TrainerCallback):
    """Logs the largest height that the model has beside the loss, as `loudest`."""

    def __init__(self, absolute: Annotated[bool, "Whether a negative height counts by its size"] = True) -> None:
        self.absolute = absolute

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.model = kwargs["model"]

    def figures(self) -> dict[str, float]:
        """Returns the values that are logged with the loss."""
        heights = self.model.heights.detach()
        return {"loudest": float((heights.abs() if self.absolute else heights).max())}
