"""No argument of training in a spec opens a file that its author names."""

from __future__ import annotations

import dataclasses
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from footplate.contract.arguments import Seq2SeqTrainingArguments
from footplate.contract.arguments.not_supported import IN_SCRIPTS_ONLY, OBJECTS_ONLY, SERVER_OWNED
from footplate.contract.errors import InvalidSpec
from tests.support.factories import read_arguments

NAMES_A_PATH = {
    "accelerator_config", "deepspeed", "fsdp", "fsdp_config", "logging_dir", "output_dir", "resume_from_checkpoint",
    "parallelism_config", "generation_config",
}  # fmt: skip
"""A script may name a file or folder in these. A spec must not."""
IS_NO_PATH = {
    "activation_checkpointing_kwargs": "agree.py refuses everything but an object",
    "ddp_backend": "torch.distributed looks it up among its backends",
    "debug": "is searched for one word",
    "gradient_checkpointing_kwargs": "becomes activation_checkpointing_kwargs",
    "hub_model_id": "refused in a spec", "hub_revision": "refused in a spec", "hub_token": "refused in a spec",
    "include_for_metrics": "is searched for two words", "label_names": "keys of a batch",
    "length_column_name": "a column of the data", "metric_for_best_model": "the name of a metric",
    "optim_args": "numbers and truths that an optimizer takes", "project": "a name that trackers store",
    "report_to": "looked up among the trackers", "run_name": "a name; where a tracker makes it a folder, in one part",
    "torch_compile_backend": "torch looks it up among its backends", "torch_compile_mode": "torch has three",
    "trackio_bucket_id": "a name on a hub", "trackio_space_id": "a name on a hub",
    "trackio_static_space_id": "a name on a hub",
}  # fmt: skip
HINTS = get_type_hints(Seq2SeqTrainingArguments, include_extras=True)


def takes_text(hint: Any) -> bool:
    """Returns True if the hint accepts a string. Objects are checked by the code that reads their keys."""
    if get_origin(hint) is Annotated:
        return takes_text(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType, list):
        return any(map(takes_text, get_args(hint)))
    return get_origin(hint) is not Literal and isinstance(hint, type) and issubclass(hint, str)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Seq2SeqTrainingArguments)])
def test_every_text_argument_is_classified_as_path_or_not(name: str) -> None:
    if takes_text(HINTS[name]):
        assert (name in NAMES_A_PATH) != (name in IS_NO_PATH), f"say in this test whether {name} can name a path"


@pytest.mark.parametrize("name", sorted(NAMES_A_PATH))
def test_a_spec_cannot_set_an_argument_that_names_a_path(name: str) -> None:
    assert name in {**OBJECTS_ONLY, **IN_SCRIPTS_ONLY, **SERVER_OWNED}

    with pytest.raises(InvalidSpec) as error:
        read_arguments({name: "/etc/passwd"})

    (problem,) = error.value.problems
    assert problem.pointer == f"/training/{name}"
    assert problem.hint


def test_a_spec_may_set_a_path_argument_to_an_object() -> None:
    assert read_arguments({"accelerator_config": {"split_batches": True}})
