"""Adds a hint, which is what to write instead, to problems of a spec that have no hint or a misleading one.

Other libraries use other names for our fields, arguments and components. These names are listed here, because our name
with the most similar spelling often means something else. A value of the wrong type is repeated in its right form,
unless it may be a secret.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from footplate.contract.arguments.read import OTHER_WORDS
from footplate.contract.body import keys_of
from footplate.contract.errors import Problem
from footplate.contract.explain import BELONGS_AT
from footplate.contract.files import INSTEAD

MOST_SHOWN = 120
"""The most characters of a user's value in a hint."""

_HF_MODEL = '{"use": "hf/causal-lm", "args": {"path": "models://NAME"}}'
_CLASSIFIER = '{"use": "hf/sequence-classification", "args": {"path": "models://NAME", "num_labels": 2}}'
_TOKENIZER = '{"use": "hf/tokenizer", "args": {"path": "models://NAME"}}'
_TOKENIZE = '{"use": "tokenize", "args": {"column": "text", "max_length": 128}}'
_STOPPING = '{"use": "early_stopping", "args": {"patience": 3}}'

_WORDS_FOR = {
    "data": "dataset datasets",
    "data.train": "train_dataset train_data train_file training_data",
    "data.eval": "eval_dataset validation valid val dev validation_file val_file eval_data eval_file",
    "data.test": "test_dataset predict_dataset",
    'data.map: ["tokenize"]': "maps preprocess preprocessing transforms",
    f"processor: {_TOKENIZER}": "tokenizer processing_class tokenizer_name tokenizer_name_or_path",
    f"model: {_HF_MODEL}": "model_name model_name_or_path base_model pretrained",
    "training": "training_args training_arguments hyperparameters hparams args config",
    "the spec itself: send only the object that this field holds": "spec job jobs",
    "the first report of a run elsewhere that makes its job: POST /external/{run}": "external",
    'the model\'s args: "peft": {"r": 8}': "peft lora peft_config lora_config use_peft lora_r lora_alpha",
    "resources.gpus_per_node": "gpus num_gpus n_gpus gpu_count",
    "resources.nodes": "num_nodes nnodes",
    "resources.processes_per_node": "nproc_per_node num_processes processes",
    'resources.time_limit: "4h"': "timeout max_time",
    'loop: {"script": "train.py"}, with footplate submit --code DIR': "script entrypoint command cmd",
    'retry: {"max_attempts": 3}': "retries max_retries",
    'resume_from: {"job": "job_…"}': "checkpoint resume",
    "collator": "data_collator collate_fn",
    'metrics: ["accuracy"]': "metric eval_metrics",
    f"callbacks: [{_STOPPING}]": "early_stopping early_stopping_patience",
    f"an argument of the map: {_TOKENIZE}": "max_length max_seq_length max_len",
    f"an argument of the model: {_CLASSIFIER}": "num_labels num_classes",
    'loss: "cross_entropy"': "criterion loss_fn loss_function",
    "env": "environment env_vars",
    'code.requires: ["einops>=0.8"]': "requirements pip",
    'report_to: ["wandb"]': "wandb tracker trackers",
}
_FIELDS = {word: place for place, words in _WORDS_FOR.items() for word in words.split()}
"""The places of fields that other libraries and tools have under other names."""

_WORDS_FOR_ARGUMENTS = {
    "path": "model_name_or_path pretrained_model_name_or_path name_or_path model_name name model",
    "paths": "path file files data_files filename url",
    "peft": "lora lora_config peft_config",
    "delimiter": "sep delim separator",
    "column": "text_column field text column_name text_field",
    "columns": "from to mapping",
    "max_length": "max_len max_seq_length model_max_length",
    "dtype": "torch_dtype",
    "patience": "early_stopping_patience",
    "threshold": "early_stopping_threshold",
    "r": "rank lora_r",
    "num_labels": "num_classes",
    "hidden": "hidden_size",
    "n": "rows samples num_samples",
}
_ARGUMENTS = {word: name for name, words in _WORDS_FOR_ARGUMENTS.items() for word in words.split()}
"""Our names for arguments of components that other libraries have under other names."""

