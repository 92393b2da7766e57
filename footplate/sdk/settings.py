"""The service's address and the key, from arguments or from the environment."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2
from pydantic import SecretStr

from footplate.contract.errors import SettingsError
from footplate.contract.settings import Settings, expanded

T = TypeVar("T")
log = logging.getLogger("footplate.client")
SOCKETS = Path("/proc/net/tcp")
LISTENING, ROOT = "0A", 0
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class ClientSettings(Settings):
    url: str = "http://127.0.0.1:8080"
    """The service's address. If unset, the client uses a `footplate up` that runs in this folder, or the default."""
    api_key: SecretStr | None = None
    """The API key that is sent with each request."""


def url_of_up() -> str | None:
    """Returns the address of the `footplate up` whose state is in this folder, or None if none runs.

    Raises SettingsError while it starts, because the default address may be another server's.
    """
    try:
        home = Path(expanded(os.environ.get("FOOTPLATE_HOME") or ".footplate"))
    except ValueError as error:
        raise SettingsError(f"FOOTPLATE_HOME: {error}") from error
    with suppress(OSError, ValueError, LookupError, TypeError, ImportError):
        import fcntl  # Windows has none, and no `footplate up` either.

        with (home / "up.lock").open() as lock:
            holder = json.loads(lock.read())
            with suppress(BlockingIOError):  # The process runs.
                # The kernel unlocks the file of a process that was killed. The pid in it may be another process's.
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None
        if holder["url"]:
            return str(holder["url"])
        raise SettingsError(
            "the `footplate up` of this folder is still starting",
            hint="try again when it has printed its address, or set FOOTPLATE_URL to use another service",
        )
    return None


def _warn_of_another_user(url: str) -> None:
    """Logs a warning if the default address belongs to another user's server, because jobs would run as that user.

    A server of root is not reported, because that is the machine's own.
    """
    with suppress(OSError, ValueError, LookupError):
        sockets = [line.split() for line in SOCKETS.read_text().splitlines()[1:]]
        port = f"{urlsplit(url).port:04X}"
        owners = {
            int(fields[7]) for fields in sockets if fields[3] == LISTENING and fields[1].rpartition(":")[2] == port
        }
        if owners and owners.isdisjoint({ROOT, os.getuid()}):
            log.warning(
                "no `footplate up` runs in this folder, so %s is used, which belongs to another user (uid %s). "
                "Set FOOTPLATE_URL to the address that you mean",
                url,
                min(owners),
            )


def http_arguments(url: str | None, api_key: str | None, timeout: float, project: str | None = None) -> dict[str, Any]:
    """Returns the arguments of an httpx2 client: URL, key, project, timeout and the use of proxies."""
    settings = ClientSettings.from_environment()
    base_url = url or (settings.url if "url" in settings.model_fields_set else url_of_up())
    if base_url is None:
        base_url = settings.url
        _warn_of_another_user(base_url)
    base_url = base_url.rstrip("/")
    if "://" not in base_url:
        base_url = f"http://{base_url}"
    if not _is_http_url(base_url):
        raise SettingsError(
            f"{base_url!r} is not the address of a service", hint="use one such as http://127.0.0.1:8080"
        )
    key = api_key or (settings.api_key.get_secret_value() if settings.api_key else None)
    if key and not (key.isascii() and key.isprintable()):
        raise SettingsError(
            "the API key has a character that no key has, such as … or a line break",
            hint="set FOOTPLATE_API_KEY to the whole key that `footplate keys create` printed",
        )
    return {
        "base_url": base_url,
        "headers": {"Authorization": f"Bearer {key}"} if key else {},
        # httpx2 adds these parameters to every request that does not name a project itself.
        "params": {} if project is None else {"project": project},
        "timeout": httpx2.Timeout(timeout, connect=min(timeout, 10.0)),
        # Requests to this machine itself do not use the proxies that the environment sets.
        "trust_env": urlsplit(base_url).hostname not in LOOPBACK,
    }


def _is_http_url(text: str) -> bool:
    """Returns True if the text is an http URL whose host and port can exist."""
    try:
        parts = urlsplit(text)
        # These raise ValueError for a port above 65535, and for a host name such as `a..b`.
        _ = parts.port, (parts.hostname or "").encode("idna"), httpx2.URL(text)
    except (ValueError, httpx2.InvalidURL):
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def open_http_client(client_class: Callable[..., T], arguments: dict[str, Any], transport: object) -> T:
    """Returns an httpx2 client. Raises SettingsError if the environment names a proxy that cannot be used."""
    try:
        return client_class(**arguments, transport=transport)
    except (ImportError, ValueError, httpx2.InvalidURL) as error:
        # Of a URL that cannot be parsed, httpx2's error may quote a part of the password as the port.
        is_parsed = not isinstance(error, httpx2.InvalidURL)
        reason = (
            str(error) if is_parsed else "its address is not a URL; in a password, write / @ : and # as %2F %40 %3A %23"
        )
        raise SettingsError(
            f"a proxy in the environment cannot be used: {reason}",
            hint="correct or unset ALL_PROXY, HTTP_PROXY and HTTPS_PROXY",
        ) from (error if is_parsed else None)
