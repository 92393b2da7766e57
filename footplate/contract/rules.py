"""The rules between the fields of a spec. They read the typed spec, so each value has its type here.

A spec with wrong types is checked, too, so that a user sees all mistakes at once. Its wrong values are left out. A rule
that needs one of these values is skipped (`_RULES`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from footplate.contract.arguments import Seq2SeqTrainingArguments, stated
from footplate.contract.body import is_nested
from footplate.contract.errors import Problem
from footplate.contract.files import ArgumentText, is_url
from footplate.contract.hub import HOW, hub_name, is_hub_name
from footplate.contract.ids import is_file
from footplate.contract.learning_rules import (
    best_model_problems,
    generation_problems,
    loss_problems,
    metric_problems,
    optimizer_problems,
    stopping_problems,
    tracker_problems,
)
from footplate.contract.outbound import Refused, read_url
from footplate.contract.short_forms import REWARDS
from footplate.contract.spec_parts import Component, ResumeFrom, Script, is_component
from footplate.contract.strategies import (
    built_in_args,
    reference_problems,
    several_processes_problems,
    shape_problems,
    sharding_problems,
)

if TYPE_CHECKING:
    from footplate.contract.spec import JobSpec

ADD_A_BUNDLE = "add code.bundle: footplate submit SPEC --code DIR uploads the folder DIR and fills it in"
ROOTS = ("data://", "models://")
"""The roots that a component's path may begin with. The path is resolved below its root and nowhere else."""


def broken_rules(spec: JobSpec, wrong_pointers: Collection[str] = ()) -> Iterator[Problem]:
    """Yields a problem for each broken rule. `wrong_pointers` name values that are left out of the spec."""
    for rule, places in _RULES.items():
        if not wrong_pointers or not any(is_nested(place, pointer) for place in places for pointer in wrong_pointers):
            yield from rule(spec)


def _own_code_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yields a problem for each `module:Attr` in a spec without a bundle.

    Also yields one if `compute_metrics` is not a `module:Attr`.
    """
    if spec.code is None:
        for used in spec.components:
            if ":" in used.component.use:
                detail = f"{used.component.use[:80]!r} is code of your own, but the spec has no bundle"
                hint = f"name a registered component, or {ADD_A_BUNDLE}"
                yield Problem(f"{used.pointer}/use", "needs_bundle", detail, hint)
    if spec.compute_metrics is not None and not spec.compute_metrics.is_own:
        detail = f"{spec.compute_metrics.use[:80]!r} is not a function of your own, as compute_metrics needs"
        yield Problem("/compute_metrics/use", "needs_own_code", detail, "list registered names under metrics")


def _file_name_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yields a problem for each path that contains `..` or `.`, or that does not begin with a root such as `data://`."""
    for argument in spec.texts:
        pointer, text = argument.pointer, argument.text
        try:
            if is_hub_name(text):
                hub_name(text)
            elif text.startswith(ROOTS) and {"..", "."} & set(text.split("://", 1)[1].split("/")):
                detail = "a path below data:// or models:// must not contain '.' or '..'"
                yield Problem(pointer, "path_outside_root", detail, "write the path without '.' and '..'")
            elif argument.is_path and argument.is_of_a_dataset and is_url(text):
                read_url(text)
            elif argument.is_path and not text.startswith(ROOTS) and not is_file(text):
                yield _without_root(argument)
        except Refused as error:
            yield Problem(pointer, "bad_url", f"the URL {error}", "for example https://data.example.org/rows.jsonl")
        except ValueError as error:
            yield Problem(pointer, "bad_hub_name", f"{text[:200]!r}: {error}", f"for example {HOW}")