_MODEL = '{{"use": "{}", "args": {{"path": "models://NAME"}}}}'
_CLASSES = {
    **{suffix: _MODEL.format(name) for suffix, name in {
        "ForCausalLM": "hf/causal-lm", "ForMaskedLM": "hf/masked-lm", "ForQuestionAnswering": "hf/question-answering",
        "ForSeq2SeqLM": "hf/seq2seq", "ForConditionalGeneration": "hf/seq2seq",
        "ForSequenceClassification": "hf/sequence-classification",
        "ForTokenClassification": "hf/token-classification", "SentenceTransformer": "st/encoder",
    }.items()},
    **{name: json.dumps(component) for name, component in {
        "DataCollatorWithPadding": "padding", "DataCollatorForSeq2Seq": "seq2seq", "default_data_collator": "stack",
        "DataCollatorForTokenClassification": "token-classification", "DataCollatorForLanguageModeling": "causal-lm",
        "MSELoss": "mse", "L1Loss": "l1", "SmoothL1Loss": "huber", "BCELoss": "bce", "BCEWithLogitsLoss": "bce",
        "nll_loss": "cross_entropy", "SFTTrainer": "trl/sft", "DPOTrainer": "trl/dpo", "KTOTrainer": "trl/kto",
        "RewardTrainer": "trl/reward", "GRPOTrainer": "trl/grpo", "RLOOTrainer": "trl/rloo",
        "SentenceTransformerTrainer": "st/embedding", "acc": "accuracy", "accuracy_score": "accuracy",
        "f1_score": "f1", "auc": "auroc", "roc_auc": "auroc", "roc_auc_score": "auroc", "matthews_correlation": "mcc",
        "mean_squared_error": "mse", "EarlyStoppingCallback": "early_stopping", "csv": "files/csv",
        "json": "files/jsonl", "jsonl": "files/jsonl", "parquet": "files/parquet", "AutoTokenizer": "hf/tokenizer",
    }.items()},
}  # fmt: skip
"""Our components for classes and functions of other libraries, by the end of their names."""

_EXAMPLES = {
    "/data/split": '{"test_size": 0.1, "seed": 7}',
    "/retry": '{"max_attempts": 3}',
    "/resume_from": '{"job": "job_…", "checkpoint": "best"}',
    "/code": '{"bundle": "…"}; footplate submit --code DIR fills it in',
    "/code/bundle": '{"bundle": "…"}; footplate submit --code DIR fills it in',
    "/resources": '{"gpus_per_node": 1}',
    "/training": '{"learning_rate": 1e-3, "num_train_epochs": 3}',
    "/metrics": '["accuracy"]',
    "/callbacks": '["stop_on_nan"]',
    "/tags": '["mine"]',
    "/env": '{"TOKENIZERS_PARALLELISM": "false"}',
    "/secrets": '["WANDB_API_KEY"], because only names belong here. The values are set on the nodes',
    "/priority": "10. Jobs with a higher number start first, and 5 is the default",
    "/final_eval": '"best"',
    "/resources/gpu": '"A100", a text in the name of the GPU. gpus_per_node is their number',
    "/data": '{"train": {"use": "files/jsonl", "args": {"paths": ["data://a.jsonl", "data://b.jsonl"]}}}',
    "/data/train": '{"use": "files/jsonl", "args": {"paths": ["data://a.jsonl", "data://b.jsonl"]}}',
    "/data/map": '[{"use": "tokenize", "args": {"column": "text"}}]',
    "/optimizers": '[{"id": "main", "params": [".*"], "use": "adamw", "args": {"lr": 1e-3}}]',
}
"""An example of each object and list for which another value is often written."""

_COMPONENTS = {
    "model": f'"model": {_HF_MODEL}',
    "processor": f'"processor": {_TOKENIZER}',
    "data": '"train": "data://rows.jsonl", or {"use": "files/jsonl", "args": {"paths": ["data://rows.jsonl"]}}',
    "map": '{"use": "tokenize", "args": {"column": "text"}}',
    "optimizers": '{"id": "main", "params": [".*"], "use": "adamw", "args": {"lr": 1e-3}}',
    "callbacks": _STOPPING,
}
"""An example of a component by the field that holds it."""


