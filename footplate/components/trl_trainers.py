"""TRL's trainers as components, such as `"trainer": "trl/sft"`. Their arguments are those of TRL's configs.

TRL is imported only when a job trains, because the import takes seconds. The arguments are read from TRL's source.
"""

from __future__ import annotations

import ast
import copy
import inspect
import tempfile
import types
from collections.abc import Iterator, Mapping
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from footplate.components.component import imported, source_of
from footplate.components.hf_datasets import as_dataset, require_forms
from footplate.components.hf_loading import MERGES_AT_END
from footplate.components.hf_processors import require_chat_template, require_tokenizer
from footplate.components.maps import mapped
from footplate.components.row_forms import PAIRS, PROMPTS, RATED, TEXTS
from footplate.components.rows import Row, plain_messages
from footplate.components.trl_conversations import with_answers_to_learn
from footplate.contract.arguments.read import ARGUMENT_NAMES
from footplate.contract.errors import NotBuildable, did_you_mean
from footplate.contract.row_formats import Schema
from footplate.trainer.evaluation import OwnEvaluation

Arguments = Mapping[str, Any]

NOT_IN_A_JOB = {
    "model_init_kwargs": "the arguments of the model component say how the model is loaded",
    "trust_remote_code": "code beside weights is never run",
    "chat_template_path": "hf/tokenizer has chat_template, which is the template's text",
    "dataset_text_field": "the map `rename` renames a column to text",
    "dataset_kwargs": "rows that have input_ids are taken as they are",
    "dataset_num_proc": "rows are prepared in the training process",
    "pad_token": "set the tokenizer's own pad token",
    "sync_ref_model": "checkpoints do not hold a changed reference model, so the job could not continue",
    "use_vllm": "vLLM is not supported in jobs yet",
    "log_completions_hub_repo": "training cannot reach a hub",
    "use_transformers_paged": "it is deprecated",
}
"""Arguments of TRL that a job must not change, each with the reason or with what to do instead."""

_LEFT_OUT = ("vllm_", "ref_model_")
"""Prefixes of arguments that have no effect in a job, because they belong to an argument in NOT_IN_A_JOB."""


