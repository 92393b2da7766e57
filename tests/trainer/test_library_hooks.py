"""Private methods and attributes that libraries override and read: TRL, sentence-transformers, SetFit and others."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import footplate
from footplate.contract.errors import NotAvailableYet
from tests.trainer.sides import arguments, assert_same, on_both


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: Tensor, labels: Tensor, **more: Any) -> dict[str, Tensor]:
        logits = self.layer(x)
        return {"loss": (logits.squeeze(-1) - labels).square().mean(), "logits": logits}


class TakesAnything(Linear):
    def forward(self, **batch: Any) -> dict[str, Tensor]:  # type: ignore[override]
        return super().forward(batch["x"], batch["labels"])


ROWS = [{"x": [float(n), 1.0], "labels": float(n % 3), "lengths": n, "text": "unused"} for n in range(10)]


def short(side: Any, folder: Path, **more: Any) -> Any:
    return arguments(side, folder, **{"max_steps": 2, "eval_strategy": "steps", "eval_steps": 1, **more})


@pytest.mark.parametrize("model", [Linear, TakesAnything])
def test_a_subclass_chooses_the_columns_that_reach_the_collator(tmp_path: Path, model: type[nn.Module]) -> None:
    def script(side: Any, folder: Path) -> Any:
        class Chooses(side.Trainer):  # type: ignore[misc, name-defined]
            def _set_signature_columns_if_needed(self) -> None:
                if self._signature_columns is None:
                    self._signature_columns = ["x", "labels", "lengths"]

        def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
            columns.update(name for row in rows for name in row)
            return {name: torch.tensor([row[name] for row in rows]) for name in ("x", "labels")}

        trainer = Chooses(model(), short(side, folder, label_names=["labels"]), collate, ROWS, ROWS[:4])
        trainer.train()
        return trainer, {}

    columns: set[str] = set()
    ours, theirs = on_both(tmp_path, script)

    assert_same(ours, theirs)
    assert columns == {"x", "labels", "lengths"}


def test_columns_dropped_from_the_data_are_logged_once_for_all_evaluations(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    footplate.Trainer(Linear(), short(footplate, tmp_path), train_dataset=ROWS, eval_dataset=ROWS[:4]).train()

    lines = [record.getMessage() for record in caplog.records if "dropped from the data" in record.getMessage()]
    assert len(lines) == 1
    assert "text" in lines[0]


def test_one_method_makes_all_loaders_with_the_same_arguments_as_under_transformers(tmp_path: Path) -> None:
    def script(side: Any, folder: Path) -> list[Any]:
        class Notes(side.Trainer):  # type: ignore[misc, name-defined]
            def _get_dataloader(self, dataset: Any, description: str, **more: Any) -> Any:
                calls.append((len(dataset), description, more["batch_size"], sorted(more)))
                return super()._get_dataloader(dataset, description, **more)

        calls: list[Any] = []
        rows = [{name: row[name] for name in ("x", "labels")} for row in ROWS]
        trainer = Notes(Linear(), short(side, folder), train_dataset=rows, eval_dataset={"one": rows[:4], "two": rows})
        trainer.train()
        trainer.predict(rows[:3])
        return calls

    assert script(footplate, tmp_path / "ours") == script(transformers, tmp_path / "theirs")


def test_a_new_model_keeps_the_attributes_that_a_subclass_has_set(tmp_path: Path) -> None:
    """If a new model reset `can_return_loss`, sentence-transformers would evaluate without its loss."""

    class Sets(footplate.Trainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.can_return_loss = self.model_accepts_loss_kwargs = self._loss_shifts_labels = True
            self.label_names = ["labels", "more"]

    args = short(footplate, tmp_path, eval_strategy="no")
    trainer = Sets(None, args, train_dataset=ROWS, model_init=Linear)
    trainer.train()

    assert (trainer.can_return_loss, trainer.model_accepts_loss_kwargs, trainer._loss_shifts_labels) == (True,) * 3
    assert trainer.label_names == ["labels", "more"]


def test_the_method_that_loads_optimizer_and_schedule_is_always_called(tmp_path: Path) -> None:
    class Notes(footplate.Trainer):
        def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
            calls.append(checkpoint)
            super()._load_optimizer_and_scheduler(checkpoint)

        def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
            calls.append(kwargs["resume_from_checkpoint"])
            return super()._inner_training_loop(*args, **kwargs)

    calls: list[str | None] = []
    args = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "no"}
    Notes(Linear(), short(footplate, tmp_path, **args), train_dataset=ROWS).train()
    checkpoint = str(tmp_path / "checkpoint-1")
    Notes(Linear(), short(footplate, tmp_path, **args), train_dataset=ROWS).train(checkpoint)

    assert calls == [None, None, checkpoint, checkpoint]


def test_callbacks_get_the_checkpoint_of_a_subclass_whose_save_returns_nothing(tmp_path: Path) -> None:
    class SavesMore(footplate.Trainer):
        def _save_checkpoint(self, model: Any, trial: Any) -> None:  # type: ignore[override]
            super()._save_checkpoint(model, trial)

    class Notes(footplate.TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            saved_steps.append(kwargs["checkpoint"].step)

    saved_steps: list[int] = []
    args = short(footplate, tmp_path, save_strategy="steps", save_steps=1, eval_strategy="no")
    SavesMore(Linear(), args, train_dataset=ROWS, callbacks=[Notes()]).train()

    assert saved_steps == [1, 2]


def test_an_evaluation_counts_the_samples_of_batches_without_tensors(tmp_path: Path) -> None:
    """A batch of GRPO is a list of rows with texts, without tensors."""

    def script(side: Any, folder: Path) -> Any:
        class Reads(side.Trainer):  # type: ignore[misc, name-defined]
            def _prepare_inputs(self, inputs: Any) -> dict[str, Tensor]:
                return {name: torch.tensor([float(row[name]) for row in inputs]) for name in ("number", "labels")}

            def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
                x = torch.stack([inputs["number"], torch.ones_like(inputs["number"])], -1)
                outputs = model(x, inputs["labels"])
                return (outputs["loss"], outputs) if kwargs.get("return_outputs") else outputs["loss"]

            def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
                with torch.no_grad():
                    return self.compute_loss(model, self._prepare_inputs(inputs)).detach(), None, None

        rows = [{"number": str(n), "labels": str(n % 3)} for n in range(7)]
        args = short(side, folder, remove_unused_columns=False)
        trainer = Reads(Linear(), args, lambda rows: rows, rows, rows)
        trainer.train()
        return trainer, trainer.evaluate()

    assert_same(*on_both(tmp_path, script))


def test_no_exact_loss_is_reported_if_a_subclass_overrides_compute_loss(tmp_path: Path) -> None:
    class Own(footplate.Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
            outputs = model(inputs["x"], inputs["labels"][:, 0])
            return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

    rows = [{"x": row["x"], "labels": [n % 3, 1]} for n, row in enumerate(ROWS)]
    trainer = Own(Linear(), short(footplate, tmp_path), train_dataset=rows, eval_dataset=rows)

    assert "eval_loss_exact" not in trainer.evaluate()
    watching = short(footplate, tmp_path, eval_strategy="epoch", metric_for_best_model="loss_exact")
    with pytest.raises(ValueError, match=r"loss_exact.*Own overrides compute_loss.*to \"loss\""):
        Own(Linear(), watching, train_dataset=rows, eval_dataset=rows)


READ_FROM_A_TRAINER = (
    "is_deepspeed_enabled", "is_fsdp_enabled", "deepspeed",
    "neftune_noise_alpha", "hp_search_backend", "loss_is_scaled_for_ga", "push_in_progress",
    "_loss_shifts_labels",
    "_signature_columns",
)  # fmt: skip
READ_FROM_ARGUMENTS = (
    "_VALID_DICT_FIELDS", "deepspeed_plugin", "mixed_precision", "default_optim", "_n_gpu",
    "_setup_devices", "distributed_state",
)  # fmt: skip


def test_attributes_that_libraries_read_have_the_same_values_as_under_transformers(tmp_path: Path) -> None:
    def script(side: Any, folder: Path) -> dict[str, Any]:
        args = arguments(side, folder)
        trainer = side.Trainer(Linear(), args, train_dataset=ROWS)
        # The Trainer of transformers sets some attributes later or never, which counts as None here.
        values = {name: getattr(trainer, name, None) for name in READ_FROM_A_TRAINER}
        values["gather_function"] = trainer.gather_function(torch.ones(2)).tolist() if side is footplate else [1.0, 1.0]
        arg_values = {name: getattr(args, name) for name in READ_FROM_ARGUMENTS}
        arg_values["_VALID_DICT_FIELDS"] = sorted(arg_values["_VALID_DICT_FIELDS"])
        arg_values["distributed_state"] = arg_values["distributed_state"].num_processes
        return values | arg_values

    assert script(footplate, tmp_path / "ours") == script(transformers, tmp_path / "theirs")


def test_a_subclass_of_the_arguments_can_declare_fields_that_accept_json(tmp_path: Path) -> None:
    @dataclass
    class Config(footplate.TrainingArguments):
        _VALID_DICT_FIELDS = [*footplate.TrainingArguments._VALID_DICT_FIELDS, "model_init_kwargs"]  # noqa: RUF012
        model_init_kwargs: Any = field(default=None)

    args = Config(str(tmp_path), model_init_kwargs='{"a": 1}', lr_scheduler_kwargs='{"num_cycles": 2}')

    assert args.model_init_kwargs == {"a": 1}
    assert args.lr_scheduler_kwargs == {"num_cycles": 2}


def test_a_subclass_that_defines_our_private_attribute_is_refused() -> None:
    with pytest.raises(NotAvailableYet, match="own state: _footplate"):
        type("Own", (footplate.Trainer,), {"_footplate": None})


def test_private_names_of_a_library_do_not_collide_with_ours(tmp_path: Path) -> None:
    """GRPO's trainer has an attribute `_step` and a method `_prepare`."""

    class Library(footplate.Trainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._step = self._run = self._plan = self._epoch = self._metrics = 0

        def _prepare(self) -> None:
            raise AssertionError

        def _train(self) -> None:
            raise AssertionError

        _finish = _conclude = _seed = _handler = _loader = _train

    assert Library(Linear(), short(footplate, tmp_path), train_dataset=ROWS, eval_dataset=ROWS[:4]).train()


@dataclass
class LibrarysArguments(transformers.TrainingArguments):
    """Stands for the arguments of a library that was imported before footplate.install()."""


def test_arguments_of_a_library_that_was_imported_too_early_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"import TrainingArguments from footplate too"):
        footplate.Trainer(Linear(), transformers.TrainingArguments(str(tmp_path)))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"LibrarysArguments.*footplate.install\(\)"):
        footplate.Trainer(Linear(), LibrarysArguments(str(tmp_path)))


