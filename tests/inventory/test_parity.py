"""Checks that every public name of transformers is implemented here or declined with a reason.

A test that fails after an upgrade of transformers shows a new name. Add a field or a method for the new name, or
decline it in the table, and run `make fix`.
"""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import transformers
from transformers.trainer_callback import CallbackHandler as TheirHandler

import footplate
from docs.parity_page import OTHER_DEFAULTS, OURS
from footplate.contract.arguments import NOT_YET
from footplate.contract.arguments.legacy import LEGACY, RemovedArgument, RenamedArgument
from footplate.contract.arguments.not_supported import CHOICES_NOT_YET
from footplate.contract.errors import NotAvailableYet
from footplate.trainer.callbacks import EVENTS, CallbackHandler
from footplate.trainer.overrides import NEVER_CALLED as DECLINED

FIELDS = {field.name: field for field in dataclasses.fields(footplate.TrainingArguments)}
THEIRS = {field.name: field for field in dataclasses.fields(transformers.TrainingArguments) if field.init}
METHODS = {
    name: item for name, item in vars(transformers.Trainer).items() if callable(item) or isinstance(item, staticmethod)
}


def default(field: Any) -> Any:
    factory = field.default_factory
    return factory() if factory is not dataclasses.MISSING else field.default


# Arguments


def test_every_argument_of_hugging_face_works_or_is_declined() -> None:
    assert set(THEIRS) == (set(FIELDS) - OURS) | set(NOT_YET)


@pytest.mark.parametrize("name", sorted(set(THEIRS) & set(FIELDS)))
def test_a_default_is_hugging_faces_or_differs_for_a_stated_reason(name: str) -> None:
    same = default(FIELDS[name]) == default(THEIRS[name])

    assert same != (name in OTHER_DEFAULTS), "say why in docs/parity_page.py"


@pytest.mark.parametrize("name", sorted(set(THEIRS) & set(NOT_YET)))
def test_a_declined_argument_is_accepted_with_hugging_faces_default(name: str) -> None:
    entry, args = NOT_YET[name], footplate.TrainingArguments("out")

    assert entry.instead
    assert entry.accepts(default(THEIRS[name])) or entry.neutral == default(THEIRS[name])
    assert getattr(args, name) == entry.neutral


def test_every_choice_of_hugging_face_works_or_is_declined() -> None:
    hints = get_type_hints(footplate.TrainingArguments)
    theirs = {
        "lr_scheduler_type": [item.value for item in transformers.SchedulerType],
        "optim": [item.value for item in transformers.training_args.OptimizerNames],
        "eval_strategy": [item.value for item in transformers.IntervalStrategy],
        "train_sampling_strategy": ["random", "sequential", "group_by_length", "batch_rebalance"],
    }
    for name, choices in theirs.items():
        names = set(get_args(hints[name])) | set(CHOICES_NOT_YET.get(name, {}))
        assert set(choices) <= names, name


def test_an_older_argument_name_is_mapped_or_declined() -> None:
    assert not set(LEGACY) & (set(FIELDS) | set(NOT_YET)), "a name that transformers has again needs no entry"
    for name, old in LEGACY.items():
        assert isinstance(old, RenamedArgument) or old.instead, name


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ({"evaluation_strategy": "epoch"}, {"eval_strategy": "epoch"}),
        ({"warmup_ratio": 0.1}, {"warmup_steps": 0.1}),
        ({"group_by_length": True}, {"train_sampling_strategy": "group_by_length"}),
        ({"no_cuda": True}, {"use_cpu": True}),
        ({"per_gpu_train_batch_size": 3}, {"per_device_train_batch_size": 3}),
        ({"include_inputs_for_metrics": True}, {"include_for_metrics": ["inputs"]}),
        ({"include_tokens_per_second": True}, {"include_num_input_tokens_seen": "all"}),
        ({"overwrite_output_dir": True, "use_mps_device": True}, {}),
    ],
)
def test_an_older_argument_name_warns_and_keeps_its_meaning(older: dict[str, Any], newer: dict[str, Any]) -> None:
    with pytest.warns(FutureWarning, match="is an older name: write"):
        args = footplate.TrainingArguments("out", **older)

    assert args.to_dict() == footplate.TrainingArguments("out", **newer).to_dict()


def test_an_unsupported_argument_is_refused_unless_its_value_is_neutral() -> None:
    for name, old in LEGACY.items():
        if isinstance(old, RemovedArgument):
            for neutral in old.neutral:
                footplate.TrainingArguments("out", **{name: neutral})
            with pytest.raises(NotAvailableYet) as error:
                footplate.TrainingArguments("out", **{name: "something"})
            assert old.instead in str(error.value.hint)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_older_argument_name_that_contradicts_its_newer_name_is_refused() -> None:
    message = "evaluation_strategy='epoch' means eval_strategy='epoch', but eval_strategy is also set, to 'steps'"
    with pytest.raises(ValueError, match=message):
        footplate.TrainingArguments("out", evaluation_strategy="epoch", eval_strategy="steps")  # type: ignore[call-arg]


# Methods, attributes, state, events


def test_every_method_of_hugging_face_exists_or_is_declined_with_a_hint() -> None:
    missing = {name for name in METHODS if not name.startswith("__") and not hasattr(footplate.Trainer, name)}

    assert missing == set(DECLINED) & set(METHODS)
    assert set(DECLINED) <= set(METHODS), "transformers no longer has these names"
    assert all(DECLINED.values())


