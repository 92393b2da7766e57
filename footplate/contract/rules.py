"""The rules between the fields of a spec. They read the long form, before its types are checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from footplate.contract.arguments import Seq2SeqTrainingArguments, TrainingArguments
from footplate.contract.errors import Problem
from footplate.contract.files import ArgumentText, is_url, texts, texts_in
from footplate.contract.hub import HOW, hub_name, is_hub_name
from footplate.contract.ids import is_file
from footplate.contract.learning_rules import broken_learning_rules
from footplate.contract.outbound import Refused, read_url
from footplate.contract.short_forms import REWARDS, Json, Named, components
from footplate.contract.spec_parts import is_component
from footplate.contract.strategies import broken_strategy_rules, built_in_args

STREAMED = ("files/csv", "files/jsonl", "files/parquet", "files/text", "hf/dataset")
"""Datasets that can be streamed row by row."""
ADD_A_BUNDLE = "add code.bundle: footplate submit SPEC --code DIR uploads the folder DIR and fills it in"
ROOTS = ("data://", "models://")
"""The roots that a component's path may begin with. The path is resolved below its root and nowhere else."""


def broken_rules(document: Json, training: TrainingArguments | None) -> Iterator[Problem]:
    """Yields a problem for each broken rule. `training` is None if its own check has refused it."""
    has_code = bool(document.get("code"))
    for named in components(document):
        if "://" in named.component["use"]:
            yield _path_for_a_component(named)
        elif ":" in named.component["use"] and not has_code:
            yield _needs_bundle(named)
        for said in texts(named):
            yield from _naming(said, named.group)
    yield from _of_a_trainer(document, training)
    yield from _of_quantization(document.get("model"))
    computes = document.get("compute_metrics")
    if isinstance(computes, dict) and isinstance(name := computes.get("use"), str) and ":" not in name:
        detail = f"{name[:80]!r} is not a function of your own, as compute_metrics needs"
        yield Problem("/compute_metrics/use", "needs_own_code", detail, "list registered names under metrics")
    if uses := [name for name in ("serve", "export") if document.get(name) is not None]:
        yield from _of_a_use(document, uses)
    elif document.get("loop"):
        yield from _of_a_loop(document, has_code=has_code)
    else:
        yield from _what_is_trained(document)
    yield from _of_evaluation(document, training)
    yield from _of_a_split(document)
    if training and training.max_steps <= 0 and not document.get("loop"):
        yield from _without_end(document.get("data"))
    if isinstance(resume_from := document.get("resume_from"), dict):
        yield from _of_a_start(resume_from, has_loop=bool(document.get("loop")))
    yield from _ids_once(document.get("optimizers"))
    yield from broken_learning_rules(document, training)
    yield from broken_strategy_rules(document, training)


def _of_a_trainer(document: Json, training: TrainingArguments | None) -> Iterator[Problem]:
    """Yields problems of a library's trainer, and of the reward functions among its arguments."""
    trainer = document.get("trainer")
    if not isinstance(trainer, dict) or not isinstance(name := trainer.get("use"), str):
        return
    args = trainer.get("args")
    for index, reward in enumerate(args.get(REWARDS, ()) if isinstance(args, dict) else ()):
        if not is_component(reward):
            detail = "names no reward function"
            hint = 'for example "equals", or {"use": "my_code:reward"} with code.bundle'
            yield Problem(f"/trainer/args/{REWARDS}/{index}", "not_well_formed", detail, hint)
    if ":" in name:
        return
    if isinstance(data := document.get("data"), dict) and any(data.values()) and not data.get("train"):
        yield Problem("/data/train", "missing", f"{name[:80]} trains, so it needs a training set", "add data.train")
    if isinstance(training, Seq2SeqTrainingArguments):
        detail = f"predict_with_generate and its companions are arguments of our own Trainer, and {name[:80]} has none"
        yield Problem("/training/predict_with_generate", "disagreement", detail, "leave them out")


def _of_quantization(model: Any) -> Iterator[Problem]:
    """Yields problems of a built-in model whose weights are quantized."""
    args = built_in_args(model)
    kind, peft = args.get("quantization"), args.get("peft")
    if args.get("double_quantization") and kind not in ("nf4", "fp4"):
        detail = f"is for 4 bits, and quantization is {json.dumps(kind)[:40]}"
        yield Problem("/model/args/double_quantization", "disagreement", detail, 'set quantization to "nf4"')
    if kind is None:
        return
    if not args.get("path") or args.get("from_scratch"):
        detail = "quantizes stored weights, and the model starts with new ones"
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


