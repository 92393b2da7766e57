"""The dataset `lm-eval`: a task of lm-evaluation-harness on rows of the job, without a hub and without downloads.

A task is a YAML file with Jinja templates and names of functions, so it is a program. The tasks that the library ships
are part of the node, and any spec may name them. A task of the user's own is a file of the job's bundle.
"""

from __future__ import annotations

import ast
import inspect
import logging
import os
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from footplate.components import files
from footplate.components.hf_datasets import as_dataset
from footplate.contract.errors import DatasetError, NotBuildable, did_you_mean
from footplate.contract.files import kind_of, no_reader
from footplate.trainer.evaluation import OwnEvaluation

LIBRARY = "lm_eval"
READERS = {"jsonl": files.jsonl, "csv": files.csv, "tsv": files.csv, "parquet": files.parquet}
RUNS_CODE = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "subprocess",
    "pickle",
    "runpy",
    "ctypes",
    "sympify",
    "parse_expr",
}
"""Calls and imports by which the functions of a task could run code that is in the user's rows."""
REFUSED = {
    "unsafe_code": "runs code that the model has written",
    "doc_to_image": "needs images",
    "doc_to_audio": "needs sound",
}
"""Settings of tasks that cannot be evaluated here, with the reason."""
FEWSHOT_SEED = 1234
"""The library's own default for the choice of examples."""

Paths = Annotated[list[str], "The rows to evaluate on, under data://, with the columns of the task's own dataset"]
Examples = Annotated[list[str], "Files of the rows from which the examples before each question are drawn"]
FewShot = Annotated[
    Annotated[int, Field(ge=0)] | None, "The number of examples before each question; null takes the task's own"
]
Limit = Annotated[Annotated[int, Field(ge=1)] | None, "The largest number of rows; null evaluates all"]


class LmEval:
    """A task of lm-evaluation-harness on your own rows. Its metrics are lm_eval/<task>/<metric>. For data.eval."""

    needs = (LIBRARY, "lm-eval")

    @property
    def __signature__(self) -> inspect.Signature:
        names = tuple(sorted(shipped_tasks()))
        task: Any = Annotated[(Literal[names] if names else str) | None, "The name of a task that the library ships"]
        parameters = inspect.signature(self.__call__, eval_str=True).parameters.values()
        return inspect.Signature([p.replace(annotation=task) if p.name == "task" else p for p in parameters])

    def __call__(
        self,
        bundle: Path | None,
        /,
        *,
        paths: Paths,
        task: str | None = None,
        yaml: Annotated[
            str | None, "A task of your own: the YAML file in the job's bundle, such as tasks/mine.yaml"
        ] = None,
        examples: Examples = (),  # type: ignore[assignment]
        num_fewshot: FewShot = None,
        limit: Limit = None,
        chat: Annotated[bool, "Puts each question into the tokenizer's chat template"] = False,
    ) -> LmEvalRows:
        if (task is None) == (yaml is None):
            raise NotBuildable(
                "lm-eval needs either a task or a yaml", hint='for example {"task": "hellaswag", "paths": ["data://…"]}'
            )
        file = _shipped(task) if task is not None else _own(str(yaml), bundle)
        rows, drawn_from = _rows(paths), _rows(examples) if examples else None
        return LmEvalRows(file, rows, drawn_from, num_fewshot, limit, chat, is_trusted=yaml is not None)


task = LmEval()