class TrlTrainer:
    """A component that makes one of TRL's trainers. Its signature is read from the source of TRL's config class."""

    needs = ("trl", "trl")
    ignores: tuple[str, ...] = ("loss", "metrics", "compute_metrics", "optimizers", "data.test")

    def __init__(
        self,
        name: str,
        summary: str,
        rows: list[Schema],
        *,
        has_rewards: bool = False,
        reference: Literal["none", "passed", "loaded"] = "none",
    ) -> None:
        """Stores TRL's name of the method, such as DPO, the schemas of its rows, and whether it takes reward functions.

        `reference` is the way in which the trainer gets its reference model: none, as an argument, or from a folder.
        """
        self.name, self.rows, self.has_rewards, self.reference = name, rows, has_rewards, reference
        self.__doc__ = summary
        self.ignores = (*self.ignores, "collator") if has_rewards else self.ignores

    @property
    def __signature__(self) -> inspect.Signature:
        kind = inspect.Parameter
        parts = [kind(name, kind.POSITIONAL_ONLY) for name in ("parts", "training")]
        rewards = [kind("reward_funcs", kind.KEYWORD_ONLY, annotation=_REWARDS)] if self.has_rewards else []
        return inspect.Signature([*parts, *rewards, *_parameters(self.name)])

    def __call__(self, parts: Any, training: Arguments, /, **own_arguments: Any) -> Any:
        """Makes the trainer from the job's objects in `parts`, the arguments in `training`, and TRL's own arguments."""
        _require_known(own_arguments, self.__signature__.parameters)
        require_tokenizer(parts.processor, f"TRL's {self.name}Trainer")
        library = imported("trl")
        try:
            config = getattr(library, f"{self.name}Config")(**training, **own_arguments)
        except ValueError as error:
            raise NotBuildable(f"TRL's {self.name}Trainer refuses the job: {error}") from error
        sets, own_sets = _parted(parts.eval)
        # TRL adds a new adapter to the model, so it gets the model without one, and the adapter's config.
        adapters = getattr(parts.model, "peft_config", None)
        model = parts.model.unload() if adapters else parts.model
        arguments: dict[str, Any] = {
            "model": model,
            "processing_class": parts.processor,
            "train_dataset": self._dataset(parts.train, parts.processor, config),
            "eval_dataset": self._evaluation(sets, parts.processor, config),
            "args": config,
            "callbacks": parts.callbacks,
            **({"peft_config": adapters["default"]} if adapters else {}),
            **({"reward_funcs": parts.rewards} if self.has_rewards else {"data_collator": parts.collator}),
        }
        if self.name == "Reward" and model.config.num_labels != 1:
            raise NotBuildable(
                f"a reward model must have one output, but this model has {model.config.num_labels}",
                hint='use "hf/sequence-classification" with "num_labels": 1',
            )
        if "labels" in getattr(arguments["train_dataset"], "column_names", ()):
            # The rows have tokens and labels already, and TRL refuses assistant_only_loss for such rows.
            config.assistant_only_loss = False
        try:
            trainer = self._with_reference(getattr(library, f"{self.name}Trainer"), arguments)
        except ValueError as error:
            raise NotBuildable(f"TRL's {self.name}Trainer refuses the job: {error}") from error
        if own_sets is not None:
            trainer.eval_dataset = {**trainer.eval_dataset, **own_sets} if isinstance(own_sets, dict) else own_sets
        setattr(trainer.model, MERGES_AT_END, getattr(parts.model, MERGES_AT_END, False))
        return trainer

    def _with_reference(self, trainer: Any, arguments: dict[str, Any]) -> Any:
        """Makes the trainer with a copy of the job's model as its reference model."""
        model, config = arguments["model"], arguments["args"]
        if self.reference == "none" or "peft_config" in arguments or (self.reference == "loaded" and config.beta == 0):
            return trainer(**arguments)
        if self.reference == "passed":
            return trainer(**arguments, ref_model=copy.deepcopy(model))
        from safetensors.torch import save_model

        with tempfile.TemporaryDirectory() as folder:
            # save_pretrained writes in the main process only, and each process reads its own folder.
            model.config.save_pretrained(folder)
            save_model(model, str(Path(folder, "model.safetensors")), metadata={"format": "pt"})
            path, model.config._name_or_path = model.config._name_or_path, folder
            try:
                return trainer(**arguments)
            finally:
                model.config._name_or_path = path

    def _evaluation(self, rows: Any, processor: Any, config: Any) -> Any:
        if isinstance(rows, dict):
            return {
                name: self._dataset(dataset, processor, config, f"data.eval.{name}") for name, dataset in rows.items()
            }
        return None if rows is None else self._dataset(rows, processor, config, "data.eval")

    def _dataset(self, rows: Any, processor: Any, config: Any = None, name: str = "data.train") -> Any:
        require_forms(rows, self.rows, f"TRL's {self.name}Trainer")
        holds_messages = any(isinstance(rows[0].get(name), list) for name in _CONVERSATIONS)
        if holds_messages:
            require_chat_template(processor, f"TRL's {self.name}Trainer on messages")
        if holds_messages and getattr(config, "assistant_only_loss", False):
            return with_answers_to_learn(with_plain_messages(rows, weights=True), name, processor, config)
        return as_dataset(with_plain_messages(rows))


def with_plain_messages(rows: Any, *, weights: bool = False) -> Any:
    """Returns rows whose messages have texts as contents, because chat templates read texts.

    A message of weight 0 is refused, unless `weights` is true because the caller leaves such messages out.
    """
    return mapped(rows, partial(_plain, weights))


def _plain(weights: bool, rows: list[Row]) -> list[Row]:
    return [
        row
        | {
            name: plain_messages(row[name], at, name, weights=weights)
            for name in _CONVERSATIONS
            if isinstance(row.get(name), list)
        }
        for at, row in enumerate(rows)
    ]