_READERS = {"model": "hf/sequence-classification", "processor": "hf/tokenizer", "data": "files/jsonl"}
"""A component that takes a path, by the field that holds it."""


def with_next_steps(problems: Iterable[Problem], body: object) -> list[Problem]:
    """Returns the problems with better hints. The pointers of `problems` must refer to the body that the user wrote."""
    return [replace(item, hint=_next_step(item, body) or item.hint) for item in problems]


def _next_step(problem: Problem, body: object) -> str | None:
    pointer, value = problem.pointer, _value_at(body, problem.pointer)
    parent, _, name = pointer.rpartition("/")
    if problem.code in ("unknown_field", "unknown_argument"):
        return _other_word(problem, name, _value_at(body, parent))
    if problem.code in ("unknown_component", "not_well_formed", "needs_own_code"):
        return _other_component(pointer, value)
    if problem.hint is not None:
        return None
    if problem.code == "no_reader":
        reader = json.dumps({"use": "files/jsonl", "args": {"paths": [str(value)[:MOST_SHOWN]]}})
        instead = INSTEAD.get(PurePosixPath(str(value)).suffix.lower())
        return f"{f'{instead}; or n' if instead else 'N'}ame a reader: {reader}"
    if problem.code == "wrong_type":
        return _in_its_form(problem, value)
    if problem.code == "missing" and name in ("use", "params", "id"):
        return f"for example {_COMPONENTS.get(_field_of(pointer), _COMPONENTS['callbacks'])}"
    if problem.code in ("missing", "unknown_choice") and pointer in _EXAMPLES:
        return f"for example {_EXAMPLES[pointer]}"
    if problem.code == "too_short" and pointer == "/optimizers":
        return "leave it out for the optimizer of training, or list some"
    return None


def _other_word(problem: Problem, name: str, parent: Any) -> str | None:
    """Returns the hint for an unknown field or argument, for example one that another library has under this name.

    Returns None if no hint is better than the one that the problem already has.
    """
    if problem.hint is not None and problem.hint.startswith(BELONGS_AT):
        return None
    where = problem.pointer.rpartition("/")[0]
    if _ARGUMENTS.get(name) in problem.expected:
        return f"did you mean {_ARGUMENTS[name]!r}?"
    if where in ("", "/data", "/training") and (place := _place_of(name, where)) is not None:
        return place
    if where == "/data" and name in ("path", "paths", "file", "files"):
        return f"for example {_EXAMPLES['/data']}"
    if where == "/code":
        return f"for example {_EXAMPLES['/code']}"
    if problem.hint is not None or problem.expected[:1] not in (("use",), ("id",)):
        return None
    if isinstance(parent, dict) and isinstance(use := parent.get("use"), str):
        component = {"use": use[:MOST_SHOWN], "args": {name[:80]: "…"}}
        return f"arguments belong in args: {json.dumps(component, ensure_ascii=False)}"
    return f"for example {_COMPONENTS.get(_field_of(problem.pointer), _COMPONENTS['callbacks'])}"


def _place_of(name: str, where: str) -> str | None:
    if name in OTHER_WORDS and where != "/training":
        return f"{BELONGS_AT} training.{OTHER_WORDS[name]}"
    place = _FIELDS.get(name)
    return None if place is None else f"it is {place}" if place.startswith(("an ", "the ")) else f"{BELONGS_AT} {place}"


def _field_of(pointer: str) -> str:
    parts = pointer.split("/")
    return "map" if parts[1:3] == ["data", "map"] else parts[1]


