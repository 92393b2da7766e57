"""Tests files by URL: only listed hosts and public addresses, complete files, and the same bytes for every attempt."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from footplate.contract.errors import NotFetched
from footplate.contract.outbound import Allowed, Refused, read_url, require_allowed
from tests.support.file_server import FileServer, file_server
from worker.attempt import url_files as module
from worker.attempt.fetch_thread import RETRIED
from worker.attempt.url_files import UrlFiles

ROWS = b'{"x": 1}\n'
HERE = Allowed.of("127.0.0.1/32")


@pytest.fixture
def store() -> Iterator[FileServer]:
    with file_server() as store:
        store.files["/rows.jsonl"] = ROWS
        yield store


@pytest.fixture
def secret() -> Iterator[FileServer]:
    """Yields a server at an address that is not listed."""
    with file_server("127.0.0.2") as store:
        store.files["/secret.jsonl"] = b"what only this machine may see"
        yield store


def stores(folder: Path, allowed: Allowed = HERE, most_bytes: int = 1000) -> UrlFiles:
    return UrlFiles(folder / "stores", allowed, most_bytes)


def refusal(files: UrlFiles, url: str) -> tuple[str, str]:
    with pytest.raises(NotFetched) as error:
        files.fetch_newest(url)
    assert not files.folder.exists() or not list(files.folder.iterdir()), "no part of a refused file must be kept"
    return error.value.code, error.value.message


def test_the_file_of_a_url_is_stored_by_its_sha256_and_downloaded_once(tmp_path: Path, store: FileServer) -> None:
    node_store = stores(tmp_path)

    result = node_store.fetch_newest(f"{store.url}/rows.jsonl?key=abc")
    here = node_store.fetch_pinned(f"{store.url}/rows.jsonl?key=abc", result)

    assert result == sha256(ROWS).hexdigest()
    assert Path(here.folder) == tmp_path / "stores" / f"{result}.jsonl"
    assert (Path(here.folder).read_bytes(), here.bytes) == (ROWS, len(ROWS))
    assert store.requested_paths == ["/rows.jsonl?key=abc"]


def test_a_download_removes_what_killed_downloads_have_left(tmp_path: Path, store: FileServer) -> None:
    node_store = stores(tmp_path)
    node_store.folder.mkdir()
    leftover, under_way = node_store.folder / ".part-1", node_store.folder / ".part-2"
    for part in (leftover, under_way):
        part.write_bytes(b"half")
    os.utime(leftover, (0, 0))

    digest = node_store.fetch_newest(f"{store.url}/rows.jsonl")

    assert {file.name for file in node_store.folder.iterdir()} == {under_way.name, f"{digest}.jsonl"}


@pytest.mark.parametrize("length", ["abc", "-1", "9" * 5000])
def test_a_content_length_that_is_not_a_number_is_ignored(tmp_path: Path, store: FileServer, length: str) -> None:
    store.files["/long.jsonl"] = b"x" * 1001
    store.lengths = dict.fromkeys(store.files, length)

    assert stores(tmp_path).fetch_newest(f"{store.url}/rows.jsonl") == sha256(ROWS).hexdigest()
    assert refusal(stores(tmp_path / "2"), f"{store.url}/long.jsonl")[0] == "dataset_too_large"


def test_a_url_whose_content_changed_is_refused_by_name(tmp_path: Path, store: FileServer) -> None:
    url = f"{store.url}/rows.jsonl"
    result = stores(tmp_path / "first").fetch_newest(url)
    store.files["/rows.jsonl"] = b'{"x": 2}\n'
    with pytest.raises(NotFetched, match=f"sha256 was {result}"):
        stores(tmp_path / "second").fetch_pinned(url, result)
    assert stores(tmp_path / "first").fetch_pinned(url, result).bytes == len(ROWS)
    (tmp_path / "first" / "stores" / f"{result}.jsonl").write_bytes(b"rotten")
    store.files["/rows.jsonl"] = ROWS
    assert Path(stores(tmp_path / "first").fetch_pinned(url, result).folder).read_bytes() == ROWS


@pytest.mark.parametrize("allow", ["", "data.example.org", "10.0.0.0/8", "127.0.0.2/32"])
def test_an_unlisted_host_gets_no_request(tmp_path: Path, store: FileServer, allow: str) -> None:
    code, message = refusal(stores(tmp_path, Allowed.of(allow)), f"{store.url}/rows.jsonl")

    assert (code, store.requested_paths) == ("store_refused", [])
    assert "127.0.0.1, which is not among the allowed hosts" in message


@pytest.mark.parametrize("host", ["localhost", "2130706433", "0x7f.1", "metadata.example"])
def test_a_listed_host_that_resolves_to_a_private_address_is_refused(
    tmp_path: Path, store: FileServer, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda name, *more, **how: real("127.0.0.1" if "meta" in name else name, *more, **how)
    )
    allowed, url = Allowed(names=frozenset({host})), f"http://{host}:{store.server.server_port}/rows.jsonl"
    code, message = refusal(stores(tmp_path, allowed), url)
    assert (code, store.requested_paths) == ("store_refused", [])
    assert "127.0.0.1: not a public address" in message

    # Counter-check: without the check of the address, the file would be fetched.
    monkeypatch.setattr(module, "require_allowed", lambda *_: None)
    assert stores(tmp_path, allowed).fetch_newest(url) == sha256(ROWS).hexdigest()


def test_a_public_host_is_requested_by_https_only() -> None:
    with pytest.raises(Refused, match="begin with https://"):
        require_allowed(read_url("http://data.example.org/a"), ["93.184.216.34"], Allowed().has)
    require_allowed(read_url("https://data.example.org/a"), ["93.184.216.34"], Allowed().has)


@pytest.mark.parametrize(
    "to", ["{secret}/secret.jsonl", "file:///etc/passwd", "http://me:pw@127.0.0.1/x", "//127.0.0.2/x"]
)
def test_a_redirect_is_checked_like_the_url(tmp_path: Path, store: FileServer, secret: FileServer, to: str) -> None:
    store.redirects["/rows.jsonl"] = to.format(secret=secret.url)

    code, message = refusal(stores(tmp_path), f"{store.url}/rows.jsonl")

    assert (code, secret.requested_paths) == ("store_refused", [])
    assert "redirects to an address that" in message


def test_without_the_check_of_redirect_targets_a_redirect_is_followed(
    tmp_path: Path, store: FileServer, secret: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This counter-check shows that only the check of the target refuses the redirect."""
    store.redirects["/rows.jsonl"] = f"{secret.url}/secret.jsonl"
    real = module.checked_target
    everything = Allowed.of("127.0.0.0/8")
    monkeypatch.setattr(
        module, "checked_target", lambda url, at, allowed: real(url, at, allowed if at == url else everything)
    )

    assert stores(tmp_path).fetch_newest(f"{store.url}/rows.jsonl") == sha256(secret.files["/secret.jsonl"]).hexdigest()


