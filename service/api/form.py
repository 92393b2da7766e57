"""Reads the file in a `multipart/form-data` body while the body arrives.

`curl -F file=@rows.jsonl` sends such a body.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Collection

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from footplate.contract.errors import InvalidSpec, Problem

MEDIA_TYPE = "multipart/form-data"
LONGEST_FIELD = 4096
"""The most bytes of a field that is not the file."""


class InvalidForm(InvalidSpec):
    code = "invalid_form"
    title = "The form cannot be read"


class FormFile:
    """The file in a form that is still arriving. Callers await `name` first, and then read `pieces`.

    `fields` is complete once all pieces are read, because fields may come before the file or after it.
    """

    def __init__(self, content_type: str, body: AsyncIterator[bytes], text_fields: Collection[str] = ()) -> None:
        """`text_fields` has the names of fields that the form may have beside the file. Raises InvalidForm."""
        kind, options = parse_options_header(content_type)
        if kind.decode("latin-1") != MEDIA_TYPE or not options.get(b"boundary"):
            raise _wrong("the Content-Type of the form has no boundary")
        self.fields: dict[str, str] = {}
        self._known = text_fields
        self._field = ""
        self._value = bytearray()
        self._body = body
        self._name: str | None = None
        self._has_ended = self._is_file = False
        self._headers: list[tuple[bytearray, bytearray]] = []
        """The names and values of the headers of the present part."""
        self._waiting: deque[bytes] = deque()
        self._parser = MultipartParser(
            options[b"boundary"],
            {
                "on_part_begin": self._headers.clear,
                "on_header_begin": lambda: self._headers.append((bytearray(), bytearray())),
                "on_header_field": lambda data, start, end: self._headers[-1][0].extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._headers[-1][1].extend(data[start:end]),
                "on_headers_finished": self._begin_data,
                "on_part_data": self._data,
                "on_part_end": self._end_part,
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

    def _begin_data(self) -> None:
        headers = {bytes(name).lower(): bytes(value) for name, value in self._headers}
        _, options = parse_options_header(headers.get(b"content-disposition"))
        self._is_file = b"filename" in options
        self._field = options.get(b"name", b"").decode("utf-8", "replace")
        if self._is_file:
            if self._name is not None:
                raise _wrong("the form has several files: upload each file in a request of its own")
            self._name = options[b"filename"].decode("utf-8", "replace")
        elif self._field not in self._known:
            other_fields = f"; fields that need no filename: {', '.join(self._known)}" if self._known else ""
            field = self._field[:80]
            raise _wrong(f"the field {field!r} of the form is not a file, because it has no filename{other_fields}")
        elif self._field in self.fields:
            raise _wrong(f"the form has {self._field!r} twice")

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._waiting.append(data[start:end])
            return
        self._value += data[start:end]
        if len(self._value) > LONGEST_FIELD:
            raise _wrong(f"the field {self._field!r} of the form has more than {LONGEST_FIELD:,} bytes")

    def _end_part(self) -> None:
        if not self._is_file:
            self.fields[self._field] = self._value.decode("utf-8", "replace")
            self._value.clear()

    def _end(self) -> None:
        self._has_ended = True


def _wrong(detail: str) -> InvalidForm:
    return InvalidForm([Problem("", "invalid_form", detail, "curl -F file=@rows.jsonl …/files sends one file")])