def _parted(sets: Any) -> tuple[Any, Any]:
    """Splits the evaluation sets into sets of rows, which TRL prepares, and sets that compute their own metrics.

    If there are no sets of rows, the first result is an empty dict, so that TRL accepts an `eval_strategy`.
    """
    if isinstance(sets, OwnEvaluation):
        return {}, sets
    if not isinstance(sets, dict):
        return sets, None
    own_sets = {name: rows for name, rows in sets.items() if isinstance(rows, OwnEvaluation)}
    return {name: rows for name, rows in sets.items() if name not in own_sets}, own_sets or None


_CONVERSATIONS = ("messages", "prompt", "completion", "chosen", "rejected", "conversations")


def _require_known(own_arguments: Arguments, parameters: Mapping[str, Any]) -> None:
    """Raises NotBuildable for an argument that is unknown, or that a job must not set."""
    for name, value in own_arguments.items():
        if name not in parameters:
            raise NotBuildable(f"trainer: there is no argument {name!r}", hint=did_you_mean(name, parameters))
        if name in NOT_IN_A_JOB and value != parameters[name].default:
            raise NotBuildable(f"trainer: {name} cannot be set in a job", hint=NOT_IN_A_JOB[name])


# The arguments of TRL's configs, from their source


_REWARDS = Annotated[
    list[dict[str, Any]],
    "Reward functions: registered names, or `module:function` in the bundle. Their rewards are added up",
]


def _parameters(name: str) -> Iterator[inspect.Parameter]:
    """Yields the parameters of a TRL config that our TrainingArguments lack. Yields none if TRL is not installed."""
    for config in source_of("trl", "trainer", f"{name.lower()}_config.py"):
        if isinstance(config, ast.ClassDef) and config.name == f"{name}Config":
            for line in config.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    yield from _parameter(line.target.id, line)


def _parameter(name: str, line: ast.AnnAssign) -> Iterator[inspect.Parameter]:
    if name in ARGUMENT_NAMES or name.startswith(_LEFT_OUT) or not isinstance(line.value, ast.Call):
        return
    keywords = {keyword.arg: keyword.value for keyword in line.value.keywords}
    metadata = ast.literal_eval(keywords["metadata"])
    factory = keywords.get("default_factory")
    default = ast.literal_eval(factory.body if isinstance(factory, ast.Lambda) else keywords["default"])
    annotation = _type(line.annotation)
    if name in NOT_IN_A_JOB:
        annotation, metadata["help"] = Literal[default], f"Cannot be set in a job: {NOT_IN_A_JOB[name]}"
    elif "choices" in metadata:
        annotation = Literal[tuple(metadata["choices"])]
    kind = inspect.Parameter.KEYWORD_ONLY
    yield inspect.Parameter(name, kind, default=default, annotation=Annotated[annotation, metadata["help"]])


def _type(annotation: ast.expr) -> Any:
    """Returns the type of a config's field. If the field accepts a dict or its JSON text, only the dict remains."""
    hint = eval(ast.unparse(annotation), {"Any": Any, "Literal": Literal})
    kinds = get_args(hint) if get_origin(hint) in (types.UnionType, Union) else (hint,)
    has_object = any(kind is dict or get_origin(kind) is dict for kind in kinds)
    return reduce(or_, [kind for kind in kinds if not (has_object and kind is str)])


sft = TrlTrainer(
    "SFT", "Supervised fine-tuning of a causal model on texts, conversations, or prompts and completions.", TEXTS
)
dpo = TrlTrainer(
    "DPO", "Direct preference optimization of a causal model on chosen and rejected answers.", PAIRS, reference="passed"
)
kto = TrlTrainer(
    "KTO", "Kahneman-Tversky optimization of a causal model on answers rated good or bad.", RATED, reference="passed"
)
reward = TrlTrainer("Reward", "Trains a reward model with one output on chosen and rejected answers.", PAIRS)
grpo = TrlTrainer(
    "GRPO",
    "Group relative policy optimization: reinforcement learning from reward functions.",
    PROMPTS,
    has_rewards=True,
    reference="loaded",
)
rloo = TrlTrainer(
    "RLOO",
    "REINFORCE leave-one-out: reinforcement learning from reward functions.",
    PROMPTS,
    has_rewards=True,
    reference="loaded",
)