def test_redirects_to_listed_hosts_are_followed_up_to_a_limit(tmp_path: Path, store: FileServer) -> None:
    store.redirects["/old"] = "/rows.jsonl"
    store.redirects["/round"] = "/round"

    assert stores(tmp_path).fetch_newest(f"{store.url}/old") == sha256(ROWS).hexdigest()
    code, message = refusal(stores(tmp_path / "other"), f"{store.url}/round")
    assert (code, "5 times" in message) == ("store_refused", True)


@pytest.mark.parametrize(
    ("what", "code", "is_retried", "says"),
    [
        ({"statuses": 404}, "dataset_not_found", False, "404"),
        ({"statuses": 403}, "dataset_not_allowed", False, "403"),
        ({"statuses": 503}, "store_unreachable", True, "503"),
        ({"cut_at": 4}, "store_unreachable", True, "5 bytes"),
        ({"files": b"x" * 1001}, "dataset_too_large", False, "0.000953674 MiB"),
    ],
)
def test_a_failed_download_of_a_url_is_reported_with_its_reason(
    tmp_path: Path, store: FileServer, what: dict[str, Any], code: str, is_retried: bool, says: str
) -> None:
    for name, value in what.items():
        getattr(store, name)["/rows.jsonl"] = value
    node_store = stores(tmp_path)

    with pytest.raises(NotFetched, match=says) as error:
        node_store.fetch_newest(f"{store.url}/rows.jsonl?key=hidden")

    assert (error.value.code, error.value.code in RETRIED) == (code, is_retried)
    assert "hidden" not in error.value.message
    assert list(node_store.folder.iterdir()) == []
