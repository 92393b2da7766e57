"""A stand-in for the Hugging Face hub in its own process, with the part of its HTTP API that serves downloads.

    hub = HubServer(processes)
    commit = hub.push("models/me/tiny", {"config.json": b"{}"})     adds a commit to main
    hub.environment                                                 the settings of nodes
    hub.gate("models/me/tiny")                                      answers 403 to requests without a token
    hub.hold()                                                      delays files until `hub.release()`
    hub.requests                                                    all requests so far, with their tokens

The process reads its state from files, so a change by a test has effect at once.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tests.support.processes import Processes

HOLD, GATED, REFS, ASKED, HOLDING = "hold", "gated", "refs.json", "asked.log", "holding"
TOKEN = "hf_what_only_nodes_know"


class HubServer:
    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self.folder = processes.folder / "hub-server"
        self.folder.mkdir(exist_ok=True)
        self.start()

    def start(self, port: int = 0) -> None:
        port_file = self.folder / "port"
        port_file.unlink(missing_ok=True)
        self._process = self._processes.start(
            "-m", "tests.support.hub_server", str(self.folder), str(port), name="hub-server"
        )
        self._process.until(port_file.exists, within=30, what="the stand-in for the hub listens")
        self.port = int(port_file.read_text())

    def go_away(self) -> None:
        self._process.terminate(10)

    def come_back(self) -> None:
        self.start(self.port)

    @property
    def environment(self) -> dict[str, str]:
        return {"FOOTPLATE_HUB": "on", "HF_ENDPOINT": f"http://127.0.0.1:{self.port}", "HF_TOKEN": TOKEN}

    def push(self, repository: str, files: Mapping[str, bytes], branch: str = "main") -> str:
        folder = self.folder / repository
        number = len(list(folder.glob("*/.committed"))) + 1
        commit = hashlib.sha1(f"{repository} {number}".encode()).hexdigest()
        for name, content in files.items():
            (folder / commit / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / commit / name).write_bytes(content)
        (folder / commit / ".committed").touch()
        refs = _refs(folder)
        (folder / REFS).write_text(json.dumps({**refs, branch: commit}))
        return commit

    def remove_but_list(self, repository: str, commit: str, name: str) -> None:
        """Removes a file that the API still lists."""
        (self.folder / repository / commit / name).rename(self.folder / repository / commit / f"{name}.lost")

    def drop(self, repository: str) -> None:
        shutil.rmtree(self.folder / repository)

    def gate(self, repository: str) -> None:
        (self.folder / repository / GATED).touch()

    def hold(self) -> None:
        (self.folder / HOLD).touch()

    def release(self) -> None:
        (self.folder / HOLD).unlink(missing_ok=True)
        (self.folder / HOLDING).unlink(missing_ok=True)

    @property
    def is_holding(self) -> bool:
        """Returns True if a request waits for a file."""
        return (self.folder / HOLDING).exists()

    @property
    def requests(self) -> list[str]:
        """Returns each request with its token, such as `GET /api/models/… hf_token`."""
        log = self.folder / ASKED
        return log.read_text().splitlines() if log.exists() else []


def _refs(folder: Path) -> dict[str, str]:
    return json.loads((folder / REFS).read_text()) if (folder / REFS).exists() else {}


# In the process of the server


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    root: Path

    def do_HEAD(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def _serve(self) -> None:
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        with (self.root / ASKED).open("a") as log:
            log.write(f"{self.command} {self.path} {token}\n")
        parts = [unquote(part) for part in self.path.partition("?")[0].strip("/").split("/")]
        if parts[0] == "api":
            self._api(parts[1], parts[2:], token)
        elif "resolve" in parts:
            kind = "datasets" if parts[0] == "datasets" else "models"
            at = parts.index("resolve")
            name = "/".join(parts[1:at] if kind == "datasets" else parts[:at])
            self._file(self.root / kind / name, parts[at + 1], "/".join(parts[at + 2 :]), token)
        else:
            self._error(404, "EntryNotFound", "no such page")

    def _api(self, kind: str, parts: list[str], token: str) -> None:
        """Answers `/api/models/owner/name`, `…/revision/main` and `…/tree/<commit>`."""
        word = next((name for name in ("revision", "tree") if name in parts), None)
        at = parts.index(word) if word else len(parts)
        repository, revision = self.root / kind / "/".join(parts[:at]), (parts[at + 1] if word else "main")
        if (commit := self._commit(repository, revision, token)) is None:
            return
        files = sorted(
            path for path in (repository / commit).rglob("*") if path.is_file() and path.name != ".committed"
        )
        names = {file: str(file.relative_to(repository / commit)).removesuffix(".lost") for file in files}
        if word == "tree":
            entries = [
                {"type": "file", "path": name, "size": item.stat().st_size, "oid": _oid(item)}
                for item, name in names.items()
            ]
            self._json(entries)
        else:
            siblings = [{"rfilename": name} for name in names.values()]
            reports = {"id": "/".join(parts[:at]), "sha": commit, "private": False, "tags": [], "siblings": siblings}
            self._json({**reports, "downloads": 0, "likes": 0})

    def _file(self, repository: Path, revision: str, name: str, token: str) -> None:
        if (commit := self._commit(repository, revision, token)) is None:
            return
        file = repository / commit / name
        if not file.is_file():
            self._error(404, "EntryNotFound", f"{name} is not there")
            return
        if self.command == "GET":
            while (self.root / HOLD).exists():
                (self.root / HOLDING).touch()
                time.sleep(0.02)
        content = file.read_bytes()
        self.send_response(200)
        self.send_header("X-Repo-Commit", commit)
        self.send_header("ETag", f'"{_oid(file)}"')
        self._body(content, "application/octet-stream")

    def _commit(self, repository: Path, revision: str, token: str) -> str | None:
        if not repository.is_dir():
            self._error(404 if token else 401, "RepoNotFound", "Repository not found")
            return None
        if (repository / GATED).exists():
            self._error(403 if token else 401, "GatedRepo", "Access to this repository is restricted")
            return None
        commit = _refs(repository).get(revision, revision)
        if not (repository / commit).is_dir():
            self._error(404, "RevisionNotFound", f"no revision {revision}")
            return None
        return commit

    def _json(self, value: Any) -> None:
        self.send_response(200)
        self._body(json.dumps(value).encode(), "application/json")

    def _error(self, status: int, code: str, message: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self._body(json.dumps({"error": message}).encode(), "application/json")

    def _body(self, content: bytes, kind: str) -> None:
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *args: Any) -> None: ...


def _oid(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()


def main() -> None:
    Handler.root = Path(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler)
    port_file = Handler.root / "port"
    fresh = port_file.with_suffix(".new")
    fresh.write_text(str(server.server_address[1]))
    fresh.rename(port_file)
    server.serve_forever()


if __name__ == "__main__":
    main()