def test_the_control_is_restored_and_cleared_by_the_same_methods_as_in_transformers() -> None:
    for side in (footplate, transformers):
        control = side.TrainerControl(should_save=True, should_training_stop=True, should_epoch_stop=True)
        assert side.TrainerControl.from_state(control.state()) == control
        control._new_step()
        assert (control.should_save, control.should_training_stop) == (False, True)
        control._new_training()
        control._new_epoch()
        assert control == side.TrainerControl()


@pytest.mark.parametrize(
    ("best", "value", "threshold"),
    [(None, 1.0, 0.0), (0.5, 0.6, 0.0), (0.5, 0.55, 0.1), (0.5, 0.4, -1.0), (0.5, float("nan"), 0.0)],
)
def test_early_stopping_counts_patience_as_in_transformers(best: float | None, value: float, threshold: float) -> None:
    counters = []
    for side in (footplate, transformers):
        callback = side.EarlyStoppingCallback(3, threshold)
        state = side.TrainerState(best_metric=best)
        callback.check_metric_value(SimpleNamespace(greater_is_better=True), state, side.TrainerControl(), value)
        counters.append(callback.early_stopping_patience_counter)

    assert counters[0] == counters[1]


def test_a_dtype_in_the_arguments_is_written_to_json_by_name(tmp_path: Path) -> None:
    args = footplate.TrainingArguments(str(tmp_path), lr_scheduler_kwargs={"dtype": torch.float32})

    assert json.loads(args.to_json_string())["lr_scheduler_kwargs"] == {"dtype": "float32"}


