"""A real HTTP server in a thread, which serves files.

    with file_server() as store:
        store.files["/rows.jsonl"] = b"…"
        store.redirects["/a"] = "http://…"

`store.requested_paths` has the paths of all requests so far.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FileServer:
    def __init__(self, host: str) -> None:
        self.files: dict[str, bytes] = {}
        self.redirects: dict[str, str] = {}
        self.statuses: dict[str, int] = {}
        self.cut_at: dict[str, int] = {}
        """The number of bytes after which the answer for a file ends, although Content-Length is larger."""
        self.lengths: dict[str, str] = {}
        """The Content-Length that is sent for a file instead of the true length."""
        self.requested_paths: list[str] = []
        store = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                store.requested_paths.append(self.path)
                status = store.statuses.get(path) or (
                    302 if path in store.redirects else 200 if path in store.files else 404
                )
                content = store.files.get(path, b"") if status == 200 else b""
                self.send_response(status)
                if path in store.redirects:
                    self.send_header("Location", store.redirects[path])
                self.send_header("Content-Length", store.lengths.get(path, str(len(content))))
                self.end_headers()
                self.wfile.write(content[: store.cut_at.get(path)])

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer((host, 0), Handler)
        self.url = f"http://{host}:{self.server.server_port}"


@contextmanager
def file_server(host: str = "127.0.0.1") -> Iterator[FileServer]:
    store = FileServer(host)
    thread = threading.Thread(target=store.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield store
    finally:
        store.server.shutdown()
        store.server.server_close()
        thread.join()
