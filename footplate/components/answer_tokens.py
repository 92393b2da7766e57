"""Finds the tokens of a conversation that a model has to learn: those of the assistant's messages, with any template.

A chat template may mark these tokens with `{% generation %}`. Without marks, the template renders the messages before
an answer, with its prompt for an answer, and then the messages including the answer. The text that the second rendering
adds is the answer. The text of the whole conversation must begin with both renderings.
An answer includes its end token, so that the model learns to stop, but not the line breaks after the end token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from footplate.components.hf_processors import NEEDS_FAST
from footplate.contract.conversations import Message, learned
from footplate.contract.errors import NotBuildable
from footplate.trainer.losses.labels import IGNORE

_MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")
_ON_ALL_TOKENS = 'train on all tokens ("learn": "all" in the map chat, or "assistant_only_loss": false in trl/sft)'
_OTHERWISE = (
    "put {% generation %} … {% endgeneration %} around the assistant's words in chat_template, or " + _ON_ALL_TOKENS
)


class UnusableChat(ValueError):
    """The tokens to learn in a conversation cannot be found. Callers put the column's name before the error's text."""


def is_marked(template: object) -> bool:
    """Returns True if a chat template marks the assistant's words."""
    return _MARK.search(str(template)) is not None


class AnswerTokens:
    """Turns conversations into `input_ids` and `labels`, which are IGNORE for all tokens that are not to be learned."""

    def __init__(self, tokenizer: Any, template: str | None = None) -> None:
        """Takes a tokenizer, and a chat template that replaces the tokenizer's own."""
        if not getattr(tokenizer, "is_fast", False):
            raise NotBuildable(
                f"the assistant's tokens cannot be found, because a {type(tokenizer).__name__} does not report where a "
                "token stands in the text, and transformers cannot convert it to a tokenizer that does",
                hint=f"{NEEDS_FAST}, or {_ON_ALL_TOKENS}",
            )
        self._tokenizer, self._template = tokenizer, template
        self._stops = tuple(filter(None, map(str, tokenizer.added_tokens_decoder.values())))

    def __call__(self, messages: Sequence[Message], *, begin: int = 0, **template: Any) -> dict[str, list[int]]:
        """Returns the tokens and labels of one conversation. Messages before index `begin` are not learned.

        Raises UnusableChat. `template` has further arguments of the chat template, such as `tools`.
        """
        try:
            indices = [index for index in learned(messages) if index >= begin]
        except ValueError as error:
            raise UnusableChat(str(error)) from error
        if not indices:
            raise UnusableChat(": the completion has no message from the assistant with a weight other than 0")
        plain = [{name: value for name, value in message.items() if name != "weight"} for message in messages]
        template = {"chat_template": self._template, **template}
        template_text = self._tokenizer.get_chat_template(self._template, template.get("tools"))
        tokens, counts = (self._marked if is_marked(template_text) else self._compared)(plain, indices, template)
        if not any(counts):
            raise UnusableChat(f": the chat template marks nothing in the assistant's messages; {_OTHERWISE}")
        return {
            "input_ids": tokens,
            "labels": [token if is_learned else IGNORE for token, is_learned in zip(tokens, counts, strict=True)],
        }

    def _marked(
        self, messages: list[Message], indices: list[int], template: Mapping[str, Any]
    ) -> tuple[list[int], list[bool]]:
        """Returns the tokens, and for each token True if the template marks it in a message at one of the indices."""
        encoded = self._apply(messages, template, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        parts = [(bool(mark), len(list(group))) for mark, group in groupby(encoded["assistant_masks"])]
        answers = [index for index, message in enumerate(messages) if message.get("role") == "assistant"]
        marked = sum(mark for mark, _ in parts)
        if indices != answers and marked != len(answers):
            raise UnusableChat(
                f": the chat template marks {marked} parts in {len(answers)} messages of the assistant, so the part of "
                "a message with weight 0 cannot be found; mark one part in each of these messages"
            )
        is_wanted = iter([index in indices for index in answers] if indices != answers else [True] * marked)
        counts: list[bool] = []
        for mark, length in parts:
            counts += [mark and next(is_wanted)] * length
        return encoded["input_ids"], counts

    def _compared(
        self, messages: list[Message], indices: list[int], template: Mapping[str, Any]
    ) -> tuple[list[int], list[bool]]:
        """Returns the tokens, and for each token True if its last character is in a message at one of the indices."""
        text = self._rendered(messages, template)
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        is_answer = bytearray(len(text) + 1)
        for index in indices:
            start, end = self._span(text, messages, index, template)
            is_answer[start + 1 : end + 1] = b"\1" * (end - start)
        return encoded["input_ids"], [bool(is_answer[end]) for _, end in encoded["offset_mapping"]]

    def _span(self, text: str, messages: list[Message], index: int, template: Mapping[str, Any]) -> tuple[int, int]:
        """Returns where the message at `index` begins and ends in the text of the whole conversation."""
        if index == 0:
            raise UnusableChat(
                f"[0]: the text of an answer cannot be found if no message comes before it; {_OTHERWISE}"
            )
        prompt = self._rendered(messages[:index], template, add_generation_prompt=True)
        # A prompt for an answer may contain more than the conversation does, for example a tag that begins thoughts.
        before = prompt if text.startswith(prompt) else self._rendered(messages[:index], template)
        if not text.startswith(before):
            raise UnusableChat(_changed(index - 1))
        start = len(before)
        while text[start : start + 1] == prompt[start : start + 1] != "":
            start += 1
        up_to_answer = self._rendered(messages[: index + 1], template)
        stop = self._stop_of(up_to_answer)
        following = messages[index + 1].get("content") if index + 1 < len(messages) else None
        end = self._end(text, start, up_to_answer, stop, str(following or ""))
        if end < start:
            raise UnusableChat(_changed(index))
        has_words = bool(messages[index].get("content") or messages[index].get("tool_calls"))
        if has_words and not text[start:end].strip().removesuffix(stop).strip():
            raise UnusableChat(f"[{index}]: the chat template leaves out the text of this message")
        return start, end

    def _end(self, text: str, start: int, up_to_answer: str, stop: str, following: str) -> int:
        """Returns the place in the text behind an answer's end token, or -1 if the answer is not found.

        `up_to_answer` is the conversation up to this answer, rendered without the following messages. Templates may
        write an answer in another way if messages follow, for example without its thoughts.
        """
        if not stop:
            return len(up_to_answer) if text.startswith(up_to_answer) else -1
        stripped = up_to_answer.rstrip()
        if text.startswith(stripped):
            return len(stripped)
        body = stripped.removesuffix(stop)
        if text.startswith(body):
            if self._stop_of(body):
                return len(body.rstrip())
            other_stop = max((token for token in self._stops if text.startswith(token, len(body))), key=len, default="")
            return len(body) + len(other_stop) if other_stop else -1
        _, end_token, following_text = text[start:].partition(stop)
        # The end token is this message's only if the next message's words stand after the token.
        return len(text) - len(following_text) if end_token and following.strip() in following_text else -1

    def _stop_of(self, text: str) -> str:
        """Returns the special token at the end of a text, or an empty text."""
        stripped = text.rstrip()
        return max((token for token in self._stops if stripped.endswith(token)), key=len, default="")

    def _rendered(self, messages: list[Message], template: Mapping[str, Any], **options: Any) -> str:
        return str(self._apply(messages, template, tokenize=False, **options))

    def _apply(self, messages: list[Message], template: Mapping[str, Any], **options: Any) -> Any:
        from jinja2 import TemplateError

        try:
            return self._tokenizer.apply_chat_template(messages, **template, **options)
        except (TemplateError, TypeError) as error:
            raise UnusableChat(f": the chat template refuses this conversation: {error}") from error


def _changed(index: int) -> str:
    return f"[{index}]: the chat template writes this message in another way when more messages follow; {_OTHERWISE}"
