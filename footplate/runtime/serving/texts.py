"""Generates texts for the requests of one batch with `generate` of transformers, and streams them while it runs.

`generate` calls `Watch` after every step. So one batch can hold requests with different lengths and stop texts, and a
request whose client has gone ends early.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from footplate.contract.serving import AnswerPieceKind, ServingRequest
from footplate.runtime.end_tokens import end_tokens
from footplate.runtime.serving.loaded_model import CannotAnswer, LoadedModel
from footplate.runtime.serving.token_text import REPLACEMENT, decoded, form_of_calls, read_calls, token_entry

STREAM_SECONDS = 0.03
"""The shortest time between two parts of a streamed answer. The first part is sent at once."""
STOP_WINDOW = 8
"""A stop text is searched in the last tokens only: one for each of its bytes, plus this number of tokens."""
LOWEST_TEMPERATURE = 1e-5
"""The lowest temperature at which tokens are drawn. Logits that are divided by a smaller number become infinite."""
LOWEST_LOGPROB = -9999.0
"""The log-probability that is reported for an impossible token, as in OpenAI's API, because JSON has no infinity."""


class TokenChoice(NamedTuple):
    """A generated token with its log-probability, and the likeliest tokens at its position."""

    token: int
    logprob: float
    top: list[tuple[int, float]]


class Clients(Protocol):
    """The interface to the clients of a batch: sends a piece of an answer, and reports which requests are withdrawn."""

    def say(self, request: str, kind: AnswerPieceKind, data: dict[str, Any]) -> None: ...

    def is_withdrawn(self, request: str) -> bool: ...

    def tick(self) -> None: ...


@dataclass(eq=False)
class GeneratedText:
    """One text that is being generated."""

    tokenizer: Any
    request: str
    index: int
    prompt: list[int]
    limit: int
    stops: tuple[str, ...]
    is_streamed: bool = False
    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    sent_length: int = 0
    """The number of characters that were streamed."""
    prompt_end: tuple[int, ...] = ()
    """The prompt's last token if the text continues the prompt. Some tokenizers write no space before a first word."""
    top_logprobs: int | None = None
    """The number of likeliest tokens to report with each token. None: no log-probabilities are wanted."""
    choices: list[TokenChoice] = field(default_factory=list)
    sent_choice_count: int = 0

    def add(self, token: int, ends: frozenset[int]) -> None:
        if self.finish is not None:
            return
        if token in ends:
            self.finish = "stop"
            return
        self.tokens.append(token)
        if self.stops and self._has_stop():
            self.finish = "stop"
        elif len(self.tokens) >= self.limit:
            self.finish = "length"

    def _has_stop(self) -> bool:
        window = max(len(stop.encode()) for stop in self.stops) + STOP_WINDOW
        tail = self._decoded() if len(self.tokens) <= window else decoded(self.tokenizer, self.tokens[-window:])
        return any(stop in tail for stop in self.stops)

    def whole(self) -> str:
        """Returns the text up to the first stop text."""
        text = self._decoded()
        places = [place for stop in self.stops if (place := text.find(stop)) >= 0]
        return text[: min(places)] if places else text

    def _decoded(self, count: int | None = None) -> str:
        """Returns the text of the tokens, or of the first `count` tokens."""
        tokens, prompt_text = self.tokens[:count], decoded(self.tokenizer, self.prompt_end)
        if REPLACEMENT in prompt_text:
            return decoded(self.tokenizer, tokens)
        return decoded(self.tokenizer, [*self.prompt_end, *tokens])[len(prompt_text) :]

    def logprobs(self, length: int) -> dict[str, Any]:
        """Returns the log-probabilities for the first `length` characters of the text, without those returned before.

        If a finished text is that long, its last tokens count, too, also those that have no text.
        """
        if self.top_logprobs is None:
            return {}
        count = len(self.choices)
        if self.finish is None or length < len(self._decoded()):
            while count > self.sent_choice_count and len(self._decoded(count - 1).rstrip(REPLACEMENT)) >= length:
                count -= 1
        news, self.sent_choice_count = self.choices[self.sent_choice_count : count], count

        def entry(token: int, logprob: float) -> dict[str, Any]:
            return {**token_entry(self.tokenizer, token), "logprob": max(logprob, LOWEST_LOGPROB)}

        return {
            "logprobs": [
                entry(token, logprob) | {"top": [entry(*pair) for pair in top]} for token, logprob, top in news
            ]
        }

    def news(self) -> str:
        """Returns the characters that were not streamed yet, without an end that may be the start of a stop text."""
        text = self.whole()
        if self.finish is None:
            lengths = (size for stop in self.stops for size in range(1, len(stop)) if text.endswith(stop[:size]))
            held_length = max(lengths, default=0)
            text = text[: len(text) - held_length].rstrip(REPLACEMENT)
        news, self.sent_length = text[self.sent_length :], max(self.sent_length, len(text))
        return news


