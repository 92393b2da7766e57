"""Tests scripts for `transformers.Trainer` in which only the import changes. The curves are bit-identical.

The tests compare losses, gradient norms, learning rates, metrics and the order of events. They also compare the final
weights and the state of torch's generator.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import footplate
from tests.trainer import sides
from tests.trainer.sides import arguments, assert_same, bert, gpt, noting, on_both, sentences, tokenizer


def accuracy(prediction: Any) -> dict[str, Any]:
    logits, labels = prediction
    return {"accuracy": (logits.argmax(-1) == labels).mean()}


def a_trainer(side: Any, folder: Path, kind: Any = None, parts: dict[str, Any] | None = None, **more: Any) -> Any:
    """Returns a Trainer that classifies texts, with dropout and a short last batch. `parts` are its other arguments."""
    rows = [{"input_ids": sentence, "label": sentence[0] % 3} for sentence in sentences()]
    values: dict[str, Any] = {
        "train_dataset": rows, "eval_dataset": rows[:7], "processing_class": tokenizer(), "callbacks": [noting(side)],
        **(parts or {}),
    }  # fmt: skip
    if not {"model", "model_init"} & values.keys():
        values["model"] = bert("BertForSequenceClassification", num_labels=3)
    return (kind or side.Trainer)(args=arguments(side, folder, **more), **values)


def classification(side: Any, folder: Path, kind: Any = None, **more: Any) -> Any:
    trainer = a_trainer(side, folder, kind, {"compute_metrics": accuracy}, **more)
    if kind is None:
        trainer.loss_is_scaled_for_ga = True  # transformers adds up means if a model ignores num_items_in_batch
    return trainer, trainer.train().metrics


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"gradient_accumulation_steps": 4},
        {"accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 2}}},
        {"eval_strategy": "steps", "eval_steps": 3, "eval_on_start": True, "gradient_accumulation_steps": 2},
        {"eval_strategy": "epoch", "logging_strategy": "epoch", "lr_scheduler_type": "cosine", "max_grad_norm": 0.3},
        {"max_steps": 7, "max_grad_norm": 0, "optim": "sgd", "dataloader_drop_last": True},
        {"num_train_epochs": 1.5, "lr_scheduler_type": "polynomial", "weight_decay": 0.0, "data_seed": 3},
        {"train_sampling_strategy": "group_by_length", "eval_strategy": "epoch"},
        {"train_sampling_strategy": "batch_rebalance", "gradient_accumulation_steps": 2},
        {"train_sampling_strategy": "sequential", "include_num_input_tokens_seen": "non_padding"},
        {"bf16": True, "eval_strategy": "epoch"},
        {"label_smoothing_factor": 0.1, "neftune_noise_alpha": 5.0, "activation_checkpointing": True},
        {"eval_strategy": "epoch", "lr_scheduler_type": "reduce_lr_on_plateau", "learning_rate": 0.1},
        {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True, "seed": 5},
        {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "best", "metric_for_best_model": "accuracy"},
    ],
    ids=lambda more: ",".join(f"{name}={value}" for name, value in more.items()) or "plain",
)
def test_text_classification_gives_the_curve_of_transformers(tmp_path: Path, more: dict[str, Any]) -> None:
    assert_same(*on_both(tmp_path, partial(classification, **more)))


@pytest.mark.parametrize("more", [{"lr_scheduler_type": "constant"}, {"label_smoothing_factor": 0.1}])
def test_a_causal_language_model_gives_the_curve_of_transformers(tmp_path: Path, more: dict[str, Any]) -> None:
    def script(side: Any, folder: Path) -> Any:
        words = tokenizer()
        trainer = side.Trainer(
            gpt(),
            arguments(side, folder, gradient_accumulation_steps=3, eval_strategy="epoch", **more),
            transformers.DataCollatorForLanguageModeling(words, mlm=False),
            [{"input_ids": sentence} for sentence in sentences()],
            [{"input_ids": sentence} for sentence in sentences(8, seed=4)],
            callbacks=[noting(side)],
        )
        return trainer, trainer.train().metrics

    ours, theirs = on_both(tmp_path, script)

    assert_same(ours, theirs)
    # Only Footplate logs the exact loss, a mean over tokens that does not depend on the batches.
    assert any("eval_loss_exact" in row for row in ours.trainer.state.log_history)


def test_a_masked_language_model_gives_the_curve_of_transformers(tmp_path: Path) -> None:
    def script(side: Any, folder: Path) -> Any:
        trainer = side.Trainer(
            bert("BertForMaskedLM"),
            arguments(side, folder, eval_strategy="epoch", gradient_accumulation_steps=2),
            data_collator=transformers.DataCollatorForLanguageModeling(tokenizer(), mlm_probability=0.3),
            train_dataset=[{"input_ids": sentence} for sentence in sentences()],
            eval_dataset=[{"input_ids": sentence} for sentence in sentences(8, seed=4)],
            callbacks=[noting(side)],
        )
        trainer.loss_is_scaled_for_ga = True
        return trainer, trainer.train().metrics

    assert_same(*on_both(tmp_path, script))


def test_token_classification_gives_the_curve_of_transformers(tmp_path: Path) -> None:
    def script(side: Any, folder: Path) -> Any:
        rows = [
            {"input_ids": sentence, "labels": [-100, *(word % 5 for word in sentence[1:])]} for sentence in sentences()
        ]
        trainer = side.Trainer(
            bert("BertForTokenClassification", num_labels=5),
            arguments(side, folder, eval_strategy="steps", eval_steps=4, gradient_accumulation_steps=2),
            data_collator=transformers.DataCollatorForTokenClassification(tokenizer()),
            train_dataset=rows,
            eval_dataset={"first": rows[:5], "last": rows[-6:]},
            compute_metrics=lambda prediction: {
                "shape": list(prediction.predictions.shape),
                "sum": prediction.label_ids.sum(),
            },
            callbacks=[noting(side)],
        )
        trainer.loss_is_scaled_for_ga = True
        return trainer, trainer.train().metrics

    assert_same(*on_both(tmp_path, script))


class PointNet(nn.Module):
    """A module of the user's own, which has its own argument names and returns a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 8))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, points: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.head(self.norm(self.each(points).amax(dim=1)))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


