"""The tokens that count for the loss of a chat are those of the assistant's messages, for any chat template."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from footplate.components.answer_tokens import AnswerTokens, UnusableChat
from footplate.contract.errors import NotBuildable

Message = dict[str, Any]

TEMPLATES = Path(sys.prefix, "libraries/trl/chat_templates")
"""Copies of the chat templates of well-known models, which are part of TRL."""
SPECIAL = re.compile(r"<\|\w+\|>|<｜[^>]+｜>|</?\w+_of_turn>")
PLAIN = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
MARKED = (
    "{% for m in messages %}{{ m.role }} {% if m.role == 'assistant' %}{% generation %}{{ m.content }}."
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %} {% endfor %}"
)
TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}},
}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
CALLING = {"role": "assistant", "tool_calls": [CALL]}


def tokenizer_with(template: str) -> PreTrainedTokenizerFast:
    """Returns a tokenizer with one token for each byte, and one for each special token of the template."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    special = sorted(set(SPECIAL.findall(template)))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", extra_special_tokens=special
    )
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture
def template_of() -> Callable[[str], PreTrainedTokenizerFast]:
    return lambda name: tokenizer_with((TEMPLATES / f"{name}.jinja").read_text())


THOUGHTS = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' and loop.last %}(hm){% endif %}{{ m.content }}"
    "{{ '<|end|>' if m.role == 'user' or loop.last }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""A chat template that writes thoughts and an end token in the last answer only."""


def chat(*contents: str, system: str | None = None) -> list[Message]:
    """Returns a chat in which messages of a user and an assistant alternate."""
    first = [] if system is None else [{"role": "system", "content": system}]
    turns = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(contents)]
    return [*first, *turns]


def learned(tokenizer: PreTrainedTokenizerFast, messages: list[Message], **more: Any) -> list[str]:
    """Returns the parts of a conversation that count for the loss."""
    tokens = AnswerTokens(tokenizer)(messages, **more)
    pairs = groupby(zip(tokens["input_ids"], tokens["labels"], strict=True), key=lambda pair: pair[1] != -100)
    return [tokenizer.decode([label for _, label in group]) for counts, group in pairs if counts]


ENDS = {
    "qwen2_5": "<|im_end|>",
    "qwen3_instruct_2507": "<|im_end|>",
    "llama3_1": "<|eot_id|>",
    "gemma": "<end_of_turn>",
    "deepseekv3": "<｜end▁of▁sentence｜>",
    "phi3": "<|end|>",
}


@pytest.mark.parametrize(("name", "end"), ENDS.items())
def test_answers_and_their_end_tokens_get_labels_and_user_messages_do_not(
    template_of: Callable[[str], Any], name: str, end: str
) -> None:
    parts = learned(template_of(name), chat("Why one?", "Because one.", "Why two?", "Because two."))

    # The template of Phi-3 writes one more token at the end of the text.
    assert [part.removesuffix("\n</s>") for part in parts] == [f"Because one.{end}", f"Because two.{end}"]


@pytest.mark.parametrize("name", ["qwen2_5", "llama3_1", "gemma3"])
def test_a_system_message_gets_no_labels(template_of: Callable[[str], Any], name: str) -> None:
    [part] = learned(template_of(name), chat("Why?", "Because.", system="Be brief."))

    assert part.startswith("Because.<")


def test_labels_keep_the_thoughts_and_end_token_that_only_the_last_answer_has(
    template_of: Callable[[str], Any],
) -> None:
    """Qwen3 writes thoughts in the last answer only, and gpt-oss ends the last answer with another token."""
    talk = chat("Why one?", "Because one.", "Why two?", "Because two.")

    assert learned(template_of("qwen3"), talk) == [
        "Because one.<|im_end|>",
        "<think>\n\n</think>\n\nBecause two.<|im_end|>",
    ]
    assert learned(template_of("gptoss"), talk) == [
        "<|channel|>final<|message|>Because one.<|end|>",
        "<|channel|>final<|message|>Because two.<|return|>",
    ]