def _of_evaluation(document: Json, training: TrainingArguments | None) -> Iterator[Problem]:
    """Yields problems of evaluations that have no data, or no model that could be the best."""
    data, final = document.get("data"), document.get("final_eval")
    is_missing = not (_has(data, "eval") or _has(data, "split"))
    if training and training.eval_strategy != "no" and is_missing:
        detail = f"eval_strategy is {training.eval_strategy}, but there is no data to evaluate on"
        hint = 'add data.eval or "split": {"test_size": 0.1} to data, or leave eval_strategy out'
        yield Problem("/training/eval_strategy", "disagreement", detail, hint)
    if final is None:
        return
    if document.get("loop"):
        detail = "there is a loop, and the loop itself decides when it evaluates"
        yield Problem("/final_eval", "disagreement", detail, "leave out final_eval or the loop")
    elif is_missing:
        hint = 'add data.eval or "split": {"test_size": 0.1} to data, or leave final_eval out'
        yield Problem("/final_eval", "disagreement", "there is no data to evaluate on", hint)
    elif final == "best" and training and not training.load_best_model_at_end:
        detail = "the best model is evaluated only if it is loaded, and training keeps the last one"
        hint = 'set training.load_best_model_at_end to true, and save and evaluate at the same steps; or use "last"'
        yield Problem("/final_eval", "disagreement", detail, hint)


def _of_a_split(document: Json) -> Iterator[Problem]:
    data = document.get("data")
    if not isinstance(data, dict) or not data.get("split"):
        return
    if not data.get("train"):
        yield Problem("/data/split", "disagreement", "there is no training set to split", "add data.train")
    if data.get("eval"):
        detail = "data.eval and split both say on which rows the job is evaluated"
        yield Problem("/data/split", "disagreement", detail, "keep one of the two")
    if _is_streamed(data):
        detail = "a stream cannot be split, because the number of its rows is not known"
        yield Problem("/data/split", "disagreement", detail, "leave data.train's streaming out, or name a data.eval")


def _is_streamed(data: Any) -> bool:
    train = data.get("train") if isinstance(data, dict) else None
    if not isinstance(train, dict) or train.get("use") not in STREAMED:
        return False
    args = train.get("args")
    return isinstance(args, dict) and args.get("streaming") is True


def _without_end(data: Any) -> Iterator[Problem]:
    if _is_streamed(data):
        detail = "max_steps is needed, because the number of rows in a stream is not known"
        yield Problem("/training/max_steps", "missing", detail, "set max_steps, or leave data.train's streaming out")


def _of_a_loop(document: Json, *, has_code: bool) -> Iterator[Problem]:
    """Yields a problem for each field that the user's own loop would ignore."""
    loop = document["loop"]
    is_script = isinstance(loop, dict) and "script" in loop
    name = loop.get("use") if isinstance(loop, dict) else None
    if is_script and not has_code:
        yield Problem("/loop/script", "needs_bundle", "is a file of your own, but the spec has no bundle", ADD_A_BUNDLE)
    if isinstance(name, str) and ":" not in name:
        detail = f"{name[:80]!r} is not a function of your own, as a loop has to be"
        yield Problem("/loop/use", "needs_own_code", detail, "module:function of the bundle")
    for field in (*_BESIDE_A_SCRIPT, *_BESIDE_A_LOOP) if is_script else _BESIDE_A_LOOP:
        value = document.get(field)
        # The effective spec has an empty `data` if the user gave none.
        if any(value.values()) if field == "data" and isinstance(value, dict) else value:
            text = "a script does not read this field" if is_script else "an own loop does not use this field"
            yield Problem(f"/{field}", "disagreement", f"there is a loop, and {text}", f"leave out {field} or the loop")


def _of_a_use(document: Json, uses: list[str]) -> Iterator[Problem]:
    """Yields a problem for each field that a serving session or an export lacks, or would ignore."""
    use = uses[0]
    if len(uses) > 1:
        yield Problem("/export", "disagreement", "a job either serves a checkpoint or exports it", "keep one of them")
    if document.get("model") is None:
        detail = f"{use} loads a checkpoint into the model of the spec"
        yield Problem("/model", "missing", detail, "copy the model of the job that wrote the checkpoint")
    if not isinstance(document.get("resume_from"), dict):
        detail = f"{use} needs a checkpoint, and none is named"
        yield Problem("/resume_from", "missing", detail, '{"job": "job_…", "mode": "weights"}')
    data = document.get("data")
    names = [f"data/{name}" for name in ("train", "eval", "test") if isinstance(data, dict) and data.get(name)]
    names += [name for name in ("loop", "optimizers", "callbacks", "report_to") if document.get(name)]
    for name in names:
        detail = f"a job with {use} trains nothing and does not read this field"
        yield Problem(f"/{name}", "disagreement", detail, f"leave this field or {use} out")
    resources = document.get("resources")
    for name in ("nodes", "processes_per_node"):
        if isinstance(resources, dict) and resources.get(name) not in (None, 1):
            yield Problem(f"/resources/{name}", "disagreement", f"a job with {use} is one process", f"leave {name} out")


_BESIDE_A_LOOP = ("trainer", "report_to")
_BESIDE_A_SCRIPT = (
    "model", "processor", "data", "collator", "loss", "metrics", "compute_metrics", "training", "optimizers",
    "callbacks", "resume_from",
)  # fmt: skip