def clouds() -> list[tuple[torch.Tensor, int]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(n % 5 + 4, 3, generator=generator), n % 4) for n in range(30)]


def padded_clouds(rows: list[tuple[torch.Tensor, int]]) -> dict[str, torch.Tensor]:
    points = nn.utils.rnn.pad_sequence([points for points, _ in rows], batch_first=True)
    return {"points": points, "labels": torch.tensor([label for _, label in rows])}


def test_a_plain_module_with_its_own_collator_gives_the_curve_of_transformers(tmp_path: Path) -> None:
    def script(side: Any, folder: Path) -> Any:
        trainer = side.Trainer(
            model=PointNet(),
            args=arguments(side, folder, gradient_accumulation_steps=3, eval_strategy="epoch", save_strategy="epoch"),
            data_collator=padded_clouds,
            train_dataset=clouds(),
            eval_dataset=clouds()[:10],
            compute_metrics=accuracy,
            callbacks=[noting(side)],
        )
        return trainer, trainer.train().metrics

    assert_same(*on_both(tmp_path, script))


def overriding(side: Any, name: str) -> Any:
    """Returns a subclass with the overrides that scripts usually have."""

    class WeightedLoss(side.Trainer):  # type: ignore[misc, name-defined]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            weights = torch.tensor([1.0, 2.0, 0.5])
            loss = nn.functional.cross_entropy(outputs.logits, labels, weight=weights)
            return (loss, outputs) if return_outputs else loss

    class MeanLoss(WeightedLoss):
        loss_is_scaled_for_ga = False

    class OwnStep(side.Trainer):  # type: ignore[misc, name-defined]
        """Trains adversarially, with a second backward on disturbed embeddings."""

        loss_is_scaled_for_ga = True

        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            loss = super().training_step(model, inputs, num_items_in_batch)
            weight = model.bert.embeddings.word_embeddings.weight
            shaken = 0.01 * weight.grad.sign()
            weight.data.add_(shaken)
            inputs = self._prepare_inputs(inputs)
            with self.compute_loss_context_manager():
                again = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
            self.accelerator.backward(again)
            weight.data.sub_(shaken)
            return (loss + again.detach()) / 2

    class OwnOptimizer(side.Trainer):  # type: ignore[misc, name-defined]
        def create_optimizer(self, *args: Any) -> Any:
            head = [value for name, value in self.model.named_parameters() if name.startswith("classifier")]
            body = [value for name, value in self.model.named_parameters() if not name.startswith("classifier")]
            self.optimizer = torch.optim.Adam([{"params": body, "lr": 1e-3}, {"params": head, "lr": 1e-2}])
            return self.optimizer

        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            self.lr_scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.5)
            return self.lr_scheduler

    class OwnLoader(side.Trainer):  # type: ignore[misc, name-defined]
        def get_train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(
                self.train_dataset, batch_size=5, shuffle=True, collate_fn=self.data_collator
            )

    class OwnPreparedLoader(side.Trainer):  # type: ignore[misc, name-defined]
        def get_train_dataloader(self) -> Any:
            plain = torch.utils.data.DataLoader(
                self.train_dataset, batch_size=5, shuffle=True, collate_fn=self.data_collator
            )
            return self.accelerator.prepare(plain)

    class OwnSampler(side.Trainer):  # type: ignore[misc, name-defined]
        loss_is_scaled_for_ga = True

        def _get_train_sampler(self, *args: Any) -> Any:
            return torch.utils.data.WeightedRandomSampler([1.0 + n for n in range(22)], 22)

    class OwnEvaluation(side.Trainer):  # type: ignore[misc, name-defined]
        def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
            metrics: dict[str, float] = super().evaluate(*args, **kwargs)
            return {**metrics, "eval_score": metrics["eval_accuracy"] - metrics["eval_loss"]}

        def prediction_step(self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None) -> Any:
            loss, logits, labels = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
            return loss, logits.softmax(-1), labels

        def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
            super().log({**logs, "twice": 2 * logs.get("loss", 0.0)}, *args, **kwargs)

    return locals()[name]


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("WeightedLoss", {"gradient_accumulation_steps": 2, "eval_strategy": "epoch"}),
        ("MeanLoss", {"gradient_accumulation_steps": 2, "eval_strategy": "epoch"}),
        ("OwnStep", {"gradient_accumulation_steps": 2}),
        ("OwnOptimizer", {"eval_strategy": "epoch"}),
        ("OwnLoader", {}),
        ("OwnPreparedLoader", {"eval_strategy": "steps", "eval_steps": 3}),
        ("OwnSampler", {"gradient_accumulation_steps": 2}),
        (
            "OwnEvaluation",
            {
                "eval_strategy": "steps",
                "eval_steps": 4,
                "save_steps": 4,
                "save_strategy": "steps",
                "metric_for_best_model": "score",
                "load_best_model_at_end": True,
            },
        ),
    ],
)
def test_subclasses_of_the_trainer_give_the_curve_of_transformers(
    tmp_path: Path, name: str, more: dict[str, Any]
) -> None:
    def script(side: Any, folder: Path) -> Any:
        return classification(side, folder, overriding(side, name), **more)

    assert_same(*on_both(tmp_path, script))