@pytest.mark.parametrize("name", ["qwen2_5", "llama3_1", "qwen3_instruct_2507"])
def test_tool_calls_get_labels_and_tool_results_do_not(template_of: Callable[[str], Any], name: str) -> None:
    result = {"role": "tool", "tool_call_id": "c", "content": '{"is": "the result"}'}
    talk = [*chat("Why?"), CALLING, result, {"role": "assistant", "content": "So."}]

    call, answer = learned(template_of(name), talk, tools=[TOOL])

    assert '"x": 1' in call
    assert answer.startswith("So.<")
    assert "the result" not in call + answer


@pytest.mark.parametrize("name", ["qwen2_5", "llama3_1"])
def test_an_answer_of_weight_0_gets_no_labels(template_of: Callable[[str], Any], name: str) -> None:
    talk = chat("Why one?", "Because one.", "Why two?", "Because two.")
    weighed = [*talk[:1], {**talk[1], "weight": 0}, talk[2], {**talk[3], "weight": 1}]
    tokenizer = template_of(name)

    [part] = learned(tokenizer, weighed)

    assert part.startswith("Because two.<")
    assert AnswerTokens(tokenizer)(weighed)["input_ids"] == AnswerTokens(tokenizer)(talk)["input_ids"]


def test_messages_before_the_completion_get_no_labels(template_of: Callable[[str], Any]) -> None:
    talk = chat("Why one?", "Because one.", "Why two?", "Because two.")

    assert learned(template_of("qwen2_5"), talk, begin=3) == ["Because two.<|im_end|>"]


def test_without_an_end_token_the_line_break_after_an_answer_gets_a_label() -> None:
    assert learned(tokenizer_with(PLAIN), chat("a", "b", "c", "d")) == ["b\n", "d\n"]


def test_generation_marks_of_a_template_and_weights_decide_what_gets_labels() -> None:
    talk = chat("a", "b", "c", "d")

    without_the_first = [*talk[:1], {**talk[1], "weight": 0}, *talk[2:]]
    assert learned(tokenizer_with(MARKED), talk) == ["b.", "d."]
    assert learned(tokenizer_with(MARKED), without_the_first) == ["d."]
    assert AnswerTokens(tokenizer_with(PLAIN), MARKED)(talk) == AnswerTokens(tokenizer_with(MARKED))(talk)


COUNTED = PLAIN.replace("{% for", "{{ messages | length }} {% for", 1)
SPLIT = MARKED.replace("{{ m.content }}.", "{{ m.content }}{% endgeneration %}-{% generation %}.")


@pytest.mark.parametrize(
    ("template", "messages", "says"),
    [
        (COUNTED, chat("a", "b"), r"\[0\]: the chat template writes this message in another way"),
        (THOUGHTS, chat("a", "b", "c", "d"), r"\[1\]: the chat template writes this message in another way"),
        (PLAIN.replace("add_generation", "no"), chat("a", "b")[1:], r"\[0\]: the text of an answer cannot be found"),
        (PLAIN.replace("m.content", "m.content if m.role == 'user'"), [*chat("a"), CALLING],
         r"\[1\]: the chat template leaves out the text"),
        (SPLIT, [*chat("a"), {"role": "assistant", "content": "b", "weight": 0}, *chat("c", "d")], "marks 4 parts"),
        ("{{ raise_exception('no') }}", chat("a", "b"), "refuses this conversation: no"),
        (PLAIN, chat("a"), "has no message from the assistant"),
        (PLAIN, [*chat("a"), {"role": "assistant", "content": "b", "weight": 0}], "have weight 0"),
        (PLAIN, [*chat("a"), {"role": "assistant", "content": "b", "weight": 0.5}], r"\[1\].weight: is 0.5"),
        (PLAIN, [{"role": "user", "content": "a", "weight": 1}, *chat("a", "b")[1:]], r"\[0\].weight: is in a message"),
    ],
)  # fmt: skip
def test_a_chat_whose_labels_cannot_be_determined_is_refused(template: str, messages: list[Message], says: str) -> None:
    with pytest.raises(UnusableChat, match=says):
        AnswerTokens(tokenizer_with(template))(messages)


def test_a_tokenizer_that_does_not_report_positions_is_refused() -> None:
    with pytest.raises(NotBuildable, match=r"tokenizer\.json"):
        AnswerTokens(object())