class LmEvalRows(OwnEvaluation):
    """The rows of a task, and the evaluation of a model on them."""

    def __init__(
        self,
        file: Path,
        rows: Any,
        examples: Any,
        num_fewshot: int | None,
        limit: int | None,
        chat: bool,
        *,
        is_trusted: bool,
    ) -> None:
        """`is_trusted` is True for a task of the job's bundle, which may run code anyway."""
        self.file, self.rows, self.examples = file, rows, examples
        self.num_fewshot, self.limit, self.chat, self.is_trusted = num_fewshot, limit, chat, is_trusted
        self._task: Any = None

    def __len__(self) -> int:
        return min(len(self.rows), self.limit or len(self.rows))

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]

    def check(self, trainer: Any) -> None:
        if trainer.processing_class is None or not hasattr(trainer.model, "generate"):
            raise NotBuildable(
                "lm-eval evaluates a language model with its tokenizer",
                hint='use "hf/causal-lm" or "hf/seq2seq" with a folder that has both',
            )
        if not trainer._footplate.strategy.holds_whole:
            raise NotBuildable(
                "lm-eval needs the whole model in one process, and this strategy shards the model",
                hint="evaluate in a job of its own, with resume_from and one process",
            )
        if self.chat and not getattr(trainer.processing_class, "chat_template", None):
            raise NotBuildable("lm-eval has chat, and the tokenizer has no chat template", hint="leave chat out")
        self._task = self._made()

    def metrics(self, trainer: Any) -> dict[str, float]:
        """Evaluates the Trainer's model. Every process of a job does the same, because each has the whole model."""
        from lm_eval.evaluator import evaluate
        from lm_eval.models.huggingface import HFLM

        self._task = self._task or self._made()
        name = self._task.config.task
        model = HFLM(
            pretrained=trainer.model, tokenizer=trainer.processing_class, batch_size=trainer.args.eval_batch_size
        )
        with _reported(trainer):
            results = evaluate(
                model, {"tasks": {name: self._task}, "groups": {}, "group_map": {}}, limit=self.limit,
                bootstrap_iters=0, log_samples=False, apply_chat_template=self.chat,
            )  # fmt: skip
        # A key is "acc,none" or "exact_match,strict-match": the metric and the filter of the answers.
        scores = {key.removesuffix(",none").replace(",", "/"): value for key, value in results["results"][name].items()}
        return {
            f"lm_eval/{name}/{metric}": float(value)
            for metric, value in scores.items()
            if isinstance(value, int | float) and metric != "sample_len"
        }

    def _made(self) -> Any:
        """Returns the library's task on these rows. It tries the templates on the first row."""
        from lm_eval.api.task import ConfigurableTask
        from lm_eval.tasks._yaml_loader import load_yaml

        # The library warns about options of its own command, which a job does not use.
        logging.getLogger("lm_eval").setLevel(logging.ERROR)
        if not self.is_trusted:
            _require_no_code(self.file)
        try:
            config = load_yaml(self.file)
            if refused := next((why for name, why in REFUSED.items() if config.get(name)), None):
                raise NotBuildable(f"the task {self.file.stem} {refused}", hint="take another task")
            config = {**config, **self._on_these_rows(config)}
            for key in ("tag", "group", "task_list"):
                config.pop(key, None)
            made = ConfigurableTask(config=config)
        except (DatasetError, NotBuildable):
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise DatasetError(f"the task {self.file.stem} cannot be made of these rows: {reason}") from error
        made.set_fewshot_seed(seed=FEWSHOT_SEED)
        return made

    def _on_these_rows(self, config: dict[str, Any]) -> dict[str, Any]:
        """Returns the settings that replace the task's dataset with the rows, and its number of examples."""
        sets = {"rows": as_dataset(self.rows)}
        if self.examples is not None:
            sets["examples"] = as_dataset(self.examples)
        number = config.get("num_fewshot") if self.num_fewshot is None else self.num_fewshot
        own_examples = (config.get("fewshot_config") or {}).get("samples")
        if number and self.examples is None and own_examples is None:
            raise NotBuildable(
                f"the task {self.file.stem} shows {number} examples before each question, but has no examples",
                hint='name their files in "examples", or set "num_fewshot" to 0',
            )
        drawn_from = "examples" if self.examples is not None else None
        fewshot = config.get("fewshot_config")
        if isinstance(fewshot, dict) and "split" in fewshot:
            fewshot = {**fewshot, "split": drawn_from}
        return {
            "dataset_path": None, "dataset_name": None, "dataset_kwargs": None, "custom_dataset": lambda **_: sets,
            "test_split": "rows", "validation_split": None, "training_split": drawn_from, "fewshot_split": drawn_from,
            "fewshot_config": fewshot, "num_fewshot": number or 0,
        }  # fmt: skip


