"""Tests that the loss and gradients of a step do not depend on how its samples are split into micro-batches.

That holds whatever a model does with `num_items_in_batch`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import footplate
from footplate.trainer.callbacks import TrainerCallback
from tests.support.training import fingerprint
from tests.trainer.sides import arguments, bert, gpt, sentences, tokenizer

PLAIN = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SAMPLES = 8


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=40, d_model=16, d_kv=4, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0,
        decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)  # type: ignore[no-any-return]


def rows(labels: Callable[[list[int]], Any]) -> list[dict[str, Any]]:
    return [{"input_ids": sentence, "labels": labels(sentence)} for sentence in sentences(SAMPLES)]


def some_words(sentence: list[int]) -> list[int]:
    """Labels a different number of words in each sentence, and no word in the longest."""
    return [word if (word + len(sentence)) % 3 and len(sentence) != 9 else -100 for word in sentence]


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[list[int]], Any]]] = {
    "masked language model": (lambda: bert("BertForMaskedLM", **PLAIN), some_words),
    "classes": (lambda: bert("BertForSequenceClassification", num_labels=3, **PLAIN), lambda words: words[0] % 3),
    "numbers": (lambda: bert("BertForSequenceClassification", num_labels=1, **PLAIN), lambda words: words[0] / 40),
    "several classes": (
        lambda: bert("BertForSequenceClassification", num_labels=3, **PLAIN),
        lambda words: [float(words[at] % 2) for at in range(3)],
    ),
    "classes of tokens": (
        lambda: bert("BertForTokenClassification", num_labels=5, **PLAIN),
        lambda words: [word if word == -100 else word % 5 for word in some_words(words)],
    ),
    "t5": (t5, some_words),
    "causal language model": (gpt, lambda words: words),
}


class Gradients(TrainerCallback):
    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.values = {name: item.grad.clone() for name, item in model.named_parameters() if item.grad is not None}


def step(folder: Path, case: str, size: int, *, samples: int = SAMPLES, **more: Any) -> tuple[float, dict[str, Tensor]]:
    """Returns the loss and the gradients of one step over all samples, in micro-batches of this size."""
    make, labels = CASES[case]
    transformers.set_seed(7)
    model = make()
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    gradients = Gradients()
    options = {"max_steps": 1, "max_grad_norm": 0, "train_sampling_strategy": "sequential", "warmup_steps": 0, **more}
    options |= {"per_device_train_batch_size": size, "gradient_accumulation_steps": -(-samples // size)}
    trainer = footplate.Trainer(
        model,
        arguments(footplate, folder, **options),
        data_collator=footplate.DataCollatorForTokenClassification(tokenizer())
        if isinstance(labels(sentences(1)[0]), list) and case != "several classes"
        else transformers.DataCollatorWithPadding(tokenizer()),
        train_dataset=rows(labels)[:samples],
        callbacks=[gradients],
    )
    trainer.train()
    return trainer.state.log_history[0]["loss"], gradients.values


@pytest.mark.parametrize("case", CASES)
def test_accumulated_loss_and_gradients_equal_those_of_one_batch(tmp_path: Path, case: str) -> None:
    loss, gradients = step(tmp_path, case, SAMPLES)

    for size in (4, 3, 1):
        again, others = step(tmp_path, case, size)
        assert again == pytest.approx(loss, rel=1e-5), size
        assert others.keys() == gradients.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(others[name], gradient, rtol=1e-4, atol=1e-7)


def test_accumulation_and_a_split_of_the_batch_for_memory_give_the_same_loss(tmp_path: Path) -> None:
    loss, _ = step(tmp_path, "masked language model", SAMPLES, auto_find_batch_size=True)

    assert step(tmp_path, "masked language model", 4, auto_find_batch_size=True)[0] == pytest.approx(loss, rel=1e-5)


class TokenMeans(nn.Module):
    """Returns its own mean over tokens, and runs out of memory with more samples than `most`."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.words, self.head = most, nn.Embedding(40, 8), nn.Linear(8, 5)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        if len(input_ids) > self.most:
            raise MemoryError
        logits = self.head(self.words(input_ids))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def test_a_batch_split_for_memory_weights_a_mean_over_tokens_by_its_tokens(tmp_path: Path) -> None:
    def of_at_most(most: int) -> tuple[float, dict[str, Tensor]]:
        transformers.set_seed(7)
        words = torch.randint(40, (8, 6))
        ignored = torch.arange(6) < torch.tensor([0, 5, 3, 6, 1, 6, 2, 4]).unsqueeze(-1)
        labels = (words % 5).masked_fill(ignored, -100)
        gradients, data = Gradients(), [{"input_ids": words[n], "labels": labels[n]} for n in range(8)]
        values = {"gradient_accumulation_steps": 2, "max_steps": 1, "max_grad_norm": 0, "warmup_steps": 0}
        args = arguments(footplate, tmp_path, auto_find_batch_size=True, **values)
        trainer = footplate.Trainer(TokenMeans(most), args, train_dataset=data, callbacks=[gradients])
        trainer.train()
        return trainer.state.log_history[0]["loss"], gradients.values

    loss, gradients = of_at_most(4)

    for most in (2, 1):
        again, others = of_at_most(most)
        assert again == pytest.approx(loss, rel=1e-5)
        for name, gradient in gradients.items():
            torch.testing.assert_close(others[name], gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("fits", [{}, {"auto_find_batch_size": True}], ids=["plain", "split for memory"])
def test_sync_gradients_is_true_only_in_the_last_micro_batch(tmp_path: Path, fits: dict[str, Any]) -> None:
    """Losses of libraries read `accelerator.sync_gradients`, for example the adaptive entropy of GRPO."""

    def script(side: Any, folder: Path) -> list[bool]:
        class Reads(side.Trainer):  # type: ignore[misc, name-defined]
            def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
                flags.append(self.accelerator.sync_gradients)
                return super().training_step(*args, **kwargs)  # type: ignore[no-any-return]

        flags: list[bool] = []
        # An epoch has eight batches, so its last step has two of them.
        args = arguments(side, folder, gradient_accumulation_steps=3, **fits)
        Reads(Noisy(divides=False), args, train_dataset=points()).train()
        return flags

    ours, theirs = script(footplate, tmp_path / "ours"), script(transformers, tmp_path / "theirs")

    assert ours == theirs
    assert ours[:8] == [False, False, True, False, False, True, False, True]


# Detection of the loss scaling


class Noisy(nn.Module):
    """Draws from every generator, counts in a buffer, and divides by the number of items or ignores it."""

    def __init__(self, *, divides: bool) -> None:
        super().__init__()
        self.divides = divides
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 4))
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, labels: Tensor, num_items_in_batch: Any = None) -> dict[str, Tensor]:
        if self.training:
            self.calls = self.calls + 1
        loss = nn.functional.cross_entropy(self.layers(x), labels, reduction="sum")
        divisor = num_items_in_batch if self.divides and num_items_in_batch is not None else len(labels)
        return {"loss": loss / divisor}


