"""Tests the methods that scripts call or override: results and calls equal those of Hugging Face's."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from dataclasses import field, make_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers.trainer_pt_utils import metrics_format

import footplate
from footplate.components import toy
from tests.trainer.sides import noting, on_both

SETTERS: dict[str, dict[str, Any]] = {
    "set_training": {
        "learning_rate": 1e-3, "batch_size": 4, "weight_decay": 0.1, "num_epochs": 2, "max_steps": 7,
        "gradient_accumulation_steps": 3, "seed": 9, "activation_checkpointing": True,
    },
    "set_evaluate": {
        "strategy": "steps", "steps": 7, "batch_size": 3, "accumulation_steps": 2, "delay": 1.5, "loss_only": True,
    },
    "set_testing": {"batch_size": 5, "loss_only": True},
    "set_save": {"strategy": "epoch", "steps": 7, "total_limit": 3, "on_each_node": True},
    "set_logging": {
        "strategy": "epoch", "steps": 7, "report_to": ["tensorboard"], "level": "info", "first_step": True,
        "nan_inf_filter": True, "on_each_node": True, "replica_level": "error",
    },
    "set_push_to_hub": {
        "model_id": "me/it", "strategy": "end", "token": "hf_x", "private_repo": True, "always_push": True,
        "revision": "side",
    },
    "set_optimizer": {
        "name": "sgd", "learning_rate": 1e-2, "weight_decay": 0.2, "beta1": 0.8, "beta2": 0.9, "epsilon": 1e-6,
        "args": "momentum=0.9",
    },
    "set_lr_scheduler": {"name": "cosine", "num_epochs": 2, "max_steps": 9, "warmup_steps": 0.25},
    "set_dataloader": {
        "train_batch_size": 2, "eval_batch_size": 3, "drop_last": True, "num_workers": 1, "pin_memory": False,
        "persistent_workers": True, "prefetch_factor": 4, "multiprocessing_context": "fork", "in_order": False,
        "auto_find_batch_size": False, "ignore_data_skip": True, "sampler_seed": 11,
    },
}  # fmt: skip
NEEDED = {"set_push_to_hub": {"model_id": "me/it"}}
"""Arguments that a setter requires."""


@pytest.mark.parametrize("setter", SETTERS)
def test_a_setter_of_the_arguments_sets_what_that_of_transformers_sets(setter: str, tmp_path: Path) -> None:
    def changes(side: Any, *calls: dict[str, Any]) -> dict[str, Any]:
        args = side.TrainingArguments(str(tmp_path))
        before = plain(args)
        for call in calls:
            assert getattr(args, setter)(**call) is args
        return {name: value for name, value in plain(args).items() if value != before[name]}

    report, untold = SETTERS[setter], NEEDED.get(setter, {})
    assert changes(footplate, report) == changes(transformers, report) != {}
    assert changes(footplate, untold) == changes(transformers, untold)
    assert changes(footplate, report, untold) == changes(transformers, report, untold)


def plain(args: Any) -> dict[str, Any]:
    """Returns the arguments in one form for both libraries: the real token, a list of reporters, and 0 for no delay."""
    values = dict(args.to_dict())
    return {
        **values,
        "hub_token": args.hub_token,
        "report_to": [] if args.report_to == "none" else args.report_to,
        "eval_delay": values["eval_delay"] or 0,
    }


class Order(Enum):
    FIRST = "first"


def test_to_dict_has_the_same_values_of_a_librarys_arguments(tmp_path: Path) -> None:
    """The model cards of sentence-transformers list these values."""
    own = [("order", Any, Order.FIRST), ("orders", Any, field(default_factory=lambda: [Order.FIRST])),
           ("computed", int, field(default=0, init=False))]  # fmt: skip

    def values(side: Any) -> dict[str, Any]:
        kind = make_dataclass("Own", own, bases=(side.TrainingArguments,))
        stated = kind(str(tmp_path), use_cpu=True, accelerator_config={"even_batches": False}).to_dict()
        names = ("order", "orders", "computed", "accelerator_config", "lr_scheduler_type")
        return {name: (type(stated.get(name)), stated.get(name)) for name in names}

    assert values(footplate) == values(transformers)


def a_script(side: Any, folder: Path) -> Any:
    args = side.TrainingArguments(
        str(folder), max_steps=3, per_device_train_batch_size=4, gradient_accumulation_steps=2, learning_rate=1e-2,
        weight_decay=0.1, logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
        dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = side.Trainer(toy.mlp(hidden=16), args, train_dataset=toy.classification(n=41))
    trainer.add_callback(noting(side))
    return trainer, trainer.train().metrics


def test_helper_methods_return_what_those_of_transformers_return(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = (side.trainer for side in on_both(tmp_path, a_script))
    metrics = {
        "train_runtime": 3723.4567, "train_loss": 0.123456, "total_flos": 5 << 30, "train_samples": 41,
        "init_mem_cpu_alloc_delta": 5 << 20,
    }  # fmt: skip

    def answers(trainer: Any) -> dict[str, Any]:
        loader = trainer.get_train_dataloader()
        names = [name for name, _ in trainer.model.named_parameters()]
        capsys.readouterr()
        trainer.log_metrics("train", dict(metrics))
        output = capsys.readouterr().out
        trainer.save_metrics("train", dict(metrics))
        trainer.save_metrics("eval", {"eval_loss": 0.5})
        trainer.save_metrics("apart", {"apart": 1}, combined=False)
        trainer.save_state()
        folder = Path(trainer.args.output_dir)
        state = json.loads((folder / "trainer_state.json").read_text())
        return {
            "trainable": trainer.get_num_trainable_parameters(),
            "rates": trainer.get_learning_rates(),
            "decays": sorted(trainer.get_decay_parameter_names(trainer.model)),
            "groups": [[tuple(item.shape) for item in group] for group in trainer.get_optimizer_group()],
            "examples": trainer.num_examples(loader),
            "batch": trainer.get_total_train_batch_size(trainer.args),
            "sizes": (trainer.get_tp_size(), trainer.get_cp_size(), trainer.get_sp_size()),
            "main": (trainer.is_local_process_zero(), trainer.is_world_process_zero()),
            "callbacks": trainer.callback_handler.callback_list.splitlines()[-1],
            "printed": output,
            "files": {
                name: json.loads((folder / f"{name}_results.json").read_text())
                for name in ("train", "eval", "apart", "all")
            },
            "state": (state["global_step"], state["max_steps"], len(state["log_history"])),
            "names": names,
            "timeout": trainer.args.ddp_timeout_delta,
            "parallel": trainer.args.parallel_mode.value,
        }

    assert answers(ours) == answers(theirs)
    assert ours.metrics_format(dict(metrics)) == metrics_format(dict(metrics))


def test_get_optimizer_group_accepts_a_parameter_or_its_name(tmp_path: Path) -> None:
    """Hugging Face's Trainer compares the values of tensors, and fails if shapes differ."""
    trainer, _ = a_script(footplate, tmp_path)
    for name, parameter in trainer.model.named_parameters():
        decay = 0.0 if name.endswith("bias") else 0.1
        for argument in (name, parameter):
            assert trainer.get_optimizer_group(argument)["weight_decay"] == decay, name