def test_memory_is_not_pinned_without_a_device(tmp_path: Path) -> None:
    assert footplate.TrainingArguments(str(tmp_path), use_cpu=True).dataloader_pin_memory is False


def test_the_class_accelerator_config_instead_of_an_instance_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match="AcceleratorConfig is a class"):
        footplate.TrainingArguments(str(tmp_path), accelerator_config=footplate.AcceleratorConfig)  # type: ignore[arg-type]


def test_the_start_of_a_run_is_logged_with_its_sizes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "footplate.trainer"):
        footplate.Trainer(Linear(), arguments(footplate, tmp_path, max_steps=1), train_dataset=ROWS).train()

    lines = [record.getMessage() for record in caplog.records]
    first = lines.index("***** Running training *****")
    assert lines[first + 1] == "  Num examples = 10, epochs = 1, optimization steps = 1"


def test_several_gpus_for_one_process_are_refused(tmp_path: Path) -> None:
    args = footplate.TrainingArguments(str(tmp_path))
    args._n_gpu = 1
    with pytest.raises(ValueError, match="one process uses one GPU"):
        args._n_gpu = 2


def test_an_override_can_add_arguments_of_the_accelerator(tmp_path: Path) -> None:
    class Own(footplate.Trainer):
        def _build_accelerator_args(self, **kwargs: Any) -> dict[str, Any]:
            return {**super()._build_accelerator_args(**kwargs), "step_scheduler_with_optimizer": False}

    trainer = Own(Linear(), arguments(footplate, tmp_path, ddp_static_graph=True))

    assert trainer.accelerator.step_scheduler_with_optimizer is False
    (handler,) = trainer._build_accelerator_args()["kwargs_handlers"]
    assert handler.static_graph is True