def test_an_own_loss_optimizer_and_schedule_give_the_curve_of_transformers(tmp_path: Path) -> None:
    def loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        total = nn.functional.cross_entropy(outputs.logits, labels, reduction="sum")
        return total / (len(labels) if num_items_in_batch is None else num_items_in_batch)

    def script(side: Any, folder: Path) -> Any:
        model = bert("BertForSequenceClassification", num_labels=3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        parts = {
            "model": model,
            "compute_loss_func": loss,
            "optimizers": (optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)),
            "preprocess_logits_for_metrics": lambda logits, labels: logits.argmax(-1),
            "compute_metrics": lambda prediction: {"same": (prediction.predictions == prediction.label_ids).mean()},
        }
        trainer = a_trainer(side, folder, parts=parts, gradient_accumulation_steps=3, eval_strategy="epoch")
        return trainer, trainer.train().metrics

    assert_same(*on_both(tmp_path, script))


def test_callbacks_that_control_the_run_act_as_in_transformers(tmp_path: Path) -> None:
    def script(side: Any, folder: Path) -> Any:
        class Meddling(side.TrainerCallback):  # type: ignore[misc, name-defined]
            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
                if state.global_step == 3:
                    control.should_evaluate = control.should_save = control.should_log = True
                if state.global_step == 4:
                    control.should_epoch_stop = True
                if state.global_step == 9:
                    control.should_training_stop = True
                return control

            def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                for group in kwargs["optimizer"].param_groups:
                    group["weight_decay"] = 0.01 * state.global_step

        trainer = a_trainer(side, folder, parts={"callbacks": [Meddling, noting(side)]}, num_train_epochs=4)
        return trainer, trainer.train().metrics

    assert_same(*on_both(tmp_path, script))


def test_early_stopping_ends_at_the_same_step_as_in_transformers(tmp_path: Path) -> None:
    best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "save_total_limit": 1}
    best |= {"eval_strategy": "epoch", "save_strategy": "epoch", "num_train_epochs": 9, "learning_rate": 0.05}

    def script(side: Any, folder: Path) -> Any:
        parts = {"callbacks": [side.EarlyStoppingCallback(early_stopping_patience=2), noting(side)]}
        trainer = a_trainer(side, folder, parts=parts, **best)
        return trainer, trainer.train().metrics

    ours, theirs = on_both(tmp_path, script)

    assert_same(ours, theirs)
    assert ours.trainer.state.global_step < ours.trainer.state.max_steps


