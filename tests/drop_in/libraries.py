"""A program that trains with every library twice: under transformers, and under footplate.install().

`libraries.py FOLDER` writes FOLDER/theirs.json and FOLDER/ours.json. The process imports what both sides need, and then
forks, because imports cost most of the time. Our side also makes TRL's trainers of job specs.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1",
    TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="",
)  # fmt: skip

import torch
from datasets import Dataset
from torch import nn

warnings.filterwarnings("ignore")
FOLDER = Path(sys.argv[1]) if __name__ == "__main__" else Path()
tempfile.tempdir = str(FOLDER)
WORDS = (
    "the a cat dog sat ran on mat log good bad movie great awful hello how are you fine thanks blue sky is not what "
    "user assistant system who i am it was in of and to . , ? !"
)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>"]
MEASURED = ("runtime", "per_second", "total_flos", "time")


def small_models() -> None:
    """Writes a causal model, a reward model, an encoder and a cross encoder, each with its tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        BertModel,
        LlamaConfig,
        LlamaForCausalLM,
        LlamaForSequenceClassification,
        PreTrainedTokenizerFast,
    )

    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS.split()])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="[UNK]", pad_token="[PAD]", bos_token="<s>", eos_token="</s>",
        cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]", model_max_length=32,
    )  # fmt: skip
    tokenizer.chat_template = "{% for m in messages %}{{m['role']}} {{m['content']}} </s> {% endfor %}"
    sizes: dict[str, Any] = {
        "vocab_size": len(vocabulary), "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0,
    }  # fmt: skip
    llama = LlamaConfig(**sizes, num_key_value_heads=2, bos_token_id=5, eos_token_id=6)
    torch.manual_seed(0)
    new_models: dict[str, Any] = {
        "causal": LlamaForCausalLM(llama),
        "reward": LlamaForSequenceClassification(LlamaConfig(**{**llama.to_dict(), "num_labels": 1})),
        "encoder": BertModel(BertConfig(**sizes)),
        "cross": BertForSequenceClassification(BertConfig(**sizes, num_labels=1)),
    }
    for name, model in new_models.items():
        model.save_pretrained(FOLDER / name)
        tokenizer.save_pretrained(FOLDER / name)


def path(name: str) -> str:
    return str(FOLDER / name)


def common(folder: str) -> dict[str, Any]:
    return {
        "output_dir": folder, "max_steps": 4, "per_device_train_batch_size": 2, "per_device_eval_batch_size": 2,
        "logging_steps": 1, "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2, "report_to": "none",
        "disable_tqdm": True, "use_cpu": True, "learning_rate": 1e-2, "seed": 7,
    }  # fmt: skip


def rows(columns: dict[str, list[Any]]) -> dict[str, Any]:
    data = Dataset.from_dict({name: values * 6 for name, values in columns.items()})
    return {"train_dataset": data, "eval_dataset": data.select(range(4))}


PROMPTS = ["hello how are you", "the sky is", "who are you"]


def trl(name: str, columns: dict[str, list[Any]], model: str = "causal", **more: Any) -> Callable[[str], Any]:
    """Returns a function that makes one of TRL's trainers for an output folder."""

    def make(folder: str) -> Any:
        import trl as library

        options = dict(more)
        own = {name: options.pop(name) for name in ("reward_funcs", "peft_config") if name in options}
        config = getattr(library, f"{name}Config")(bf16=False, **{**common(folder), **options})
        return getattr(library, f"{name}Trainer")(model=path(model), args=config, **rows(columns), **own)

    return make


def reward(completions: list[str], **columns: Any) -> list[float]:
    return [len(text.split()) / 10 + text.count("cat") for text in completions]


def lora() -> Any:
    from peft import LoraConfig

    return LoraConfig(r=4, target_modules=["q_proj", "v_proj"])


PAIRS = {
    "anchor": ["the cat sat", "a dog ran", "hello how are you"],
    "positive": ["a cat sat on mat", "the dog ran on log", "fine thanks"],
}


def sentence_transformer() -> Any:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    torch.manual_seed(1)
    words = Transformer(path("encoder"))
    return SentenceTransformer(modules=[words, Pooling(words.get_embedding_dimension())], device="cpu")