def points() -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    return [{"x": torch.randn(3, generator=generator), "labels": n % 4} for n in range(30)]


class AddsUp(footplate.Trainer):
    loss_is_scaled_for_ga = True


def trained(folder: Path, kind: Any, model: Any = None, *, divides: bool = True, **more: Any) -> Any:
    transformers.set_seed(7)
    trainer = kind(
        model or Noisy(divides=divides),
        arguments(footplate, folder, gradient_accumulation_steps=3, max_steps=6, **more),
        train_dataset=points(),
    )
    trainer.train(resume_from_checkpoint=bool(more.get("resume_from_checkpoint")))
    return trainer


def test_detecting_the_loss_scaling_does_not_change_the_run(tmp_path: Path) -> None:
    """A Trainer class that states the scaling skips the detection. Its run is the same to the last bit."""
    with_argument = trained(tmp_path / "asked", footplate.Trainer)
    random = torch.get_rng_state()
    unasked = trained(tmp_path / "unasked", AddsUp)

    assert with_argument._footplate.model_divides_by_items is True
    assert unasked._footplate.model_divides_by_items is None
    assert [row.get("loss") for row in with_argument.state.log_history] == [
        row.get("loss") for row in unasked.state.log_history
    ]
    assert random.equal(torch.get_rng_state())
    for name, value in with_argument.model.state_dict().items():
        assert value.equal(unasked.model.state_dict()[name]), name


def test_the_loss_scaling_is_detected_with_two_calls_of_the_model_per_run(tmp_path: Path) -> None:
    calls = []
    model = Noisy(divides=False)
    model.register_forward_pre_hook(lambda *args: calls.append(torch.is_grad_enabled()))

    trained(tmp_path, footplate.Trainer, model)

    assert calls == [False, False] + [True] * (len(calls) - 2)


def test_without_accumulation_the_loss_scaling_is_not_detected(tmp_path: Path) -> None:
    model = Noisy(divides=False)
    trainer = footplate.Trainer(model, arguments(footplate, tmp_path, max_steps=2), train_dataset=points())

    trainer.train()

    assert model.calls == 2
    assert trainer._footplate.model_divides_by_items is None


def test_a_model_that_ignores_num_items_in_batch_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "footplate.trainer"):
        trained(tmp_path / "ignores", footplate.Trainer, divides=False)
        trained(tmp_path / "divides", footplate.Trainer, divides=True)

    messages = [record.getMessage() for record in caplog.records if "num_items_in_batch" in record.getMessage()]
    assert len(messages) == 1
    assert "Noisy" in messages[0]
    assert "loss_is_scaled_for_ga = True" in messages[0]


def test_detecting_the_loss_scaling_does_not_compile_the_model(tmp_path: Path) -> None:
    compiled = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    counts = []
    for kind in (footplate.Trainer, AddsUp):
        torch._dynamo.reset()
        compiled.clear()
        model = Noisy(divides=True)
        model.compile(backend=backend)
        trained(tmp_path / kind.__name__, kind, model)
        counts.append(len(compiled))

    assert counts[0] == counts[1] > 0


def test_a_run_whose_model_ignores_num_items_resumes_bit_identically(tmp_path: Path) -> None:
    saves = {"save_strategy": "steps", "save_steps": 3}
    whole = trained(tmp_path / "run", footplate.Trainer, divides=False, **saves)
    (tmp_path / "run" / "checkpoint-6").rename(tmp_path / "later")

    rest = trained(tmp_path / "run", footplate.Trainer, divides=False, resume_from_checkpoint="yes", **saves)

    assert fingerprint(rest, []) == fingerprint(whole, [])


@pytest.mark.parametrize("case", ["masked language model", "classes of tokens"])
def test_loss_is_scaled_for_ga_gives_the_losses_of_transformers(tmp_path: Path, case: str) -> None:
    """The loss of transformers is the sum of the means, so it grows with the number of micro-batches."""
    make, labels = CASES[case]
    losses = []
    for side, kind in ((footplate, AddsUp), (transformers, transformers.Trainer)):
        transformers.set_seed(7)
        trainer = kind(
            make(),
            arguments(side, tmp_path / side.__name__, gradient_accumulation_steps=2, max_steps=2),
            data_collator=transformers.DataCollatorForTokenClassification(tokenizer()),
            train_dataset=rows(labels),
        )
        trainer.train()
        losses.append([row["loss"] for row in trainer.state.log_history if "loss" in row])

    assert losses[0] == losses[1]
