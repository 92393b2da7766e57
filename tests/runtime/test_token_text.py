"""Tests the texts of tokens with tokenizers of bytes and of words that begin with a space."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast

from footplate.runtime.end_tokens import end_of_answer, write_end_tokens
from footplate.runtime.serving.texts import GeneratedText, TokenChoice
from footplate.runtime.serving.token_text import token_entry

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


@pytest.fixture
def of_bytes() -> Any:
    """Returns a tokenizer like that of GPT-2, in which each byte is a token."""
    inner = Tokenizer(
        models.BPE({piece: at for at, piece in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])
    )
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|endoftext|>", additional_special_tokens=["<|im_start|>", "<|im_end|>"]
    )


@pytest.fixture
def of_words() -> Any:
    """Returns a tokenizer like that of Llama 2, which writes no space before the first word of a text."""
    pieces = ["▁once", "▁upon", "▁a", "▁time", "<0xE2>", "<0x82>", "<0xAC>"]
    inner = Tokenizer(models.WordLevel({piece: at for at, piece in enumerate(pieces)}, unk_token="▁a"))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(content=" ", left=1),
    ])  # fmt: skip
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def text_of(tokenizer: Any, tokens: list[int], **more: Any) -> GeneratedText:
    return GeneratedText(tokenizer, "ask_1", 0, [0], limit=1000, tokens=tokens, **{"stops": (), **more})


def test_a_stop_text_of_many_bytes_ends_a_text(of_bytes: Any) -> None:
    text, stop = text_of(of_bytes, [], stops=("おしまいです、さようなら",)), "おしまいです、さようなら"
    for token in of_bytes(f"昔々{stop}と言った")["input_ids"]:
        text.add(token, frozenset())

    assert text.finish == "stop"
    assert text.whole() == "昔々"


def test_a_text_that_continues_a_prompt_keeps_the_space_before_its_first_word(of_words: Any) -> None:
    _, last, a, time = of_words("once upon a time")["input_ids"]

    assert text_of(of_words, [a, time], prompt_end=(last,)).whole() == " a time"
    assert text_of(of_words, [a, time]).whole() == "a time"


def test_the_tokens_of_log_probabilities_add_up_to_the_text(of_words: Any, of_bytes: Any) -> None:
    for tokenizer, whole in ((of_words, "once upon a time€"), (of_bytes, "a time€")):
        tokens = of_words("once upon a time")["input_ids"] + [4, 5, 6]
        tokens = tokens if tokenizer is of_words else of_bytes(whole)["input_ids"]
        text = text_of(tokenizer, tokens, top_logprobs=0)
        text.choices = [TokenChoice(token, -1.0, []) for token in tokens]
        entries = text.logprobs(len(whole))["logprobs"]

        content = b"".join(bytes(entry.get("bytes") or entry["token"].encode()) for entry in entries)
        assert content.decode().strip() == whole
        assert [entry["token"] for entry in entries[-3:]] == ["\\xe2", "\\x82", "\\xac"]


def test_special_tokens_have_their_names(of_bytes: Any) -> None:
    assert token_entry(of_bytes, of_bytes.eos_token_id) == {"token": "<|endoftext|>"}


def test_an_answer_ends_with_the_token_that_its_chat_template_writes(of_bytes: Any, of_words: Any) -> None:
    of_bytes.chat_template = CHATML
    assert end_of_answer(of_bytes) == of_bytes.convert_tokens_to_ids("<|im_end|>")
    of_bytes.chat_template = "{{ raise_exception('no') }}"
    assert (end_of_answer(of_bytes), end_of_answer(of_words)) == (None, None)


def test_a_saved_model_stops_at_the_end_token_of_its_chat_template(of_bytes: Any) -> None:
    """Servers such as vLLM read the end tokens from generation_config.json, and not from the chat template."""
    model = SimpleNamespace(generation_config=GenerationConfig(eos_token_id=7))
    end, of_tokenizer = of_bytes.convert_tokens_to_ids("<|im_end|>"), of_bytes.eos_token_id

    write_end_tokens(model, of_bytes)
    without_template = model.generation_config.eos_token_id
    of_bytes.chat_template = CHATML
    write_end_tokens(model, of_bytes)

    assert without_template == [7, of_tokenizer]
    assert model.generation_config.eos_token_id == [7, of_tokenizer, end]
    write_end_tokens(model, processor := SimpleNamespace(apply_chat_template=of_bytes.apply_chat_template))
    assert not hasattr(processor, "added_tokens_decoder"), "a processor of images need not have added tokens"
    write_end_tokens(SimpleNamespace(), None)