def embeddings(folder: str) -> Any:
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    model, args = sentence_transformer(), SentenceTransformerTrainingArguments(**common(folder))
    loss = MultipleNegativesRankingLoss(model)
    return SentenceTransformerTrainer(model=model, args=args, loss=loss, **rows(PAIRS))


def cross_encoder(folder: str) -> Any:
    from sentence_transformers.cross_encoder import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments

    model = CrossEncoder(path("cross"), num_labels=1, device="cpu")
    args = CrossEncoderTrainingArguments(**common(folder))
    return CrossEncoderTrainer(model=model, args=args, **rows({**PAIRS, "label": [1.0, 0.0, 1.0]}))


def setfit(folder: str) -> Any:
    from setfit import SetFitModel, Trainer, TrainingArguments
    from sklearn.linear_model import LogisticRegression

    model = SetFitModel(model_body=sentence_transformer(), model_head=LogisticRegression(), labels=["neg", "pos"])
    texts = ["the movie was great", "the movie was awful", "good cat", "bad dog", "great sky", "awful log"]
    data = Dataset.from_dict({"text": texts, "label": [1, 0] * 3})
    args = TrainingArguments(
        output_dir=folder, batch_size=2, num_epochs=1, max_steps=4, logging_steps=1, eval_strategy="steps",
        eval_steps=2, save_steps=2, report_to="none", seed=7,
    )  # fmt: skip

    def accuracy(predicted: Any, labels: Any) -> dict[str, float]:
        return {"accuracy": sum(int(a == b) for a, b in zip(predicted, labels, strict=True)) / len(labels)}

    return Trainer(model=model, args=args, train_dataset=data, eval_dataset=data, metric=accuracy)


ROWS: dict[str, dict[str, list[Any]]] = {
    "sft": {"text": ["the cat sat on the mat .", "a dog ran on the log !", "hello"]},
    "sft lora": {"text": ["the cat sat on the mat .", "a dog ran"]},
    "sft packing": {"text": ["the cat sat on the mat .", "a dog ran on the log !"]},
    "dpo": {"prompt": PROMPTS, "chosen": [" fine", " blue .", " i am"], "rejected": [" bad", " not blue", " the mat"]},
    "kto": {"prompt": PROMPTS, "completion": [" fine", " not blue .", " i am"], "label": [True, False, True]},
    "reward": {"chosen": ["you are fine", "sky is blue", "i am"], "rejected": ["you are bad", "sky is", "the mat"]},
    "grpo": {"prompt": PROMPTS, "answer": ["fine thanks", "blue .", "a cat"]},
    "rloo": {"prompt": PROMPTS, "answer": ["fine thanks", "blue .", "a cat"]},
    "sentence-transformers": PAIRS,
}
LIKE: dict[str, dict[str, Any]] = {
    "sft": {"max_length": 16},
    "sft lora": {"max_length": 16},
    "sft packing": {"max_length": 16, "packing": True},
    "dpo": {"max_length": 16},
    "kto": {"max_length": 16},
    "reward": {"max_length": 16},
    "grpo": {
        "reward_funcs": ["similarity"], "beta": 0.1, "num_generations": 2, "max_completion_length": 4,
        "gradient_accumulation_steps": 2,
    },
    "rloo": {"reward_funcs": ["similarity"], "num_generations": 2, "max_completion_length": 4},
}  # fmt: skip
"""The arguments of each case that only TRL's configs have."""

CASES: dict[str, Callable[[str], Any]] = {
    "sft": trl("SFT", ROWS["sft"], **LIKE["sft"]),
    "sft lora": lambda folder: trl("SFT", ROWS["sft lora"], **LIKE["sft lora"], peft_config=lora())(folder),
    "sft packing": trl("SFT", ROWS["sft packing"], **LIKE["sft packing"]),
    "dpo": trl("DPO", ROWS["dpo"], **LIKE["dpo"]),
    "kto": trl("KTO", ROWS["kto"], **LIKE["kto"]),
    "reward": trl("Reward", ROWS["reward"], "reward", **LIKE["reward"]),
    "grpo": trl(
        "GRPO", {"prompt": PROMPTS}, reward_funcs=reward, num_generations=2, max_completion_length=4,
        gradient_accumulation_steps=2, use_adaptive_entropy=True, entropy_target=4.0,
    ),
    "rloo": trl("RLOO", {"prompt": PROMPTS}, reward_funcs=reward, num_generations=2, max_completion_length=4),
    "sentence-transformers": embeddings,
    "cross-encoder": cross_encoder,
    "setfit": setfit,
}  # fmt: skip