class _reported:
    """Calls the Trainer's callbacks before each forward pass, so that the job shows progress and can be stopped."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def __enter__(self) -> None:
        self.hook = self.trainer.model.register_forward_pre_hook(self._step)

    def __exit__(self, *_: Any) -> None:
        self.hook.remove()

    def _step(self, *_: Any) -> None:
        trainer = self.trainer
        trainer.control = trainer.callback_handler.on_prediction_step(trainer.args, trainer.state, trainer.control)


def _rows(paths: Sequence[str]) -> Any:
    kinds = {kind_of(path) for path in paths}
    if len(kinds) > 1:
        raise DatasetError(f"these files are of several kinds: {', '.join(Path(path).name for path in paths)}")
    (kind,) = kinds
    if kind not in READERS:
        detail, hint = no_reader(Path(paths[0]).name)
        raise DatasetError(detail, hint=hint)
    return READERS[kind](paths=list(paths))


# The tasks that the library ships


@cache
def shipped_tasks() -> dict[str, Path]:
    """Returns the YAML file of each task by name, without the library's index, which would parse every file."""
    package = find_spec(LIBRARY)
    if package is None or not package.submodule_search_locations:
        return {}
    root = Path(package.submodule_search_locations[0], "tasks")
    return {name: file for file in _yaml_files(root) if (name := _name_in(file))}


def _yaml_files(root: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(root):
        yield from (Path(folder, name) for name in names if name.endswith(".yaml"))


_NAME = re.compile(rb"""^task:[ \t]*["']?([^\s"'#\[]+)["']?[ \t]*(?:#.*)?\r?$""", re.MULTILINE)
_IS_CLASS = re.compile(rb"^class:", re.MULTILINE)


def _name_in(file: Path) -> str | None:
    """Returns the task's name. None for a group of tasks, and for a task that is a class with a dataset of its own."""
    text = file.read_bytes()
    named = _NAME.search(text)
    return named.group(1).decode() if named and not _IS_CLASS.search(text) else None


def _shipped(name: str) -> Path:
    tasks = shipped_tasks()
    if name not in tasks:
        raise NotBuildable(
            f"lm-eval ships no task {name!r} that takes rows",
            hint=did_you_mean(name, sorted(tasks)) or "a group is evaluated by naming each of its tasks",
        )
    return tasks[name]


def _require_no_code(file: Path) -> None:
    """Raises NotBuildable if functions of a shipped task could run code out of the user's rows."""
    from lm_eval.tasks._yaml_loader import load_yaml

    for folder in sorted({module.parent for module in _modules_in(load_yaml(file, resolve_func=False))}):
        for source in sorted(folder.glob("*.py")):
            for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
                if used := RUNS_CODE & set(_names(node)):
                    what = f"{source.name} uses {', '.join(sorted(used))}"
                    raise NotBuildable(
                        f"the task {file.stem} could run code from its rows: {what}",
                        hint='put a copy of the task into a bundle, and name the copy with "yaml"',
                    )


def _modules_in(config: Any) -> Iterator[Path]:
    """Yields the files of the functions in a task, which are texts such as `/tasks/gsm8k/utils.process_docs`."""
    if isinstance(config, str) and config.startswith("/"):
        module = Path(f"{config.rpartition('.')[0]}.py")
        yield from [module] if module.is_file() else []
    elif isinstance(config, dict | list):
        for value in config.values() if isinstance(config, dict) else config:
            yield from _modules_in(value)


def _names(node: ast.AST) -> Iterator[str]:
    """Yields the function that a call in the syntax tree calls, or the modules that an import statement imports."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
        called = ast.unparse(node.func)
        # Regular expressions are compiled, too.
        yield "" if called == "re.compile" else called.rpartition(".")[2]
    elif isinstance(node, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module.partition(".")[0]


def _own(name: str, bundle: Path | None) -> Path:
    if bundle is None:
        raise NotBuildable(
            f"yaml names {name}, a file of the job's bundle, and the job has no bundle",
            hint="footplate submit SPEC --code FOLDER, with a key that has the scope code",
        )
    file = (bundle / name).resolve()
    if not file.is_relative_to(bundle.resolve()) or not file.is_file():
        there = sorted(str(path.relative_to(bundle)) for path in bundle.rglob("*.yaml"))
        raise NotBuildable(
            f"the bundle has no {name}; its YAML files are: {', '.join(there[:20]) or 'none'}",
            hint=did_you_mean(name, there),
        )
    return file