def test_evaluate_and_predict_without_training_equal_those_of_transformers(tmp_path: Path) -> None:
    def sums(prediction: Any) -> dict[str, Any]:
        parts = (prediction.predictions, prediction.label_ids, prediction.inputs, prediction.losses)
        return {"sums": [part.sum() for part in parts]}

    def script(side: Any, folder: Path) -> Any:
        trainer = a_trainer(side, folder, parts={"compute_metrics": sums}, include_for_metrics=["inputs", "loss"])
        result = trainer.evaluate()
        predicted = trainer.predict(trainer.train_dataset[10:])
        return trainer, {**result, **predicted.metrics, "logits": predicted.predictions.tolist()}

    assert_same(*on_both(tmp_path, script))


def test_a_resumed_run_gives_the_curve_of_transformers(tmp_path: Path) -> None:
    """Hugging Face's resume is not exact in mid-epoch, so both sides continue at an epoch's end."""

    def script(side: Any, folder: Path) -> Any:
        more = {"save_strategy": "epoch", "num_train_epochs": 3, "eval_strategy": "epoch"}
        classification(side, folder, **more)
        transformers.set_seed(99)
        trainer = a_trainer(side, folder, parts={"compute_metrics": accuracy}, **more)
        return trainer, trainer.train(resume_from_checkpoint=str(folder / "checkpoint-6")).metrics

    assert_same(*on_both(tmp_path, script))


def test_a_run_with_model_init_gives_the_curve_of_transformers(tmp_path: Path) -> None:
    def script(side: Any, folder: Path) -> Any:
        make = {"model_init": lambda: bert("BertForSequenceClassification", num_labels=3)}
        trainer = a_trainer(side, folder, parts=make)
        trainer.train()
        return trainer, trainer.train().metrics

    assert_same(*on_both(tmp_path, script))


def test_a_model_has_the_special_tokens_of_its_tokenizer_as_under_transformers(tmp_path: Path) -> None:
    def ids(side: Any) -> list[tuple[Any, ...]]:
        words, model = tokenizer(), gpt()
        words.add_special_tokens({"eos_token": "<end>", "bos_token": "<begin>"})
        model.resize_token_embeddings(len(words))
        args = arguments(side, tmp_path, max_steps=1)
        rows = [{"input_ids": sentence, "labels": sentence} for sentence in [[5, 6, 7]] * 4]
        side.Trainer(model, args, train_dataset=rows, processing_class=words).train()
        configs = (model.config, model.generation_config)
        return [(config.eos_token_id, config.bos_token_id, config.pad_token_id) for config in configs]

    assert ids(footplate) == ids(transformers) == [(40, 41, 0), ([40, 2], 41, 0)]


def test_all_tokens_are_counted_with_one_warning_if_padding_is_unknown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"include_num_input_tokens_seen": "non_padding", "max_steps": 3}
    rows = [{"input_ids": [5, 6, 0], "labels": [5, 6, 0]}] * 12

    with caplog.at_level("WARNING", "footplate.trainer"):
        trainer = footplate.Trainer(gpt(), arguments(footplate, tmp_path, **options), train_dataset=rows)
        trainer.train()

    assert trainer.state.num_input_tokens_seen == 36
    assert caplog.text.count("Could not determine method to count non-padding tokens") == 1


def test_include_num_input_tokens_seen_set_to_true_later_counts_all_tokens(tmp_path: Path) -> None:
    args = arguments(footplate, tmp_path, include_num_input_tokens_seen="non_padding", max_steps=1)
    args.include_num_input_tokens_seen = True
    rows = [{"input_ids": [5, 6, 0], "attention_mask": [1, 1, 0], "labels": [5, 6, -100]}] * 4

    trainer = footplate.Trainer(gpt(), args, train_dataset=rows)
    trainer.train()

    assert trainer.state.num_input_tokens_seen == 12


def test_a_difference_between_both_trainers_is_detected(tmp_path: Path) -> None:
    """Runs with different seeds, so the comparison must fail."""
    ours = sides.run(partial(classification, seed=1), footplate, tmp_path / "ours")
    theirs = sides.run(partial(classification, seed=2), transformers, tmp_path / "theirs")

    with pytest.raises(AssertionError):
        assert_same(ours, theirs)