OVERRIDES = (
    "train", "evaluate", "predict", "evaluation_loop", "prediction_step", "training_step", "compute_loss",
    "compute_loss_context_manager", "autocast_smart_context_manager", "get_train_dataloader", "get_eval_dataloader",
    "get_test_dataloader", "get_batch_samples", "create_optimizer", "create_scheduler", "get_optimizer_cls_and_kwargs",
    "get_decay_parameter_names", "set_initial_training_values", "create_accelerator_and_postprocess", "call_model_init",
    "floating_point_ops", "log", "save_model", "is_local_process_zero", "is_world_process_zero", "_save_checkpoint",
    "_prepare_inputs", "_get_train_sampler", "_get_eval_sampler", "_save", "_determine_best_metric",
    "_get_num_items_in_batch", "_load_best_model", "_evaluate",
)  # fmt: skip


def counted(side: Any, calls: Counter[str]) -> Any:
    """Returns a Trainer class of that library which counts the calls of its methods."""

    def counting(name: str) -> Any:
        theirs = inspect.getattr_static(side.Trainer, name)
        plain = theirs.__func__ if isinstance(theirs, staticmethod) else theirs

        def method(*positional: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return plain(*positional, **kwargs)

        return staticmethod(method) if isinstance(theirs, staticmethod) else method

    return type("Counted", (side.Trainer,), {name: counting(name) for name in OVERRIDES})


def test_an_override_is_called_as_often_as_in_transformers(tmp_path: Path) -> None:
    def script(side: Any, folder: Path) -> Any:
        calls: Counter[str] = Counter()
        args = side.TrainingArguments(
            str(folder), max_steps=4, per_device_train_batch_size=4, gradient_accumulation_steps=2,
            eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2, logging_steps=1,
            load_best_model_at_end=True, report_to="none", disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False,
        )  # fmt: skip
        data = {"train_dataset": toy.classification(n=41), "eval_dataset": toy.classification(n=10, seed=2)}
        trainer = counted(side, calls)(model_init=lambda: toy.mlp(hidden=8), args=args, **data)
        trainer.train()
        trainer.evaluate()
        trainer.predict(toy.classification(n=6))
        trainer.save_model()
        trainer.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
        return trainer, dict(calls)

    ours, theirs = on_both(tmp_path, script)

    assert ours.returned == theirs.returned
    assert ours.returned.keys() == set(OVERRIDES)


@pytest.mark.parametrize("kind", ["Trainer", "Seq2SeqTrainer"])
def test_a_trainer_has_only_two_public_names_that_transformers_does_not_have(tmp_path: Path, kind: str) -> None:
    args = footplate.Seq2SeqTrainingArguments(
        str(tmp_path), max_steps=2, eval_strategy="steps", eval_steps=1, save_steps=1, report_to="none",
        disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    data = toy.classification(n=8)
    trainer = getattr(footplate, kind)(toy.mlp(hidden=8), args, train_dataset=data, eval_dataset=data)
    trainer.train()
    trainer.predict(data)

    theirs = getattr(transformers, kind)
    sources = [inspect.getsource(item) for item in theirs.__mro__[:-1]]
    names = {*dir(theirs), *(name for source in sources for name in re.findall(r"self\.(\w+)", source))}
    assert {name for name in dir(trainer) if not name.startswith("__")} - names == {"_footplate", "save_merged_model"}