def _trainer_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yields problems of a library's trainer, and of the reward functions among its arguments."""
    rewards = spec.trainer.args.get(REWARDS) if spec.trainer is not None else None
    for index, reward in enumerate(rewards if isinstance(rewards, list) else ()):
        if not is_component(reward):
            detail = "names no reward function"
            hint = 'for example "equals", or {"use": "my_code:reward"} with code.bundle'
            yield Problem(f"/trainer/args/{REWARDS}/{index}", "not_well_formed", detail, hint)
    if (trainer := spec.library_trainer) is None:
        return
    if spec.data.train is None and not spec.data.is_empty:
        detail = f"{trainer.use[:80]} trains, so it needs a training set"
        yield Problem("/data/train", "missing", detail, "add data.train")
    if isinstance(spec.training, Seq2SeqTrainingArguments):
        detail = (
            "predict_with_generate and the generation_ arguments are for Footplate's own Trainer, but the spec names "
            f"{trainer.use[:80]}"
        )
        yield Problem("/training/predict_with_generate", "disagreement", detail, "leave them out")


def _quantization_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yields problems of a built-in model whose weights are quantized."""
    args = built_in_args(spec)
    kind, peft = args.get("quantization"), args.get("peft")
    if args.get("double_quantization") and kind not in ("nf4", "fp4"):
        detail = f"double_quantization needs a quantization to 4 bits, but quantization is {json.dumps(kind)[:40]}"
        yield Problem("/model/args/double_quantization", "disagreement", detail, 'set quantization to "nf4"')
    if kind is None:
        return
    if not args.get("path") or args.get("from_scratch"):
        detail = "only stored weights can be quantized, and this model starts with new weights"
        hint = "name a path without from_scratch, or leave quantization out"
        yield Problem("/model/args/quantization", "disagreement", detail, hint)
    if not peft:
        detail = "quantized weights cannot be trained, and the model has no adapter"
        hint = 'add "peft": {"r": 16, "target_modules": ["q_proj", "v_proj"]}'
        yield Problem("/model/args/quantization", "disagreement", detail, hint)
    elif isinstance(peft, dict) and peft.get("merge"):
        detail = "an adapter would be merged into weights of few bits, which loses what it has learned"
        hint = "leave merge out, and merge the job's outputs into the model without quantization"
        yield Problem("/model/args/peft/merge", "disagreement", detail, hint)


def _purpose_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yields the problems of a job's purpose, which is to serve, to export, to run a loop, or to train a model."""
    if uses := [name for name in ("serve", "export") if getattr(spec, name) is not None]:
        yield from _checkpoint_use_problems(spec, uses)
    elif spec.loop is not None:
        yield from _loop_problems(spec, spec.loop)
    else:
        if spec.model is None:
            hint = 'for example "toy/mlp"; GET /components lists all'
            yield Problem("/model", "missing", "this field is required", hint)
        if spec.data.is_empty:
            hint = 'for example "toy/regression", or {"train": …, "eval": …}'
            yield Problem("/data", "missing", "a job needs data", hint)


def _checkpoint_use_problems(spec: JobSpec, uses: list[str]) -> Iterator[Problem]:
    """Yields a problem for each field that a serving session or an export lacks, or would ignore."""
    use = uses[0]
    if len(uses) > 1:
        detail = "one job cannot both serve and export a checkpoint"
        yield Problem("/export", "disagreement", detail, "leave serve or export out")
    if spec.model is None:
        detail = f"{use} needs a model, into which the checkpoint is loaded"
        yield Problem(
            "/model", "missing", detail, "copy the field model from the spec of the job that wrote the checkpoint"
        )
    if spec.resume_from is None:
        detail = f"{use} needs a checkpoint, and none is named"
        yield Problem("/resume_from", "missing", detail, '{"job": "job_…", "mode": "weights"}')
    names = [f"data/{name}" for name in ("train", "eval", "test") if getattr(spec.data, name) is not None]
    names += [name for name in ("loop", "optimizers", "callbacks", "report_to") if getattr(spec, name)]
    for name in names:
        detail = f"a job with {use} trains nothing and does not read this field"
        yield Problem(f"/{name}", "disagreement", detail, f"leave this field or {use} out")
    for name in ("nodes", "processes_per_node"):
        if (count := getattr(spec.resources, name)) not in (None, 1):
            detail = f"{name} is {count}, but a job with {use} runs in a single process"
            yield Problem(f"/resources/{name}", "disagreement", detail, f"leave {name} out")