class Watch:
    """Called by `generate` after every step with all tokens so far. Returns which texts are finished."""

    def __init__(self, texts: Sequence[GeneratedText], ends: frozenset[int], clients: Clients) -> None:
        self._texts, self._ends, self._clients = texts, ends, clients
        self._streams_at = 0.0
        self._logprobs: Tensor | None = None

    def read_scores(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Called by `generate` before it chooses the next tokens, with their scores. Returns the scores unchanged."""
        self._logprobs = torch.log_softmax(scores.float(), dim=-1)
        return scores

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        for row, (text, token) in enumerate(zip(self._texts, input_ids[:, -1].tolist(), strict=True)):
            text.add(token, self._ends)
            if text.top_logprobs is not None and self._logprobs is not None and len(text.choices) < len(text.tokens):
                logprobs = self._logprobs[row]
                values, tokens = logprobs.topk(min(text.top_logprobs, len(logprobs)))
                top = list(zip(tokens.tolist(), values.tolist(), strict=True))
                text.choices.append(TokenChoice(token, float(logprobs[token]), top))
            if text.finish is None and self._clients.is_withdrawn(text.request):
                text.finish = "withdrawn"
        self._clients.tick()
        if time.monotonic() >= self._streams_at:
            self.stream()
            self._streams_at = time.monotonic() + STREAM_SECONDS
        flags = [text.finish is not None for text in self._texts]
        return torch.tensor(flags, dtype=torch.bool, device=input_ids.device)

    def stream(self) -> None:
        """Sends what is new in each streamed text."""
        for text in self._texts:
            if not text.is_streamed:
                continue
            news = text.news()
            logprobs = text.logprobs(text.sent_length) if news or text.finish is not None else {}
            if news or logprobs.get("logprobs"):
                data = {"index": text.index, "text": news} | logprobs
                self._clients.say(text.request, AnswerPieceKind.CHUNK, data)


class Texts:
    """Generates texts with a loaded language model."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model

    @property
    def can_generate(self) -> bool:
        can_generate = getattr(self._model.base, "can_generate", None)
        return callable(can_generate) and bool(can_generate())

    def answer(self, batch: Sequence[ServingRequest], clients: Clients) -> int:
        """Answers the requests of a batch, and returns the number of generated tokens.

        A request that cannot be answered is refused alone.
        """
        if not self.can_generate:
            raise CannotAnswer(
                f"a {type(self._model.base).__name__} does not generate text",
                code="not_a_language_model",
                hint="POST /jobs/{job}/predict answers with this model's own outputs",
            )
        texts: list[GeneratedText] = []
        open_requests = []
        for request in batch:
            try:
                texts += self._texts_of(request)
                open_requests.append(request)
            except CannotAnswer as error:
                refusal = {"code": error.code, "message": error.message, "hint": error.hint}
                clients.say(request.id, AnswerPieceKind.ERROR, refusal)
        if not texts:
            return 0
        settings = open_requests[0].body
        self.generate(texts, settings["temperature"], settings["top_p"], settings.get("seed"), clients)
        for request in open_requests:
            own_texts = [text for text in texts if text.request == request.id]
            prompt_tokens = sum(len(text.prompt) for text in own_texts[:: request.body["n"]])
            choices = [self._choice_of(text, request.body.get("tools") or ()) for text in own_texts]
            clients.say(request.id, AnswerPieceKind.DONE, {"choices": choices, "prompt_tokens": prompt_tokens})
        return sum(len(text.tokens) for text in texts)

    def generate(
        self, texts: Sequence[GeneratedText], temperature: float, top_p: float, seed: int | None, clients: Clients
    ) -> None:
        """Generates all texts, in few batches. A temperature of 0 always takes the likeliest token.

        The seed is that of all texts together, so that equal prompts draw other texts.
        """
        sampling: dict[str, Any] = (
            {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0}
            if temperature >= LOWEST_TEMPERATURE
            else {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        )
        context = None if self._is_encoder_decoder else self._model.context_length
        # The requests after a seeded one draw as if it had not come. By default, the states of all GPUs are copied.
        device = self._model.device
        other_devices = [] if device.type == "cpu" else [device]
        kind = "cuda" if device.type == "cpu" else device.type
        with torch.random.fork_rng(other_devices, enabled=seed is not None, device_type=kind):
            if seed is not None:
                torch.manual_seed(seed)
            for batch in batches_within(context, texts, self._model.limits.max_batch):
                if not all(clients.is_withdrawn(text.request) for text in batch):
                    self._generate_batch(batch, sampling, clients)

    def _generate_batch(self, texts: Sequence[GeneratedText], sampling: Mapping[str, Any], clients: Clients) -> None:
        from transformers import LogitsProcessorList, StoppingCriteriaList

        self._model.require_tokenizer()
        watch = Watch(texts, self._ends, clients)
        readers = [watch.read_scores] if any(text.top_logprobs is not None for text in texts) else []
        inputs = self._model.padded([text.prompt for text in texts], on_left=not self._is_encoder_decoder)
        with torch.inference_mode():
            self._model.prepared.generate(
                **inputs,
                max_new_tokens=max(text.limit for text in texts),
                num_beams=1,
                num_return_sequences=1,
                use_cache=True,
                pad_token_id=self._model.padding,
                eos_token_id=sorted(self._ends) or None,
                stopping_criteria=StoppingCriteriaList([watch]),
                logits_processor=LogitsProcessorList(readers),
                **sampling,
            )
        watch.stream()

    @property
    def _is_encoder_decoder(self) -> bool:
        return bool(getattr(self._model.config, "is_encoder_decoder", False))

    @cached_property
    def _ends(self) -> frozenset[int]:
        return frozenset(end_tokens(self._model.base, self._model.tokenizer))

    def _texts_of(self, request: ServingRequest) -> Iterator[GeneratedText]:
        body, count = request.body, request.body["n"]
        tools = body.get("tools") or ()
        is_chat = bool(body.get("messages"))
        prompts = [self.prompt_of(body["messages"], tools)] if is_chat else [
            self.tokens_of(prompt) for prompt in body["prompts"]
        ]  # fmt: skip
        # Calls of tools can be read only from a complete answer, so an answer that may have some is not streamed.
        is_streamed = bool(body.get("stream")) and not tools
        if len(prompts) * count > self._model.limits.max_batch:
            raise CannotAnswer(
                f"{len(prompts)} prompts with n={count} make {len(prompts) * count} texts, and a batch of this session "
                f"has at most {self._model.limits.max_batch}",
                code="too_many_texts",
                hint="send fewer prompts, or a smaller n",
            )
        for prompt_index, prompt in enumerate(prompts):
            limit = self.limit_of(prompt, body.get("max_tokens"))
            prompt_end, stops = () if is_chat else self.end_of(prompt), tuple(body.get("stop") or ())
            for number in range(count):
                index, top_logprobs = prompt_index * count + number, body.get("top_logprobs")
                yield GeneratedText(
                    self._model.tokenizer, request.id, index, prompt, limit, stops, is_streamed,
                    prompt_end=prompt_end, top_logprobs=top_logprobs,
                )  # fmt: skip

    def limit_of(self, prompt: Sequence[int], max_tokens: int | None) -> int:
        """Returns the largest number of tokens of an answer. Raises CannotAnswer if there is no room for it."""
        session_limit, context = self._model.limits.max_tokens, self._model.context_length
        if max_tokens is not None and max_tokens > session_limit:
            raise CannotAnswer(
                f"max_tokens is {max_tokens:,}, and this session generates at most {session_limit:,} tokens for one "
                "answer",
                code="too_many_tokens",
                hint=f"set max_tokens to {session_limit} or less",
            )
        if context is None:
            return max_tokens or session_limit
        # An encoder and its decoder count positions separately.
        used_positions = 0 if self._is_encoder_decoder else len(prompt)
        self._model.require_room(len(prompt))
        self._model.require_room(used_positions, max_tokens or 1)
        return max_tokens or min(session_limit, context - used_positions)

    def prompt_of(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()) -> list[int]:
        """Returns the tokens of a conversation and of the beginning of its next answer, by the chat template."""
        tokenizer = self._model.require_tokenizer()
        if not getattr(tokenizer, "chat_template", None):
            raise CannotAnswer(
                "the job's tokenizer has no chat template, so a conversation cannot become a prompt",
                code="no_chat_template",
                hint="POST /v1/completions takes a prompt. A spec's processor may have a chat_template",
            )
        render = partial(tokenizer.apply_chat_template, list(messages), tokenize=False, add_generation_prompt=True)
        try:
            text = render(tools=list(tools) or None)
            lacks_tools = bool(tools) and (text == render() or form_of_calls(tokenizer) is None)
        except Exception as error:
            # A template is a program of the model's author, and its filters raise errors of any class.
            raise CannotAnswer(f"the chat template refuses this conversation: {error}", code="bad_messages") from error
        if lacks_tools:
            raise CannotAnswer(
                "this model's chat template has no tools, or writes calls of tools in an unknown form",
                code="no_tools",
                hint="leave tools out, or give the processor a chat_template that has them, such as that of Qwen",
            )
        tokens = list(tokenizer(text, add_special_tokens=False)["input_ids"])
        self._model.require_known(tokens)
        return tokens

    def tokens_of(self, prompt: str | list[int]) -> list[int]:
        """Returns the tokens of a prompt. The token that would end the text is left out."""
        tokenizer = self._model.require_tokenizer()
        tokens = list(tokenizer(prompt)["input_ids"]) if isinstance(prompt, str) else prompt
        if not self._is_encoder_decoder and len(tokens) > 1 and tokens[-1] == getattr(tokenizer, "eos_token_id", None):
            tokens = tokens[:-1]
        self._model.require_known(tokens)
        if not tokens:
            first_token = getattr(tokenizer, "bos_token_id", None)
            first_token = getattr(tokenizer, "eos_token_id", None) if first_token is None else first_token
            if first_token is None:
                raise CannotAnswer("the prompt is empty, and this tokenizer has no token to start with")
            return [first_token]
        return tokens

    def end_of(self, prompt: Sequence[int]) -> tuple[int, ...]:
        """Returns the last token of a prompt that the generated text continues. An encoder's prompt is another text."""
        return () if self._is_encoder_decoder else tuple(prompt[-1:])

    def _choice_of(self, text: GeneratedText, tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
        full_text = text.whole()
        choice = {"index": text.index, "text": full_text, "finish_reason": text.finish or "length",
                  "tokens": len(text.tokens)}  # fmt: skip
        if not text.is_streamed:
            choice |= text.logprobs(len(full_text))
        calls = read_calls(self._model.tokenizer, text.tokens, text.prompt, tools) if tools else None
        return {**choice, **calls, "finish_reason": "tool_calls"} if calls else choice


def batches_within(context: int | None, texts: Sequence[GeneratedText], limit: int) -> list[list[GeneratedText]]:
    """Splits texts into batches of at most `limit` that a model with this context length can generate.

    A context length of None means no limit.

    A finished text stays in its batch, and gets further positions until the longest text is finished. So the longest
    prompt and the longest answer of a batch must fit into the context together.
    """
    batches: list[list[GeneratedText]] = []
    for text in texts:
        for batch in batches:
            candidates = [*batch, text]
            positions = max(len(item.prompt) for item in candidates) + max(item.limit for item in candidates)
            if len(candidates) <= limit and (context is None or positions <= context):
                batch.append(text)
                break
        else:
            batches.append([text])
    return batches
