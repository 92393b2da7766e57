"""The dataset `lm-eval`: tasks of lm-evaluation-harness on rows of the job, without a hub and without downloads.

A task is a YAML file with Jinja templates and names of functions, so it is a program. The tasks that the library ships
are part of the node, and any spec may name them. A task of the user's own is a file of the job's bundle.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from footplate.components import files
from footplate.components.hf_datasets import as_dataset
from footplate.components.hf_processors import require_chat_template
from footplate.components.lm_eval_shipped import LIBRARY, TaskFile, TaskGroup, named, require_no_code, shipped
from footplate.contract.errors import DatasetError, NotBuildable, did_you_mean, listing
from footplate.contract.files import kind_of, no_reader
from footplate.trainer.evaluation import OwnEvaluation

READERS = {"jsonl": files.jsonl, "csv": files.csv, "tsv": files.csv, "parquet": files.parquet}
REFUSED = {
    "unsafe_code": "runs code that the model has written",
    "doc_to_image": "needs images",
    "doc_to_audio": "needs sound",
}
"""The settings of a task because of which the task is refused, each with the reason that the error gives."""
FEWSHOT_SEED = 1234
"""The library's default seed for the random choice of examples."""

Files = list[str] | dict[str, list[str]]
Paths = Annotated[
    Files,
    "The rows to evaluate on, under data://, with the columns of the task's own dataset. A group takes an object with "
    "the files of each of its tasks",
]
Examples = Annotated[
    Files, "Files of the rows from which the examples before each question are drawn. A group takes an object"
]
FewShot = Annotated[
    Annotated[int, Field(ge=0)] | None, "The number of examples before each question; null takes the task's own"
]
Limit = Annotated[Annotated[int, Field(ge=1)] | None, "The largest number of rows of a task; null evaluates all"]


class LmEval:
    """Tasks of lm-evaluation-harness on your own rows, for data.eval. The metrics are lm_eval/<task>/<metric>."""

    needs = (LIBRARY, "lm-eval")

    @property
    def __signature__(self) -> inspect.Signature:
        library = shipped()
        names = tuple(sorted([*library.tasks, *library.groups]))
        task: Any = Annotated[
            (Literal[names] if names else str) | None,
            "The name of a task, or of a group of tasks, that the library ships",
        ]
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
        chosen_task = named(task) if task is not None else TaskFile("", _own(str(yaml), bundle))
        group = chosen_task if isinstance(chosen_task, TaskGroup) else None
        tasks = list(chosen_task.tasks()) if isinstance(chosen_task, TaskGroup) else [chosen_task]
        rows, drawn_from = _of_each(tasks, group, paths, "paths"), _of_each(tasks, group, examples or None, "examples")
        return LmEvalRows(
            [
                TaskRows(task, _rows(rows[task.name]), _rows(drawn_from[task.name]) if examples else None,
                         num_fewshot, is_trusted=yaml is not None)
                for task in tasks
            ],
            group, limit, chat,
        )  # fmt: skip


task = LmEval()


def _of_each(
    tasks: Sequence[TaskFile], group: TaskGroup | None, paths: Files | None, argument: str
) -> Mapping[str, list[str]]:
    """Returns the files for each task, by the task's name. Raises NotBuildable if a task of the group has no files."""
    if group is None:
        if isinstance(paths, dict):
            raise NotBuildable(
                f"{argument} of a single task must be a list of files", hint='for example ["data://rows.jsonl"]'
            )
        return {task.name: paths or [] for task in tasks}
    if paths is None:
        return {}
    names = [task.name for task in tasks]
    if not isinstance(paths, dict):
        detail = f"{group.name} is a group, so {argument} must be an object with the files of each task"
        raise NotBuildable(detail, hint=f'for example {{"{names[0]}": ["data://{names[0]}.jsonl"], …}}')
    if unknown := [name for name in paths if name not in names]:
        hint = did_you_mean(unknown[0], names)
        raise NotBuildable(f"{argument} names {unknown[0]!r}, which is not a task of {group.name}", hint=hint)
    if missing := [name for name in names if name not in paths]:
        raise NotBuildable(
            f"{argument} has no files for these tasks of {group.name}: {listing(missing, 10)}",
            hint="a group's result needs the rows of all its tasks",
        )
    return paths


