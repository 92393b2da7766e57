"""Point clouds of two shapes, told apart: a dataset, a model, a collator and a metric of one's own."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset


class Clouds(Dataset):
    """Points on spheres (0) and in cubes (1), [N, 3] each; the same index is always the same cloud."""

    def __init__(self, clouds: int = 256, points: int = 64, seed: int = 0) -> None:
        self.clouds, self.points, self.seed = clouds, points, seed

    def __len__(self) -> int:
        return self.clouds

    def __getitem__(self, index: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        points = torch.randn(self.points, 3, generator=generator)
        is_sphere = index % 2 == 0
        points = points / points.norm(dim=1, keepdim=True) if is_sphere else points.clamp(-1, 1) / math.sqrt(2)
        return {"points": points, "label": index % 2, "cloud": index}


def stack(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Every key is kept: `cloud` comes back with the predictions."""
    return {
        "points": torch.stack([sample["points"] for sample in samples]),
        "labels": torch.tensor([sample["label"] for sample in samples]),
        "cloud": torch.tensor([sample["cloud"] for sample in samples]),
    }


class Net(nn.Module):
    """Each point by itself, then the largest of every feature: the order of points does not matter."""

    def __init__(self, hidden: int = 32, dropout: float = 0.1) -> None:
        super().__init__()
        self.points = nn.Sequential(nn.Linear(3, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(hidden, 2))

    def forward(self, points: Tensor, cloud: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.head(self.points(points).amax(dim=1))
        out = {"logits": logits, "cloud": cloud}
        return out if labels is None else {"loss": nn.functional.cross_entropy(logits, labels), **out}


def measure(prediction: Any) -> dict[str, float]:
    """Returns metrics of all predictions: the share that is right, and the number of clouds."""
    logits, cloud = prediction.predictions
    right = (logits.argmax(-1) == prediction.label_ids).mean()
    return {"right": float(right), "clouds": float(len(set(cloud.tolist())))}