def test_methods_take_hugging_faces_arguments_by_the_same_names() -> None:
    for name in METHODS:
        if name in DECLINED or (name.startswith("__") and name != "__init__"):
            continue
        theirs = [
            parameter
            for parameter in inspect.signature(getattr(transformers.Trainer, name)).parameters
            if parameter != "self"
        ]
        ours = inspect.signature(getattr(footplate.Trainer, name)).parameters
        assert [value for value in theirs if value not in ours] == [], name


@pytest.mark.parametrize("name", sorted(DECLINED))
def test_a_subclass_that_overrides_a_method_that_is_never_called_is_refused(name: str) -> None:
    with pytest.raises(NotAvailableYet, match=f"Own overrides {name}, which this Trainer never calls"):
        type("Own", (footplate.Trainer,), {name: lambda self, *args, **kwargs: None})


ATTRIBUTES = [
    "model",
    "model_wrapped",
    "args",
    "accelerator",
    "optimizer",
    "lr_scheduler",
    "state",
    "control",
    "callback_handler",
    "data_collator",
    "processing_class",
    "label_names",
    "compute_metrics",
    "is_in_train",
    "train_dataset",
    "eval_dataset",
    "model_init",
    "compute_loss_func",
    "preprocess_logits_for_metrics",
    "optimizer_cls_and_kwargs",
    "current_gradient_accumulation_steps",
    "current_flos",
    "model_accepts_loss_kwargs",
    "can_return_loss",
    "loss_is_scaled_for_ga",
    "_train_batch_size",
]


def test_every_attribute_that_callbacks_and_subclasses_read_exists(tmp_path: Path) -> None:
    from footplate.components import toy

    trainer = footplate.Trainer(toy.mlp(), footplate.TrainingArguments(str(tmp_path), disable_tqdm=True))

    assert [name for name in ATTRIBUTES if not hasattr(trainer, name)] == []


def test_the_state_has_hugging_faces_fields_and_values() -> None:
    ours, theirs = footplate.TrainerState(), transformers.TrainerState()

    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)


def test_the_control_has_hugging_faces_flags() -> None:
    assert dataclasses.asdict(footplate.TrainerControl()) == dataclasses.asdict(transformers.TrainerControl())


def test_the_callback_events_are_hugging_faces() -> None:
    assert set(EVENTS) == {name for name in vars(transformers.TrainerCallback) if name.startswith("on_")}
    for name in (name for name in vars(TheirHandler) if not name.startswith("__")):
        assert hasattr(CallbackHandler, name), name


def test_the_arguments_have_hugging_faces_methods() -> None:
    args = footplate.TrainingArguments("out")
    internal = {"default_optim", "is_torch_greater_or_equal_than_2_8"}
    names = [name for name in dir(transformers.TrainingArguments) if not name.startswith("_") and name not in internal]

    assert [name for name in names if not hasattr(args, name)] == []


NOT_EXPORTED_THERE = (
    "CallbackHandler", "OptimizerNames", "LabelSmoother", "LengthGroupedSampler", "BatchRebalanceSampler",
    "TrainOutput", "SaveStrategy", "PredictionOutput", "EvalLoopOutput", "get_last_checkpoint", "HubStrategy",
    "DebugOption", "ExportableState", "TRAINER_STATE_NAME", "PREFIX_CHECKPOINT_DIR", "find_executable_batch_size",
)  # fmt: skip
"""Names that users import from submodules of transformers."""


def test_the_names_that_people_import_beside_the_trainer_are_exported() -> None:
    assert [name for name in NOT_EXPORTED_THERE if name not in footplate.__all__] == []


MODULES = (
    "trainer", "trainer_seq2seq", "trainer_callback", "trainer_utils", "trainer_pt_utils", "training_args",
    "training_args_seq2seq", "optimization", "hf_argparser", "data.data_collator",
)  # fmt: skip
"""The modules of transformers for training. We do not replace its other modules: models, data and tools."""
NOT_EXPORTED = {
    "DataCollator": "a name for the type of a function: any function of a list of samples",
    "torch_distributed_zero_first": "`with args.main_process_first():`",
}
"""Names that transformers exports and Footplate does not, each with the alternative."""
NOT_IN_CLASS = {
    "DataCollatorForLanguageModeling": {
        "numpy_mask_tokens": 'torch_mask_tokens, which return_tensors="np" converts',
        "get_generator": "create_rng",
    },
    "DataCollatorForPermutationLanguageModeling": {
        "numpy_mask_tokens": 'torch_mask_tokens, which return_tensors="np" converts'
    },
    "TrainerState": {"init_training_references": "the loop sets these fields"},
    "TrainingArguments": {"is_torch_greater_or_equal_than_2_8": "an import that is not meant for users"},
}
"""Members of transformers' classes that our classes do not have, each with the alternative."""
PUBLIC = sorted(name for name, module in transformers._class_to_module.items() if module in MODULES)


def test_every_name_that_transformers_exports_for_training_is_exported_or_declined() -> None:
    assert set(PUBLIC) - set(footplate.__all__) == set(NOT_EXPORTED)


@pytest.mark.parametrize("name", [name for name in PUBLIC if isinstance(getattr(transformers, name), type)])
def test_an_exported_class_has_every_public_name_of_transformers_class(name: str) -> None:
    theirs, ours = getattr(transformers, name), getattr(footplate, name)

    public = {member for member in vars(theirs) if not member.startswith("_")} - set(NOT_YET)
    fields = {field.name for field in dataclasses.fields(ours)} if dataclasses.is_dataclass(ours) else set()

    missing = {member for member in public - fields if not hasattr(ours, member)}
    assert missing == set(NOT_IN_CLASS.get(name, {}))