def _other_component(pointer: str, value: Any) -> str | None:
    """Returns a hint for an unknown component, such as a class of another library, a path or a name on a hub."""
    name = value.get("use") if isinstance(value, dict) else value
    if not isinstance(name, str):
        return None
    group = _field_of(pointer)
    if "://" in name and group != "resume_from":
        path = name[:MOST_SHOWN]
        args = {"paths": [path]} if group == "data" else {"path": path}
        return f"a path is an argument of a component: {json.dumps({'use': _READERS.get(group, 'NAME'), 'args': args})}"
    if ":" in name:
        return None
    class_name = name.rpartition(".")[2]
    for end, component in _CLASSES.items():
        if class_name == end or (end[0].isupper() and class_name.endswith(end)):
            return f"write {component}"
    if group == "loop" and name.endswith((".py", ".sh")):
        return f'a script is {{"script": {json.dumps(name[:MOST_SHOWN])}}}, with footplate submit --code DIR'
    if name.startswith(("/", "./", "../", "~")):
        return f"a path is an argument of a component: {_COMPONENTS.get(group, _COMPONENTS['model'])}"
    if group == "data" and not pointer.startswith("/data/map") and not name.startswith(("toy/", "files/", "hf/")):
        rows = "footplate upload FILE uploads rows of your own, and prints their name for the spec"
        return f"write a dataset of the hub as {json.dumps('hub://datasets/' + name[:MOST_SHOWN])}; {rows}"
    return None


def _in_its_form(problem: Problem, value: Any) -> str | None:
    """Returns a hint for a value of the wrong type: the same value converted to the right type, or an example."""
    pointer, needed = problem.pointer, "".join(problem.expected)
    may_repeat = _field_of(pointer) in _NAMES and pointer not in ("/optimizers", "/resources/gpu")
    replacement = _number_or_bool(needed, value) or (_component(needed, value) if may_repeat else None)
    if pointer == "/resources/gpu" or replacement is None or len(replacement) > MOST_SHOWN:
        return _example(pointer, needed)
    return f"write {replacement}"


_NAMES = ("model", "processor", "collator", "loss", "metrics", "callbacks", "trainer", "data", "map", "report_to")
"""Fields whose texts are names. A text anywhere else may be a secret in the wrong place, so it is not repeated."""


def _example(pointer: str, needed: str) -> str | None:
    if pointer in _EXAMPLES:
        return f"for example {_EXAMPLES[pointer]}"
    if pointer.endswith("/args"):
        return 'arguments have names: {"NAME": value}'
    if needed == "a string":
        return "write the value in quotes"
    if (field := _field_of(pointer)) in _COMPONENTS and needed != "a list":
        return f"for example {_COMPONENTS[field]}"
    return 'write a list: ["…", "…"]' if needed == "a list" else None


def _number_or_bool(needed: str, value: Any) -> str | None:
    """Returns the value as the number or the bool that the field needs, or None if it cannot be read as one."""
    if isinstance(value, str) and "true or false" in needed:
        word = value.strip().lower()
        return {"yes": "true", "on": "true", "no": "false", "off": "false", "true": "true", "false": "false"}.get(word)
    if isinstance(value, str) and "number" in needed:
        return _number(value, is_whole="whole" in needed and "a number" not in needed)
    if isinstance(value, bool | int | float) and "true or false" in needed and value in (0, 1):
        return json.dumps(bool(value))
    if isinstance(value, float) and "whole number" in needed and math.isfinite(value):
        return f"{math.floor(value)} or {math.ceil(value)}"
    return None


def _component(needed: str, value: Any) -> str | None:
    """Returns the value as a list or as a single component, whichever the field needs. None if that fails."""
    if isinstance(value, str) and value and "a list" in needed:
        return json.dumps([word.strip() for word in value.split(",")], ensure_ascii=False)
    if isinstance(value, dict) and "a list" in needed:
        named_components = [{"use": name, "args": args} for name, args in value.items() if isinstance(args, dict)]
        components = [value] if "use" in value else named_components
        return json.dumps(components, ensure_ascii=False) if components else None
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | dict):
        return f"{json.dumps(value[0], ensure_ascii=False)}, without brackets"
    return None


def _number(text: str, *, is_whole: bool) -> str | None:
    try:
        value = float(text.replace("_", ""))
    except ValueError:
        return None
    if not math.isfinite(value) or (is_whole and not value.is_integer()):
        return None
    return f"{int(value) if value.is_integer() and abs(value) < 1e15 else value}, without quotes"


def _value_at(body: object, pointer: str) -> Any:
    """Returns the value at a pointer, or None. For `/model/use` of a short form, that is the short form itself."""
    node: Any = body
    for key in keys_of(pointer):
        if isinstance(node, dict) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
        elif key == "use":
            return node
        else:
            return None
    return node