def of_spec(
    trainer: str,
    like: str = "",
    model: str = "causal",
    training: dict[str, Any] | None = None,
    resources: dict[str, Any] | None = None,
    **model_args: Any,
) -> Callable[[str], Any]:
    """Returns a function that makes the trainer of a job spec, with the rows and arguments of the case `like`."""

    def make(folder: str) -> Any:
        from footplate.contract.arguments import stated
        from footplate.contract.host.file_roots import Roots
        from footplate.contract.spec import JobSpec
        from footplate.contract.strategies import strategy_arguments
        from footplate.runtime.build import build

        case = like or trainer.removeprefix("trl/")
        arguments = {**common(folder), "bf16": False, **LIKE.get(case, {}), **(training or {})}
        for owned in ("output_dir", "use_cpu", "report_to"):
            del arguments[owned]
        file = {"use": "files/jsonl", "args": {"paths": [f"data://{write_rows(case)}"]}}
        spec = JobSpec.parse(
            {
                "trainer": trainer,
                "model": {"use": KINDS[model], "args": {"path": f"models://{model}", **model_args}},
                "data": {"train": file, "eval": {**file, "args": {**file["args"], "limit": 4}}},
                "training": arguments,
                **({"resources": resources} if resources else {}),
            }
        )
        parts = build(spec, Roots(FOLDER / "data", FOLDER))
        strategy = strategy_arguments(spec.resources.strategy)
        assert parts.make_trainer is not None
        return parts.make_trainer(
            parts,
            {**stated(spec.training), **strategy, "output_dir": folder, "report_to": "none"},
            **parts.trainer_args,
        )

    return make


KINDS = {"causal": "hf/causal-lm", "reward": "hf/sequence-classification", "encoder": "st/encoder"}


def write_rows(name: str) -> str:
    """Writes the rows of a case as JSON lines, and returns the file's name."""
    columns = ROWS[name]
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    (FOLDER / "data").mkdir(exist_ok=True)
    lines = "".join(json.dumps(row) + "\n" for row in rows * 6)
    file = FOLDER / "data" / f"{name}.jsonl"
    # Another process of the same job may be reading the file.
    if not file.exists():
        file.write_text(lines)
    return file.name


SPECS: dict[str, Callable[[str], Any]] = {
    "sft": of_spec("trl/sft"),
    "sft lora": of_spec("trl/sft", "sft lora", peft={"r": 4, "target_modules": ["q_proj", "v_proj"]}),
    "sft packing": of_spec("trl/sft", "sft packing"),
    "dpo": of_spec("trl/dpo"),
    "kto": of_spec("trl/kto"),
    "reward": of_spec("trl/reward", model="reward", num_labels=1),
    "grpo": of_spec("trl/grpo"),
    "rloo": of_spec("trl/rloo"),
    "sentence-transformers": of_spec("st/embedding", "sentence-transformers", "encoder"),
}
"""The cases that also run as job specs. A spec can only name its reward functions, so GRPO and RLOO use others here."""


ONLY_AS_SPECS = {"sft lora", "sft packing", "dpo", "kto", "reward"}
"""The cases that run on our side only as job specs, because a script would be compared with the same run."""


def digest(model: nn.Module) -> str:
    checksum = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        checksum.update(name.encode() + value.detach().float().numpy().tobytes())
    return checksum.hexdigest()


def plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not any(word in name for word in MEASURED)}


