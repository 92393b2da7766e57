"""Downloads the file of a URL, from the hosts and up to the size that the operator allows.

Each redirect is checked like the URL itself. No proxy is used, because a proxy would resolve names itself.
"""

from __future__ import annotations

import http.client
import os
import re
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import file_digest, sha256
from pathlib import Path
from urllib.parse import urljoin

from footplate.contract.errors import NotFetched
from footplate.contract.fields import InternalMessage
from footplate.contract.files import shown
from footplate.contract.outbound import Allowed, Refused, Target, addresses_of, read_url, require_allowed

SETTING, MOST_SETTING = "FOOTPLATE_STORES_ALLOW", "FOOTPLATE_STORES_MAX_MB"
SECONDS, MOST_HOPS, PIECE = 30.0, 5, 1 << 20
LEFTOVER_SECONDS = 24 * 3600.0
REDIRECTS = (301, 302, 303, 307, 308)
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,10}$")


class Fetched(InternalMessage):
    """A URL or repository whose files are on this node now."""

    place: str
    folder: str
    files: int
    bytes: int


def unfinished_file(stores: Path, pid: int) -> Path:
    """Returns the path of the file that a process is downloading now."""
    return stores / f".part-{pid}"


class UrlFiles:
    """The folder of downloaded files, each named by its sha256, so that no file ever replaces a different one."""

    def __init__(self, folder: Path, allowed: Allowed, most_bytes: int) -> None:
        self.folder, self.allowed, self.most_bytes = folder, allowed, most_bytes

    def fetch_newest(self, url: str) -> str:
        """Downloads the file that the URL has now, and returns its sha256."""
        part = unfinished_file(self.folder, os.getpid())
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(self.folder)
            digest = self._write(url, part)
            part.rename(self._file(url, digest))
            return digest
        except OSError as error:
            raise NotFetched(
                "hub_cache_unusable",
                f"{shown(url)} cannot be kept on this node: {error.strerror or error}: {error.filename or self.folder}",
                hint="files there that no job needs may be removed by hand",
            ) from error
        finally:
            part.unlink(missing_ok=True)

    def fetch_pinned(self, url: str, pinned_sha256: str) -> Fetched:
        """Returns the file with this sha256. Downloads the URL only if this node does not have the file."""
        file = self._file(url, pinned_sha256)
        if not _has_digest(file, pinned_sha256) and (digest := self.fetch_newest(url)) != pinned_sha256:
            raise NotFetched(
                "dataset_changed",
                f"{shown(url)} has changed since the job began: its sha256 was {pinned_sha256}, and is {digest}",
                hint="put the old file back and resume, or start again with a fork",
            )
        return Fetched(place=url, folder=str(file), files=1, bytes=file.stat().st_size)

    def _file(self, url: str, digest: str) -> Path:
        suffix = _SUFFIX.search(url.partition("?")[0])
        return self.folder / f"{digest}{suffix[0].lower() if suffix else ''}"

    def _write(self, url: str, part: Path) -> str:
        digest, size = sha256(), 0
        with _response(url, self.allowed) as response, part.open("wb") as file:
            self._require_size(url, response.length or 0)
            for piece in _pieces(url, response):
                self._require_size(url, size := size + len(piece))
                digest.update(piece)
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        return digest.hexdigest()

    def _require_size(self, url: str, size: int) -> None:
        if size > self.most_bytes:
            message = f"{shown(url)} is larger than {self.most_bytes / 2**20:g} MiB"
            raise NotFetched("dataset_too_large", message, hint=f"raise {MOST_SETTING}, or use data://")


def _remove_leftovers(folder: Path) -> None:
    """Deletes what killed downloads have left. A download that is under way has written to its file within a day."""
    for part in folder.glob(".part-*"):
        with suppress(FileNotFoundError):
            if time.time() - part.stat().st_mtime > LEFTOVER_SECONDS:
                part.unlink()


