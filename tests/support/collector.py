"""A collector of traces on a socket of this process, for OpenTelemetry's own exporter."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    def __init__(self) -> None:
        self.paths: list[str] = []
        self.requests: list[ExportTraceServiceRequest] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.paths.append(self.path)
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    @property
    def spans(self) -> dict[str, Span]:
        """Returns the spans of all requests by name."""
        return {span.name: span for span in self._all()}

    def of(self, trace: str) -> dict[str, Span]:
        """Returns the spans of one trace, by name."""
        return {span.name: span for span in self._all() if span.trace_id.hex() == trace}

    def resources(self) -> list[dict[str, str]]:
        """Returns the attributes of the resource of each sender."""
        return [
            {attribute.key: attribute.value.string_value for attribute in batch.resource.attributes}
            for request in list(self.requests)
            for batch in request.resource_spans
        ]

    def _all(self) -> list[Span]:
        return [
            span
            for request in list(self.requests)
            for batch in request.resource_spans
            for scope in batch.scope_spans
            for span in scope.spans
        ]


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    thread = threading.Thread(target=collector.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.server.shutdown()
        thread.join()
        collector.server.server_close()


def attributes_of(span: Span | Span.Event) -> dict[str, Any]:
    return {
        attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value")) for attribute in span.attributes
    }
