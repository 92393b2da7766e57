"""A stand-in for the Hugging Face hub, with the part of its HTTP API that creates repositories and commits files."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Repository:
    private: bool | None
    commits: list[tuple[str, str, dict[str, bytes]]] = field(default_factory=list)
    """The branch, the message and the files of each commit."""

    def files(self, branch: str = "main") -> dict[str, bytes]:
        result: dict[str, bytes] = {}
        for where, _, files in self.commits:
            if where == branch:
                result |= files
        return result

    @property
    def messages(self) -> list[str]:
        return [message for _, message, _ in self.commits]


class Hub:
    """The state of the stand-in. Commits wait while `gate` is closed, and fail if `refuses` is True."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.tokens: set[str | None] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.commit_arrived = threading.Event()
        """Set when the first commit has arrived, which may wait at the gate."""
        self.refuses = False
        self.at_once = 0
        """The number of commits that have waited at the gate together."""
        self._waiting = 0
        self.url = ""

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        name = f"{body.get('organization') or 'me'}/{body['name']}"
        is_private = body.get("private", {"private": True, "public": False}.get(str(body.get("visibility"))))
        self.repositories.setdefault(name, Repository(is_private))
        return {"url": f"{self.url}/{name}", "name": name, "id": name}

    def preupload(self, body: dict[str, Any]) -> dict[str, Any]:
        return {
            "files": [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in body["files"]]
        }

    def commit(self, name: str, branch: str, lines: list[dict[str, Any]]) -> dict[str, Any] | None:
        self._waiting += 1
        self.at_once = max(self.at_once, self._waiting)
        self.commit_arrived.set()
        assert self.gate.wait(60)
        self._waiting -= 1
        if self.refuses:
            return None
        message = next(line["value"]["summary"] for line in lines if line["key"] == "header")
        files = {
            line["value"]["path"]: base64.b64decode(line["value"]["content"]) for line in lines if line["key"] == "file"
        }
        self.repositories[name].commits.append((branch, message, files))
        at = f"{len(self.repositories[name].commits):040x}"
        return {"commitUrl": f"{self.url}/{name}/commit/{at}", "commitOid": at, "success": True}


@contextmanager
def a_hub() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            hub.tokens.add((self.headers.get("Authorization") or "").removeprefix("Bearer ") or None)
            parts = self.path.split("?")[0].strip("/").split("/")
            answer: dict[str, Any] | None = {}
            if parts[-2:] == ["repos", "create"]:
                answer = hub.create(json.loads(body))
            elif "preupload" in parts:
                answer = hub.preupload(json.loads(body))
            elif "commit" in parts:
                lines = [json.loads(line) for line in body.splitlines() if line.strip()]
                answer = hub.commit("/".join(parts[2:4]), parts[5], lines)
            self._answer(answer)

        def do_GET(self) -> None:
            self._answer({"name": "me", "type": "user", "orgs": [], "auth": {}})

        def _answer(self, answer: dict[str, Any] | None) -> None:
            content = json.dumps(answer if answer is not None else {"error": "the stand-in refuses"}).encode()
            self.send_response(200 if answer is not None else 403)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()