def outcome(name: str, make: Callable[[str], Any], folder: Path) -> dict[str, Any]:
    """Trains, evaluates, and continues from the checkpoint of step 2 in a second Trainer."""
    first = make(str(folder))
    first.train()
    evaluated = first.evaluate()
    if name == "setfit":
        inner = first.st_trainer
        return {"logs": [plain(log) for log in inner.state.log_history], "evaluated": plain(evaluated),
                "weights": digest(first.model.model_body), "base": base_of(inner)}  # fmt: skip
    second = make(str(folder))
    second.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    return {
        "logs": [plain(log) for log in first.state.log_history],
        "evaluated": plain(evaluated),
        "weights": digest(first.model),
        "resumed": [plain(log) for log in second.state.log_history],
        "resumed weights": digest(second.model),
        "files": sorted(file.name for file in (folder / "checkpoint-4").iterdir()),
        "base": base_of(first),
    }


def base_of(trainer: Any) -> str:
    """Returns the package of the Trainer that the library's class derives from."""
    return next(
        kind.__module__.partition(".")[0]
        for kind in type(trainer).__mro__
        if kind.__module__ in ("transformers.trainer", "footplate.trainer.trainer")
    )


def second_model() -> dict[str, Any]:
    """Returns the error of a script that lets TRL shard a second model."""
    from accelerate import Accelerator
    from trl.models import prepare_fsdp

    from footplate.drop_in import SecondModel, refusing_a_second_model

    try:
        with refusing_a_second_model():
            prepare_fsdp(nn.Linear(1, 1), Accelerator(cpu=True))
    except SecondModel as error:
        return {"code": error.code, "message": error.message}
    return {}


def served_encoder(checkpoint: Path) -> dict[str, Any]:
    """Returns what a session answers with a checkpoint of an encoder, beside what the library answers with it."""
    from sentence_transformers import SentenceTransformer

    from footplate.runtime.starting_point import StartingPoint
    from tests.runtime.serving import served

    texts, exported = ["the cat sat", "a dog ran on the log"], FOLDER / "exported-encoder"
    with served(FOLDER, {"model": {"use": "st/encoder", "args": {"path": "models://encoder"}}}) as session:
        before = session.ask("embed", inputs=texts)["vectors"]
        StartingPoint(str(checkpoint), weights_only=True).load(session.model.trainer, print)
        answer = session.ask("embed", inputs=texts)
        codes = [
            session.refusal("embed", inputs=["cat " * 33])["code"],
            session.refusal("embed", inputs=[[1, 2]])["code"],
            session.refusal("predict", inputs=texts, parameters={})["code"],
        ]
        session.model.trainer.save_model(str(exported))
    by_library = [
        SentenceTransformer(str(folder), device="cpu").encode(texts, normalize_embeddings=True)
        for folder in (checkpoint, exported)
    ]
    return {
        "tokens": answer["prompt_tokens"],
        "refused": codes,
        "was trained": before != answer["vectors"],
        "differences": [float(abs(torch.tensor(answer["vectors"]) - vectors).max()) for vectors in by_library],
    }


def side(name: str) -> None:
    if name == "ours":
        import footplate

        footplate.install()
    outcomes = {}
    cases = CASES
    if name == "ours":
        scripts = {case: make for case, make in CASES.items() if case not in ONLY_AS_SPECS}
        cases = scripts | {f"{case} as a spec": make for case, make in SPECS.items()}
    for case, make in cases.items():
        try:
            outcomes[case] = outcome(case, make, FOLDER / name / case.replace(" ", "-"))
        except Exception:
            outcomes[case] = {"error": traceback.format_exc()}
    if name == "ours":
        outcomes["second model"] = second_model()
        outcomes["served encoder"] = served_encoder(FOLDER / name / "sentence-transformers-as-a-spec/checkpoint-2")
    (FOLDER / f"{name}.json").write_text(json.dumps(outcomes, default=str, sort_keys=True))


if __name__ == "__main__":
    torch.set_num_threads(1)
    small_models()
    for module in ("accelerate", "peft", "scipy.stats", "sklearn.linear_model", "transformers.trainer", "wandb"):
        import_module(module)
    # Hugging Face's Trainer collects garbage in each run, and would check every object of the imported libraries.
    gc.freeze()
    children = []
    for which in ("ours", "theirs"):
        if (child := os.fork()) == 0:
            try:
                side(which)
                sys.stdout.flush()
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
