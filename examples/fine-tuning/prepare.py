"""Writes the rows, the tiny Llama and the tokenizer that the jobs of this folder name.

    python examples/fine-tuning/prepare.py .footplate

Replace `models://tiny-chat` by a real model, such as hub://Qwen/Qwen3-0.6B, and the specs stay the same.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

COLORS = {"sky": "blue", "grass": "green", "snow": "white", "coal": "black", "sun": "yellow", "rose": "red"}
QUESTIONS = ["what color is the {} ?", "tell me the color of the {} .", "the {} has which color ?"]
TEMPLATE = (
    "{% for message in messages %}{{ message.role }} : {{ message.content }} </s> {% endfor %}"
    "{% if add_generation_prompt %}assistant :{% endif %}"
)


def prompt(question: str, thing: str) -> dict[str, str]:
    return {"role": "user", "content": question.format(thing)}


def answer(color: str) -> dict[str, str]:
    return {"role": "assistant", "content": color}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_model(folder: Path) -> None:
    """Writes a Llama that has learned nothing yet, and a tokenizer of whole words with a chat template."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = sorted({word for question in QUESTIONS for word in question.replace("{}", "").split()})
    tokens = ["<pad>", "<unk>", "</s>", "user", "assistant", ":", *words, *COLORS, *COLORS.values()]
    inner = Tokenizer(models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", pad_token="<pad>", eos_token="</s>", model_max_length=64
    )
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokens), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, bos_token_id=None, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def prepare(home: Path) -> None:
    pairs = [(question, thing, color) for question in QUESTIONS for thing, color in COLORS.items()]
    data = home / "data/colors"
    # An answer that repeats the thing is rejected.
    write_rows(data / "chats.jsonl", [{"messages": [prompt(q, t), answer(c)]} for q, t, c in pairs])
    write_rows(
        data / "pairs.jsonl",
        [{"prompt": [prompt(q, t)], "chosen": [answer(c)], "rejected": [answer(t)]} for q, t, c in pairs],
    )
    write_rows(data / "questions.jsonl", [{"prompt": [prompt(q, t)], "answer": c} for q, t, c in pairs])
    write_model(home / "models/tiny-chat")


if __name__ == "__main__":
    home = Path(sys.argv[1] if len(sys.argv) > 1 else ".footplate")
    try:
        prepare(home)
    except ModuleNotFoundError as error:
        sys.exit(f'{error}. This script needs footplate[hf]: make up ARGS="--extras hf", then .venv/bin/python')
    print(f"Wrote data/colors and models/tiny-chat in {home}.")
