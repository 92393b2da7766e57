"""A program that evaluates a tiny language model by specs with `lm-eval`: `evaluates_with_lm_eval.py FOLDER`.

It writes FOLDER/results.json, with the metrics of each spec, or with its error. Each of several processes writes
FOLDER/results-RANK.json, with the metrics and the number of the texts that this process gave to the model.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", CUDA_VISIBLE_DEVICES="")

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from footplate.components.lm_eval_shipped import TaskGroup, named
from footplate.contract.errors import FootplateError
from footplate.contract.host.bundle_files import Bundle
from footplate.contract.host.file_roots import Roots
from footplate.contract.spec import JobSpec
from footplate.runtime import own_code
from footplate.runtime.build import build, check_trainer
from footplate.runtime.emit import StoppedEvaluating
from footplate.runtime.run import our_trainer
from footplate.trainer.callbacks import TrainerCallback

FOLDER = Path(sys.argv[1])
WORDS = "<pad> <unk> </s> the is sky grass sea blue green Question: Answer: A B A. B. Sky? Grass? Which?"
OWN_TASK = """
task: colours
dataset_path: a-place/on-a-hub
output_type: multiple_choice
test_split: test
doc_to_text: "the {{thing}} is"
doc_to_choice: "{{choices}}"
doc_to_target: !function colour_functions.answer
"""
MODEL = {"use": "hf/causal-lm", "args": {"path": "models://tiny"}}
ROWS: dict[str, list[dict[str, Any]]] = {
    "arc": [
        {"id": str(n), "question": f"Which? {thing}", "answerKey": "A",
         "choices": {"text": ["blue", "green"], "label": ["A", "B"]}}
        for n, thing in enumerate(["Sky?", "Grass?", "Sky?"])
    ],
    "texts": [{"text": "the sky is blue"}] * 4,
    "sums": [{"question": "Which? Sky?", "answer": "blue #### 4"}] * 3,
    **{
        name: [{"question": f"Which? {thing}", "choices": ["blue", "green", "sky", "sea"], "answer": n}
               for n, thing in enumerate(things)]
        for name, things in {"bio": ["Sky?"], "chem": ["Sky?", "Grass?"], "cyber": ["Sky?", "Grass?", "sea"]}.items()
    },
    "mine": [{"thing": thing, "choices": ["blue", "green"], "answer": 0} for thing in ("sky", "sea")],
}  # fmt: skip

GROUP = {f"wmdp_{name}": [f"data://{name}.jsonl"] for name in ("bio", "chem", "cyber")}
CASES: dict[str, dict[str, Any]] = {
    "shipped": {"task": "arc_easy", "paths": ["data://arc.jsonl"]},
    "with examples": {"task": "arc_easy", "paths": ["data://arc.jsonl"], "examples": ["data://arc.jsonl"],
                      "num_fewshot": 2, "limit": 2},
    "generated": {"task": "gsm8k", "paths": ["data://sums.jsonl"], "num_fewshot": 0, "limit": 1},
    "group": {"task": "wmdp", "paths": GROUP},
    "group with one list": {"task": "wmdp", "paths": ["data://bio.jsonl"]},
    "part of a group": {"task": "wmdp", "paths": {"wmdp_bio": ["data://bio.jsonl"]}},
    "without its examples": {"task": "gsm8k", "paths": ["data://sums.jsonl"]},
    "wrong rows": {"task": "arc_easy", "paths": ["data://sums.jsonl"]},
    "runs code": {"task": "cruxeval_input", "paths": ["data://sums.jsonl"]},
    "of the bundle": {"yaml": "tasks/colours.yaml", "paths": ["data://mine.jsonl"]},
    "not in the bundle": {"yaml": "tasks/colors.yaml", "paths": ["data://mine.jsonl"]},
    "outside of the bundle": {"yaml": "../data/mine.jsonl", "paths": ["data://mine.jsonl"]},
}  # fmt: skip


def prepare() -> Roots:
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS.split())}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    model = FOLDER / "models/tiny"
    PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", pad_token="<pad>", eos_token="</s>"
    ).save_pretrained(model)
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(WORDS.split()), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
            num_attention_heads=2, max_position_embeddings=512, eos_token_id=2, pad_token_id=0, bos_token_id=None,
        )
    ).save_pretrained(model)  # fmt: skip
    (FOLDER / "data").mkdir()
    for name, rows in ROWS.items():
        (FOLDER / f"data/{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (FOLDER / "bundle/tasks").mkdir(parents=True)
    (FOLDER / "bundle/tasks/colours.yaml").write_text(OWN_TASK)
    (FOLDER / "bundle/tasks/colour_functions.py").write_text("def answer(row):\n    return row['answer']\n")
    own_code.use(Bundle("0" * 64, FOLDER / "bundle", ()))
    return Roots(FOLDER / "data", FOLDER / "models")


def evaluated(args: dict[str, Any], roots: Roots) -> dict[str, Any]:
    spec = JobSpec.parse(
        {
            "model": MODEL,
            "data": {"eval": {"use": "lm-eval", "args": args}},
        }
    )
    try:
        parts = build(spec, roots)
        trainer = our_trainer(spec, parts, replace(spec.training, output_dir=str(FOLDER / "out")))
        check_trainer(trainer, ())
        texts = TextCounter(trainer.model)
        before = torch.get_rng_state()
        first, second = trainer.evaluate(), trainer.evaluate()
    except FootplateError as error:
        return {"error": type(error).__name__, "message": error.message, "hint": error.hint}
    of_tasks = {name: value for name, value in first.items() if name.startswith("lm_eval/")}
    return {
        "metrics": of_tasks,
        "others": sorted(first.keys() - of_tasks.keys()),
        "is_repeatable": of_tasks == {name: second[name] for name in of_tasks},
        "draws_nothing": torch.equal(before, torch.get_rng_state()),
        "texts": texts.count,
    }


class TextCounter:
    """Counts the texts that a model gets."""

    def __init__(self, model: Any) -> None:
        self.count = 0
        model.register_forward_pre_hook(self._add, with_kwargs=True)

    def _add(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.count += len(args[0] if args else kwargs["input_ids"])


class StopOnRankOne(TrainerCallback):
    """Stops the evaluation on rank 1 only, before its first forward pass."""

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if kwargs["is_alone"] and os.environ["RANK"] == "1":
            raise StoppedEvaluating


def was_stopped(roots: Roots) -> bool:
    spec = JobSpec.parse({"model": MODEL, "data": {"eval": {"use": "lm-eval", "args": CASES["shipped"]}}})
    trainer = our_trainer(spec, build(spec, roots), replace(spec.training, output_dir=str(FOLDER / "out")))
    trainer.add_callback(StopOnRankOne())
    try:
        trainer.evaluate()
    except StoppedEvaluating:
        return True
    return False


def trained_with_trl(roots: Roots) -> dict[str, float]:
    """Trains one step of SFT with two evaluation sets, one of which is a task of lm-eval."""
    sets = {"rows": "data://texts.jsonl", "colours": {"use": "lm-eval", "args": CASES["of the bundle"]}}
    spec = JobSpec.parse(
        {
            "model": MODEL,
            "trainer": "trl/sft",
            "data": {"train": "data://texts.jsonl", "eval": sets},
            "training": {"max_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "bf16": False},
        }
    )
    parts = build(spec, roots)
    trainer = parts.make_trainer(parts, {"max_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "bf16": False,
                                         "use_cpu": True, "output_dir": str(FOLDER / "out"), "report_to": []},
                                 **parts.trainer_args)  # fmt: skip
    check_trainer(trainer, ())
    trainer.train()
    return {name: value for row in trainer.state.log_history for name, value in row.items()}


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("the evaluation opened a connection")


if __name__ == "__main__":
    socket.socket.connect = socket.create_connection = refuse  # type: ignore[assignment, method-assign]
    if rank := os.environ.get("RANK"):
        own_code.use(Bundle("0" * 64, FOLDER / "bundle", ()))
        folders = Roots(FOLDER / "data", FOLDER / "models")
        shared: dict[str, Any] = {
            name: evaluated(CASES[name], folders) for name in ("group", "generated", "with examples")
        }
        shared["stopped"] = was_stopped(folders)
        (FOLDER / f"results-{rank}.json").write_text(json.dumps(shared))
    else:
        folders = prepare()
        results: dict[str, Any] = {name: evaluated(args, folders) for name, args in CASES.items()}
        mmlu = named("mmlu")
        assert isinstance(mmlu, TaskGroup)
        results["tasks of mmlu"] = len(list(mmlu.tasks()))
        results["trl"] = trained_with_trl(folders)
        (FOLDER / "results.json").write_text(json.dumps(results))
