"""The five models that all loops train, with their data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

SEED, RATE, DECAY, LOG_EVERY = 42, 1e-3, 0.01, 10
Sample = dict[str, Any]


@dataclass(frozen=True)
class Work:
    what: str
    goal: float
    """The share of the speed of the loop by hand that ours must reach."""
    model: Callable[[], nn.Module]
    data: Callable[[], Dataset[Sample]]
    collate: Callable[[Sequence[Sample]], dict[str, Tensor]]
    batch: int
    steps: int
    """The steps of a turn, which take about a fifth of a second. A multiple of the steps between two logs."""
    accumulate: int = 1

    def fresh_model(self) -> nn.Module:
        torch.manual_seed(7)
        return self.model()


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """Returns weights with decay, and biases and norms without, as both Trainers do by default."""
    norms = {id(weight) for part in model.modules() if isinstance(part, nn.LayerNorm) for weight in part.parameters()}
    decays, stays = [], []
    for name, weight in model.named_parameters():
        (stays if "bias" in name or id(weight) in norms else decays).append(weight)
    return [{"params": decays, "weight_decay": DECAY}, {"params": stays, "weight_decay": 0.0}]


def falling(steps: int) -> Callable[[int], float]:
    """Returns the linear schedule, which falls from the full rate to 0."""
    return lambda done: max(0.0, (steps - done) / steps)


class Rows(Dataset[Sample]):
    """Rows of a dataset whose columns are in memory."""

    def __init__(self, **columns: Tensor) -> None:
        self.columns, self.length = columns, len(next(iter(columns.values())))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        return {name: column[index] for name, column in self.columns.items()}


def stack(samples: Sequence[Sample]) -> dict[str, Tensor]:
    return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}


class Mlp(nn.Module):
    def __init__(self, width: int = 64, classes: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes)
        )

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.layers(x)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def points_around_centres(n: int = 4096, classes: int = 4) -> Rows:
    dice = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (n,), generator=dice)
    return Rows(x=torch.randn(n, 8, generator=dice) + labels[:, None], labels=labels)


class PointNet(nn.Module):
    """Classifies clouds of points by the maximum over their points. Its activations take two megabytes and more."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        widths = (3, 64, 64, 128, 256)
        layers = [(nn.Conv1d(before, after, 1), nn.BatchNorm1d(after), nn.ReLU()) for before, after in pairwise(widths)]
        self.each = nn.Sequential(*chain.from_iterable(layers))
        self.head = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, classes))

    def forward(self, points: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.each(points).amax(dim=2))
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def clouds(n: int = 256, points: int = 1024) -> Rows:
    dice = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (n,), generator=dice)
    return Rows(points=torch.randn(n, 3, points, generator=dice) * (1 + labels[:, None, None]), labels=labels)


def gpt(vocab: int = 1000) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 128}
    dry = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model: nn.Module = GPT2LMHeadModel(GPT2Config(vocab_size=vocab, bos_token_id=1, eos_token_id=1, **sizes, **dry))
    return model


def tokens(n: int = 512, vocab: int = 1000, length: int = 128) -> Rows:
    ids = torch.randint(vocab, (n, length), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    labels[:, 0] = -100  # nothing predicts the first token; marked, so that all loops count the same labels
    return Rows(input_ids=ids, labels=labels)


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
    dry = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model: nn.Module = BertForSequenceClassification(BertConfig(vocab_size=1000, num_labels=2, **sizes, **dry))
    return model


class Sentences(Dataset[Sample]):
    """Random sentences of 8 to 96 tokens."""

    def __init__(self, n: int = 1024) -> None:
        dice = torch.Generator().manual_seed(0)
        lengths = torch.randint(8, 97, (n,), generator=dice).tolist()
        self.rows = [torch.randint(1, 1000, (length,), generator=dice) for length in lengths]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        return {"input_ids": self.rows[index], "labels": int(self.rows[index][0]) % 2}


def pad(samples: Sequence[Sample]) -> dict[str, Tensor]:
    """Pads the samples to the longest of the batch."""
    rows = [sample["input_ids"] for sample in samples]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    labels = torch.tensor([sample["labels"] for sample in samples])
    return {"input_ids": ids, "attention_mask": ids.ne(0).long(), "labels": labels}


def windows(batches: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while window := [batch for _, batch in zip(range(size), batches, strict=False)]:
        yield window


WORKS = {
    "mlp": Work("tiny MLP, batch 32", 0.90, Mlp, points_around_centres, stack, batch=32, steps=50),
    "accumulating": Work(
        "tiny MLP, accumulation 4", 0.92, Mlp, points_around_centres, stack, batch=32, steps=20, accumulate=4
    ),
    "pointnet": Work("PointNet, batch 8", 0.97, PointNet, clouds, stack, batch=8, steps=10),
    "gpt": Work("GPT 2×128, 128 tokens, batch 8", 0.99, gpt, tokens, stack, batch=8, steps=10),
    "bert": Work("BERT 2×128, batch 16, dynamic padding", 0.99, bert, Sentences, pad, batch=16, steps=10),
}