def _of_a_start(given: Json, *, has_loop: bool) -> Iterator[Problem]:
    """Yields problems if a start names not exactly one place, or has options without an effect."""
    job, path = given.get("job"), given.get("path")
    if job is None and path is None:
        yield Problem("/resume_from", "missing", "names nothing to start from", 'say {"job": "job_…"} or a path')
    if job is not None and path is not None:
        detail = "names a job and a folder, and a job starts from one place"
        yield Problem("/resume_from/path", "disagreement", detail, "keep one of the two")
    elif path is not None and given.get("checkpoint", "latest") != "latest":
        detail = "is about a job's checkpoints, and the path names a folder"
        yield Problem("/resume_from/checkpoint", "disagreement", detail, "let the path name the checkpoint's folder")
    if has_loop and path is not None:
        detail = "there is a loop, and a loop gets only checkpoints of jobs"
        yield Problem("/resume_from/path", "disagreement", detail, "give the folder to the loop, among its args")
    if has_loop and given.get("mode") == "weights":
        detail = "there is a loop, and the loop itself decides what it loads from job.latest()"
        yield Problem("/resume_from/mode", "disagreement", detail, "leave mode out, and load the weights in the loop")
    for said in texts_in(path, ("resume_from", "path")):
        yield from _naming(said, "resume_from")


def _path_for_a_component(named: Named) -> Problem:
    """Returns the problem of a path such as `hub://bert-base-uncased` that stands where a component belongs."""
    path = named.component["use"][:120]
    uses = {"models": "hf/sequence-classification", "processors": "hf/tokenizer", "data": "files/jsonl"}
    args = {"paths": [path]} if named.group == "data" else {"path": path}
    example = json.dumps({"use": uses.get(named.group, "NAME"), "args": args})
    detail = f"{path!r} is a path, and the name of a component is needed"
    return Problem(
        named.pointer + "/use", "not_well_formed", detail, f"a path is an argument of a component: {example}"
    )


def _needs_bundle(named: Named) -> Problem:
    detail = f"{named.component['use'][:80]!r} is code of your own, but the spec has no bundle"
    return Problem(named.pointer + "/use", "needs_bundle", detail, f"name a registered component, or {ADD_A_BUNDLE}")


def _what_is_trained(document: Json) -> Iterator[Problem]:
    if document.get("model") is None:
        yield Problem("/model", "missing", "this field is required", 'for example "toy/mlp"; GET /components lists all')
    data = document.get("data")
    # A misspelt part has a problem of its own, so no second one says that the right part is missing.
    if data is None or (isinstance(data, dict) and not any(data.values())):
        yield Problem(
            "/data", "missing", "a job needs data", 'for example "toy/regression", or {"train": …, "eval": …}'
        )


def _has(data: Any, part: str) -> bool:
    """Returns True if the part is given. A value of the wrong type counts, because its type is reported elsewhere."""
    return bool(data.get(part)) if isinstance(data, dict) else data is not None


def _naming(said: ArgumentText, group: str) -> Iterator[Problem]:
    """Yields problems of names: a path stays below its root, and an argument that is a path names its root."""
    text = said.text
    if is_hub_name(text):
        yield from _of_a_hub(said)
    elif text.startswith(ROOTS) and {"..", "."} & set(text.split("://", 1)[1].split("/")):
        yield Problem(said.pointer, "path_outside_root", "a path under a root has no '.' or '..' in it")
    elif said.is_path and group == "data" and is_url(text):
        yield from _of_a_store(said)
    elif said.is_path and not text.startswith(ROOTS) and not is_file(text):
        yield _without_root(said)


def _without_root(said: ArgumentText) -> Problem:
    """Returns the problem of a path that is local, a URL, or a model's name on a hub."""
    root = "models://" if said.path[0] in ("model", "processor") else "data://"
    near = (root + said.text.lstrip("./~"))[:80]
    hint = f"put it below {root} on the nodes, or upload it" if "://" in said.text else f"did you mean {near!r}?"
    if root == "models://" and "://" not in said.text:
        hint += " models:// is the models folder on the nodes. A model of a hub is hub://NAME"
    if said.is_of_a_dataset and "://" not in said.text:
        hint += " A file on your own machine is uploaded: footplate upload FILE prints its name for the spec"
    return Problem(said.pointer, "path_without_root", f"{said.text[:80]!r} names no root", hint)


def _of_a_store(said: ArgumentText) -> Iterator[Problem]:
    try:
        read_url(said.text)
    except Refused as error:
        yield Problem(said.pointer, "bad_url", f"it {error}", "for example https://data.example.org/rows.jsonl")


def _of_a_hub(said: ArgumentText) -> Iterator[Problem]:
    try:
        hub_name(said.text)
    except ValueError as error:
        yield Problem(said.pointer, "bad_hub_name", f"{said.text[:200]!r}: {error}", f"for example {HOW}")


def _ids_once(optimizers: Any) -> Iterator[Problem]:
    seen: set[Any] = set()
    for index, optimizer in enumerate(optimizers if isinstance(optimizers, list) else []):
        name = optimizer.get("id") if isinstance(optimizer, dict) else None
        if isinstance(name, str) and name in seen:
            yield Problem(f"/optimizers/{index}/id", "duplicate_id", "another optimizer has this id")
        seen.add(name if isinstance(name, str) else None)