@dataclass(frozen=True, slots=True)
class TaskRows:
    """A task, and the rows on which it is evaluated. `is_trusted` is True for a task of the job's bundle."""

    task: TaskFile
    rows: Any
    examples: Any
    num_fewshot: int | None
    is_trusted: bool

    def task_object(self) -> Any:
        """Returns a task object of lm_eval that reads these rows.

        Creating the object renders its templates for the first row.
        """
        from lm_eval.api.task import ConfigurableTask
        from lm_eval.tasks._yaml_loader import load_yaml

        file = self.task.file
        if not self.is_trusted:
            require_no_code(file)
        try:
            config = {**load_yaml(file), **self.task.settings}
            if refusal := next((why for name, why in REFUSED.items() if config.get(name)), None):
                raise NotBuildable(
                    f"the task {file.stem} cannot be used, because it {refusal}", hint="name another task"
                )
            config = {**config, **self._on_these_rows(config)}
            for key in ("tag", "group", "task_list"):
                config.pop(key, None)
            task = ConfigurableTask(config=config)
        except (DatasetError, NotBuildable):
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise DatasetError(f"the task {file.stem} cannot be created from these rows: {reason}") from error
        task.set_fewshot_seed(seed=FEWSHOT_SEED)
        return task

    def _on_these_rows(self, config: dict[str, Any]) -> dict[str, Any]:
        """Returns the settings that replace the task's dataset with the rows, and its number of examples."""
        sets = {"rows": as_dataset(self.rows)}
        if self.examples is not None:
            sets["examples"] = as_dataset(self.examples)
        number = config.get("num_fewshot") if self.num_fewshot is None else self.num_fewshot
        own_examples = (config.get("fewshot_config") or {}).get("samples")
        if number and self.examples is None and own_examples is None:
            raise NotBuildable(
                f"the task {self.task.file.stem} shows {number} examples before each question, but has no examples",
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


class LmEvalRows(OwnEvaluation):
    """An evaluation set that consists of tasks with their rows, and that computes its own metrics."""

    def __init__(self, tasks: Sequence[TaskRows], group: TaskGroup | None, limit: int | None, chat: bool) -> None:
        self.tasks, self.group, self.limit, self.chat = tasks, group, limit, chat
        self._made: dict[str, Any] = {}

    def __len__(self) -> int:
        return sum(min(len(task.rows), self.limit or len(task.rows)) for task in self.tasks)

    def __getitem__(self, index: int) -> Any:
        return list(chain.from_iterable(task.rows for task in self.tasks))[index]

    def check(self, trainer: Any) -> None:
        if trainer.processing_class is None or not hasattr(trainer.model, "generate"):
            raise NotBuildable(
                "lm-eval needs a language model and its tokenizer",
                hint='use "hf/causal-lm" or "hf/seq2seq" with a folder that has both',
            )
        if not trainer._footplate.strategy.holds_whole:
            raise NotBuildable(
                "lm-eval needs the whole model in one process, and this strategy shards the model",
                hint="evaluate in a job of its own, with resume_from and one process",
            )
        if self.chat:
            require_chat_template(trainer.processing_class, "the argument chat of lm-eval")
        self._make()

    def _make(self) -> None:
        # The library warns about options of its own command, which a job does not use.
        logging.getLogger("lm_eval").setLevel(logging.ERROR)
        if not self._made:
            tasks = [task.task_object() for task in self.tasks]
            self._made = {task.config.task: task for task in tasks}

    def metrics(self, trainer: Any) -> dict[str, float]:
        """Evaluates the Trainer's model. Each process answers a part of the questions, and computes all metrics."""
        from lm_eval.evaluator import evaluate

        self._make()
        groups = {} if self.group is None else {self.group.name: self._library_group(self.group)}
        with _reported(trainer):
            results = evaluate(
                _model_of(trainer), {"tasks": self._made, "groups": groups, "group_map": {}}, limit=self.limit,
                bootstrap_iters=0, log_samples=False, apply_chat_template=self.chat,
            )  # fmt: skip
        # A key is "acc,none" or "exact_match,strict-match": the metric and the filter of the answers.
        return {
            f"lm_eval/{name}/{key.removesuffix(',none').replace(',', '/')}": float(value)
            for name, scores in (results["results"] | results.get("groups", {})).items()
            for key, value in scores.items()
            if isinstance(value, int | float) and key not in _COUNTS
        }

    def _library_group(self, group: TaskGroup) -> Any:
        from lm_eval.api.group import Group

        library_group = Group.from_config(dict(group.config))
        for member in group.members:
            library_group.add(self._library_group(member) if isinstance(member, TaskGroup) else self._made[member.name])
        return library_group


_COUNTS = ("sample_len", "sample_count")


def _model_of(trainer: Any) -> Any:
    """Returns the Trainer's model for lm_eval. Each process answers the requests of its share of the rows.

    lm_eval's own distribution needs the same number of forward passes in every process. Its few-shot examples also
    depend on the number of processes. Here, every process makes all requests, answers its part, and gets all answers.
    """
    from lm_eval.models.huggingface import HFLM

    peers = trainer._footplate.strategy.peers

    def shared(answer: Callable[..., list[Any]], requests: Sequence[Any], *args: Any, **kwargs: Any) -> list[Any]:
        indices = [index for index, request in enumerate(requests) if request.doc_id % peers.world == peers.rank]
        own_requests = [requests[index] for index in indices]
        # If a stop request raises an error in one process, `gather_results` raises the error in all processes.
        parts = peers.gather_results(
            lambda: dict(zip(indices, answer(own_requests, *args, **kwargs) if own_requests else [], strict=True))
        )
        answers = {index: value for part in parts for index, value in part.items()}
        return [answers[index] for index in range(len(requests))]

    model = HFLM(pretrained=trainer.model, tokenizer=trainer.processing_class, batch_size=trainer.args.eval_batch_size)
    for name in ("loglikelihood", "loglikelihood_rolling", "generate_until"):
        setattr(model, name, partial(shared, getattr(model, name)))
    return model


@contextmanager
def _reported(trainer: Any) -> Iterator[None]:
    """Calls the Trainer's callbacks before each forward pass, so that the job shows progress and can be stopped."""

    def report(*_: Any) -> None:
        # The processes have different numbers of forward passes, so callbacks must not communicate here.
        trainer.control = trainer.callback_handler.call_event(
            "on_prediction_step", trainer.args, trainer.state, trainer.control, is_alone=True
        )

    with trainer.model.register_forward_pre_hook(report):
        yield


def _rows(paths: Sequence[str]) -> Any:
    kinds = {kind_of(path) for path in paths}
    if len(kinds) > 1:
        names = ", ".join(Path(path).name for path in paths)
        raise DatasetError(f"the files of a task must be of one kind, but these are of several: {names}")
    (kind,) = kinds
    if kind not in READERS:
        detail, hint = no_reader(Path(paths[0]).name)
        raise DatasetError(detail, hint=hint)
    return READERS[kind](paths=list(paths))


def _own(name: str, bundle: Path | None) -> Path:
    if bundle is None:
        raise NotBuildable(
            f"yaml names {name}, a file of the job's bundle, and the job has no bundle",
            hint="footplate submit SPEC --code FOLDER, with a key that has the scope code",
        )
    file = (bundle / name).resolve()
    if not file.is_relative_to(bundle.resolve()) or not file.is_file():
        yaml_files = sorted(str(path.relative_to(bundle)) for path in bundle.rglob("*.yaml"))
        raise NotBuildable(
            f"the bundle has no {name}; its YAML files are: {', '.join(yaml_files[:20]) or 'none'}",
            hint=did_you_mean(name, yaml_files),
        )
    return file