def _loop_problems(spec: JobSpec, loop: Component | Script) -> Iterator[Problem]:
    """Yields a problem for each field that the user's own loop would ignore."""
    fields, text = _BESIDE_A_LOOP, "a loop of your own does not use this field"
    if isinstance(loop, Script):
        fields, text = _BESIDE_A_SCRIPT, "a script does not read this field"
        if spec.code is None:
            detail = "the script is a file of your own, but the spec has no bundle"
            yield Problem("/loop/script", "needs_bundle", detail, ADD_A_BUNDLE)
    elif not loop.is_own:
        detail = f"{loop.use[:80]!r} is not a function of your own, as a loop has to be"
        yield Problem("/loop/use", "needs_own_code", detail, "name a function of the bundle as module:function")
    for name in fields:
        if _is_given(spec, name):
            yield Problem(
                f"/{name}", "disagreement", f"the spec has a loop, and {text}", f"leave out {name} or the loop"
            )


def _is_given(spec: JobSpec, name: str) -> bool:
    if name == "data":
        return not spec.data.is_empty
    return bool(stated(spec.training) if name == "training" else getattr(spec, name))


_BESIDE_A_LOOP: tuple[str, ...] = ("trainer", "report_to")
_BESIDE_A_SCRIPT = (
    "model", "processor", "data", "collator", "loss", "metrics", "compute_metrics", "training", "optimizers",
    "callbacks", *_BESIDE_A_LOOP,
)  # fmt: skip


def _evaluation_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yields a problem if evaluations are requested, but the spec has no data for them."""
    strategy = spec.training.eval_strategy
    if strategy != "no" and not spec.data.has_evaluation:
        detail = f"eval_strategy is {strategy}, but there is no data to evaluate on"
        hint = 'add data.eval or "split": {"test_size": 0.1} to data, or leave eval_strategy out'
        yield Problem("/training/eval_strategy", "disagreement", detail, hint)


def _final_evaluation_problems(spec: JobSpec) -> Iterator[Problem]:
    if spec.final_eval is None:
        return
    if spec.loop is not None:
        detail = "the spec has a loop, and the loop itself decides when to evaluate"
        yield Problem("/final_eval", "disagreement", detail, "leave out final_eval or the loop")
    elif not spec.data.has_evaluation:
        hint = 'add data.eval or "split": {"test_size": 0.1} to data, or leave final_eval out'
        yield Problem("/final_eval", "disagreement", "there is no data to evaluate on", hint)
    elif spec.final_eval == "best" and not spec.training.load_best_model_at_end:
        detail = (
            "the best model can be evaluated only if it is loaded after training, but load_best_model_at_end is off"
        )
        hint = 'set training.load_best_model_at_end to true, and save and evaluate at the same steps; or use "last"'
        yield Problem("/final_eval", "disagreement", detail, hint)


def _split_problems(spec: JobSpec) -> Iterator[Problem]:
    if spec.data.split is None:
        return
    if spec.data.train is None:
        yield Problem("/data/split", "disagreement", "there is no training set to split", "add data.train")
    if spec.data.eval is not None:
        detail = "data.eval and data.split both set the rows on which the job is evaluated"
        yield Problem("/data/split", "disagreement", detail, "keep one of the two")
    if spec.data.is_streamed:
        detail = "a stream cannot be split, because the number of its rows is not known"
        yield Problem("/data/split", "disagreement", detail, "leave data.train's streaming out, or name a data.eval")


def _stream_problems(spec: JobSpec) -> Iterator[Problem]:
    if spec.data.is_streamed and spec.training.max_steps <= 0 and spec.loop is None:
        detail = "max_steps is needed, because the number of rows in a stream is not known"
        yield Problem("/training/max_steps", "missing", detail, "set max_steps, or leave data.train's streaming out")


def _resume_from_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yields problems if `resume_from` does not name exactly one checkpoint, or has options without an effect."""
    start: ResumeFrom | None = spec.resume_from
    if start is None:
        return
    if start.job is None and start.path is None:
        yield Problem(
            "/resume_from",
            "missing",
            "resume_from names neither a job nor a path",
            'write {"job": "job_…"} or {"path": "models://…"}',
        )
    if start.job is not None and start.path is not None:
        detail = "resume_from names a job and a folder, but a job starts from one checkpoint"
        yield Problem("/resume_from/path", "disagreement", detail, "keep one of the two")
    elif start.path is not None and start.checkpoint != "latest":
        detail = "checkpoint selects one of a job's checkpoints, but path names a folder"
        yield Problem(
            "/resume_from/checkpoint",
            "disagreement",
            detail,
            "leave checkpoint out, and let path name the checkpoint's folder",
        )
    if spec.loop is not None and start.path is not None:
        detail = "the spec has a loop, and a loop gets only checkpoints of jobs"
        hint = "give the folder to the " + (
            "script, in its argv" if isinstance(spec.loop, Script) else "loop, among its args"
        )
        yield Problem("/resume_from/path", "disagreement", detail, hint)
    if isinstance(spec.loop, Component) and start.mode == "weights":
        detail = "the spec has a loop, and the loop itself decides what it loads from job.latest()"
        yield Problem("/resume_from/mode", "disagreement", detail, "leave mode out, and load the weights in the loop")


