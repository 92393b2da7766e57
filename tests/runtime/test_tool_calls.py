"""Tests that tool calls are parsed from generated texts, and that all other text stays text."""

from __future__ import annotations

import re
from typing import Any

import pytest

from footplate.runtime.serving.token_text import read_calls

TEMPLATE = "{% for m in messages %}{{ m.content }}{{ '<tool_call>' if m.tool_calls }}{% endfor %}"
PROMPT = "paint the sky"
ONE = '<tool_call> {"name": "paint", "arguments": {"color": "blue"}} </tool_call>'
BLUE = {"name": "paint", "arguments": {"color": "blue"}}


def tokenizer_of(*texts: str) -> Any:
    """Returns a tokenizer of the words of these texts, which decodes them with one space between them."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = sorted({word for text in texts for word in re.split(r"\s+", text)})
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0]))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@pytest.mark.parametrize(
    ("answer", "turn"),
    [
        (ONE, {"text": "", "tool_calls": [BLUE]}),
        (f"gladly {ONE} {ONE}", {"text": "gladly", "tool_calls": [BLUE, BLUE]}),
        ("<think> which one ? </think> " + ONE, {"text": "", "tool_calls": [BLUE]}),
        ("it is blue", None),
        ('<tool_call> {"name": "paint", </tool_call>', None),
        ('<tool_call> {"arguments": {}} </tool_call>', None),
        ("<tool_call> [ 1 ] </tool_call>", None),
    ],
)
def test_tool_calls_are_parsed_and_malformed_tool_calls_stay_text(answer: str, turn: dict[str, Any] | None) -> None:
    tokenizer = tokenizer_of(answer, PROMPT)
    prompt, tokens = tokenizer(PROMPT)["input_ids"], tokenizer(answer)["input_ids"]

    calls = read_calls(tokenizer, tokens, prompt, [{"type": "function", "function": {"name": "paint"}}])

    assert calls == turn or (calls is not None and turn is not None and calls | {"text": calls["text"].strip()} == turn)