def test_the_accelerator_has_the_settings_of_its_config_file(tmp_path: Path) -> None:
    settings = {"split_batches": True, "dispatch_batches": True, "even_batches": False, "non_blocking": True}
    (tmp_path / "config.json").write_text(json.dumps({**settings, "use_seedable_sampler": False}))
    args = arguments(footplate, tmp_path, accelerator_config=tmp_path / "config.json")

    accelerator = footplate.Trainer(Linear(), args).accelerator

    assert {name: getattr(accelerator, name) for name in settings} == settings
    assert accelerator.use_seedable_sampler is False


def test_a_data_order_from_the_global_generator_equals_that_of_transformers(tmp_path: Path) -> None:
    def script(side: Any, folder: Path) -> Any:
        config = {"use_seedable_sampler": False}
        trainer = side.Trainer(Linear(), arguments(side, folder, accelerator_config=config), train_dataset=ROWS)
        trainer.train()
        return trainer, {}

    ours, theirs = on_both(tmp_path, script)

    assert_same(ours, theirs)


def test_memory_metrics_name_their_stage_and_report_init_only_once(tmp_path: Path) -> None:
    args = arguments(footplate, tmp_path, max_steps=1, skip_memory_metrics=False)
    trainer = footplate.Trainer(Linear(), args, train_dataset=ROWS, eval_dataset=ROWS[:4])

    stages = [trainer.evaluate(metric_key_prefix="mine"), trainer.train().metrics, trainer.predict(ROWS[:4]).metrics]

    names = [{name.partition("_mem_")[0] for name in metrics if "_mem_" in name} for metrics in stages]
    assert names == [{"before_init", "init", "eval"}, {"train"}, {"test"}]


def test_label_smoothing_is_switched_off_for_multi_label_models(tmp_path: Path) -> None:
    model = Linear()
    model.config = SimpleNamespace(problem_type="multi_label_classification")  # type: ignore[assignment]

    with pytest.warns(UserWarning, match="Label smoothing is not compatible with multi-label classification"):
        trainer = footplate.Trainer(model, arguments(footplate, tmp_path, label_smoothing_factor=0.1))

    assert trainer.label_smoother is None


def test_a_run_in_a_kubeflow_pod_reports_to_kubeflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", "https://test-url")
    trainer = footplate.Trainer(Linear(), arguments(footplate, tmp_path))

    assert trainer.args.report_to == ["kubeflow"]
    assert "KubeflowCallback" in trainer.callback_handler.callback_list


def test_save_strategy_best_requires_metric_for_best_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`args\.metric_for_best_model` must be provided"):
        arguments(footplate, tmp_path, save_strategy="best", eval_strategy="epoch")


def test_torch_empty_cache_steps_refuses_anything_but_a_positive_integer(tmp_path: Path) -> None:
    for value in (1.0, "none", 0, -1):
        with pytest.raises(ValueError, match="torch_empty_cache_steps"):
            arguments(footplate, tmp_path, torch_empty_cache_steps=value)