def _without_root(argument: ArgumentText) -> Problem:
    """Returns the problem of a path that is local, a URL, or a model's name on a hub."""
    root = "models://" if argument.path[0] in ("model", "processor") else "data://"
    # An absolute path is one of the user's machine. On the node, only its last part can be below a root.
    below_root = (
        argument.text.rstrip("/").rpartition("/")[2]
        if argument.text.startswith(("/", "~"))
        else argument.text.lstrip("./")
    )
    suggestion = (root + below_root)[:80]
    hint = (
        f"put the file below {root} on the nodes, or upload it"
        if "://" in argument.text
        else f"did you mean {suggestion!r}?"
    )
    if root == "models://" and "://" not in argument.text:
        hint += " models:// is the models folder on the nodes. A model of a hub is hub://NAME"
    if argument.is_of_a_dataset and "://" not in argument.text:
        hint += " A file on your own machine is uploaded: footplate upload FILE prints its name for the spec"
    return Problem(argument.pointer, "path_without_root", f"{argument.text[:80]!r} has no root such as data://", hint)


_EVALUATION = ("/data/eval", "/data/split")
_SHAPE = ("/resources/nodes", "/resources/gpus_per_node", "/resources/processes_per_node", "/resources/strategy")
_RULES: dict[Callable[[JobSpec], Iterator[Problem]], tuple[str, ...]] = {
    _own_code_problems: ("/code",),
    _file_name_problems: (),
    _trainer_problems: (),
    _quantization_problems: (),
    _purpose_problems: ("/serve", "/export", "/loop", "/code"),
    _evaluation_problems: _EVALUATION,
    _final_evaluation_problems: ("/training/load_best_model_at_end", "/loop", *_EVALUATION),
    _split_problems: ("/data/train", "/data/eval"),
    _stream_problems: ("/training/max_steps", "/loop"),
    _resume_from_problems: ("/loop",),
    optimizer_problems: (),
    loss_problems: (),
    stopping_problems: ("/training/eval_strategy",),
    best_model_problems: ("/metrics", "/compute_metrics", "/trainer", "/loop", "/code"),
    generation_problems: ("/data/test", "/loop", *_EVALUATION),
    metric_problems: ("/training/predict_with_generate", "/trainer"),
    tracker_problems: (),
    shape_problems: _SHAPE,
    sharding_problems: (*_SHAPE, "/training", "/loop"),
    several_processes_problems: _SHAPE,
    reference_problems: (*_SHAPE, "/model", "/trainer"),
}
"""Each rule, with the pointers of the values that it needs. A rule is skipped if one of them was left out as wrong."""
