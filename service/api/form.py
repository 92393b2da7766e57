"""The one file of a form, read as it streams: `multipart/form-data`, as `curl -F file=@rows.jsonl` sends it."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from footplate.contract.errors import InvalidSpec, Problem

MEDIA_TYPE = "multipart/form-data"


class InvalidForm(InvalidSpec):
    code = "invalid_form"
    title = "The form cannot be read"


def form_file(content_type: str, body: AsyncIterator[bytes]) -> FormFile:
    """Returns the file of a form. Raises InvalidForm if the Content-Type is wrong or has no boundary."""
    kind, options = parse_options_header(content_type)
    if kind.decode("latin-1") != MEDIA_TYPE or not options.get(b"boundary"):
        raise _wrong("the Content-Type of the form has no boundary")
    return FormFile(options[b"boundary"], body)


class FormFile:
    """The file of a form as it arrives. Callers await `name` first, and then read `pieces`."""

    def __init__(self, boundary: bytes, body: AsyncIterator[bytes]) -> None:
        self._body = body
        self._name: str | None = None
        self._parts = 0
        self._has_ended = False
        self._header: tuple[bytearray, bytearray] = (bytearray(), bytearray())
        self._waiting: deque[bytes] = deque()
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
                "on_header_end": self._end_header,
                "on_headers_finished": self._begin_data,
                "on_part_data": lambda data, start, end: self._waiting.append(data[start:end]),
                "on_end": self._end,
            },
        )

    async def name(self) -> str:
        """Returns the file's name as the client sent it. Raises InvalidForm if the form has no file."""
        async for piece in self._body:
            self._feed(piece)
            if self._name is not None:
                return self._name
        raise _wrong("the form has no file")

    async def pieces(self) -> AsyncIterator[bytes]:
        while self._waiting:
            yield self._waiting.popleft()
        async for piece in self._body:
            self._feed(piece)
            while self._waiting:
                yield self._waiting.popleft()
        if not self._has_ended:
            raise _wrong("the form ends before its last boundary")

    def _feed(self, piece: bytes) -> None:
        try:
            self._parser.write(piece)
        except FormParserError as error:
            raise _wrong(str(error)) from error

    def _begin_part(self) -> None:
        self._parts += 1
        if self._parts > 1:
            raise _wrong("the form has several parts: upload each file in a request of its own")

    def _end_header(self) -> None:
        field, value = (bytes(part).decode("latin-1") for part in self._header)
        if field.lower() == "content-disposition":
            _, options = parse_options_header(value)
            if b"filename" in options:
                self._name = options[b"filename"].decode("utf-8", "replace")
        self._header = (bytearray(), bytearray())

    def _begin_data(self) -> None:
        if self._name is None:
            raise _wrong("the part of the form has no filename, so it is not a file")

    def _end(self) -> None:
        self._has_ended = True


def _wrong(what: str) -> InvalidForm:
    return InvalidForm([Problem("", "invalid_form", what, "curl -F file=@rows.jsonl …/files sends one file")])