def _has_digest(file: Path, digest: str) -> bool:
    with suppress(FileNotFoundError), file.open("rb") as content:
        return file_digest(content, "sha256").hexdigest() == digest
    return False


# ── Requests ─────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _response(url: str, allowed: Allowed) -> Iterator[http.client.HTTPResponse]:
    at = url
    for _ in range(MOST_HOPS):
        target, address = checked_target(url, at, allowed)
        connection = _connection(target, address)
        try:
            answer = _request(url, connection, target)
            if answer.status == 200:
                yield answer
                return
            if answer.status not in REDIRECTS:
                raise _refusal(url, answer.status)
            at = urljoin(at, answer.getheader("Location") or "")
        finally:
            connection.close()
    message = f"{shown(url)} redirects more than {MOST_HOPS} times"
    raise NotFetched("store_refused", message, hint="name the last address of the redirects")


def checked_target(url: str, at: str, allowed: Allowed) -> tuple[Target, str]:
    """Checks `at`, which is `url` or where it redirects to. Returns the parsed URL and the IP address to connect to.

    Raises NotFetched if the node may not connect to this host.
    """
    try:
        target = read_url(at)
        if not allowed.lists(target.host):
            raise Refused(f"names {target.host}, which is not among the allowed hosts")
        addresses = addresses_of(target.host, target.port)
        require_allowed(target, addresses, allowed.has)
    except (OSError, UnicodeError) as error:
        raise _unreachable(url, f"{target.host} cannot be resolved: {error}") from error
    except Refused as error:
        which = shown(url) if at == url else f"{shown(url)} redirects to an address that"
        hint = f"add the host, or its network, to the node's {SETTING}"
        raise NotFetched("store_refused", f"{which} {error}", hint=hint) from None
    return target, addresses[0]


def _connection(target: Target, address: str) -> http.client.HTTPConnection:
    """Returns a connection to the checked address. A TLS certificate must match the host's name all the same."""
    kind = http.client.HTTPSConnection if target.scheme == "https" else http.client.HTTPConnection
    connection = kind(target.host, target.port, timeout=SECONDS)
    vars(connection)["_create_connection"] = lambda server, *more: socket.create_connection((address, server[1]), *more)
    return connection


def _request(url: str, connection: http.client.HTTPConnection, target: Target) -> http.client.HTTPResponse:
    try:
        connection.request("GET", target.path, headers={"User-Agent": "footplate", "Accept-Encoding": "identity"})
        return connection.getresponse()
    except ssl.SSLCertVerificationError as error:
        why = f"{shown(url)}: the certificate of {target.host} is not valid: {error.verify_message}"
        hint = "set SSL_CERT_FILE on the nodes to a file with the certificates of the trusted authorities"
        raise NotFetched("store_refused", why, hint=hint) from error
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(url, f"{target.host} does not answer: {error or type(error).__name__}") from error


def _pieces(url: str, answer: http.client.HTTPResponse) -> Iterator[bytes]:
    try:
        while piece := answer.read(PIECE):
            yield piece
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(url, f"the connection broke during the answer: {error or type(error).__name__}") from error
    # `read` does not report an answer that ends too early if it is given a size.
    if answer.length:
        raise _unreachable(url, f"the answer ended {answer.length} bytes too early")


def _unreachable(url: str, why: str) -> NotFetched:
    hint = "check that the node can reach this server; files that the node has fetched before need no network"
    return NotFetched("store_unreachable", f"{shown(url)} cannot be fetched: {why}", hint=hint)


def _refusal(url: str, status: int) -> NotFetched:
    if status == 429 or status >= 500:
        return _unreachable(url, f"its server answers {status}")
    if status in (401, 403):
        message = f"the server of {shown(url)} refuses this node: {status}"
        hint = "name a URL that can be read without a password, because nodes send none"
        return NotFetched("dataset_not_allowed", message, hint=hint)
    message = f"{shown(url)} does not exist: its server answers {status}"
    return NotFetched("dataset_not_found", message, hint="look for a misspelt name")
