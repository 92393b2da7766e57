"""Converts tokens to text: a whole answer, or one token for a list of tokens with their probabilities."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

REPLACEMENT = "\ufffd"
"""The decoder's output for an incomplete character, whose other bytes are in the next token."""
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def decoded(tokenizer: Any, tokens: Sequence[int], *, skip_special: bool = True) -> str:
    """Returns the text of tokens. Special tokens, such as the one that ends an answer, are left out by default."""
    return str(tokenizer.decode(list(tokens), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False))


def token_entry(tokenizer: Any, token: int) -> dict[str, Any]:
    """Returns the text of one token, and its bytes if they are not UTF-8. Its text then shows them in hex."""
    # A tokenizer may leave out the space before the first token of a text, so the second one is read.
    single_text = decoded(tokenizer, [token], skip_special=False)
    text = decoded(tokenizer, [token, token], skip_special=False)[len(single_text) :]
    content = _bytes_of(str(tokenizer.convert_ids_to_tokens(token))) if REPLACEMENT in text else None
    if content is None:
        return {"token": text}
    entry = {"token": content.decode(errors="backslashreplace")}
    return entry if entry["token"].encode() == content else {**entry, "bytes": list(content)}


def _bytes_of(piece: str) -> bytes | None:
    """Returns the bytes that a piece of a vocabulary means, or None if the vocabulary is not one of bytes."""
    if match := _BYTE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    table = _byte_characters()
    return bytes(table[character] for character in piece) if all(character in table for character in piece) else None


@cache
def _byte_characters() -> dict[str, int]:
    """Returns the byte for each character of GPT-2's vocabulary, in which each byte is one printable character."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {character: byte for byte, character in bytes_to_unicode().items()}
