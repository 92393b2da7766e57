"""The service's address and the key, from arguments or from the environment."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import httpx2
from pydantic import SecretStr

from footplate.contract.errors import SettingsError
from footplate.contract.settings import Settings

LOOPBACK = ("localhost", "127.0.0.1", "::1")


class ClientSettings(Settings):
    url: str = "http://127.0.0.1:8080"
    """The address at which the client and the command find the service."""
    api_key: SecretStr | None = None
    """The key that they send with each request."""


def http_arguments(url: str | None, api_key: str | None, timeout: float) -> dict[str, Any]:
    """Returns the arguments for an HTTP client."""
    settings = ClientSettings.from_environment()
    base = (url or settings.url).rstrip("/")
    if "://" not in base:
        base = f"http://{base}"
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise SettingsError(f"{base!r} is not the address of a service", hint="it looks like http://127.0.0.1:8080")
    key = api_key or (settings.api_key.get_secret_value() if settings.api_key else None)
    return {
        "base_url": base,
        "headers": {"Authorization": f"Bearer {key}"} if key else {},
        "timeout": httpx2.Timeout(timeout, connect=min(timeout, 10.0)),
        # No proxy leads to this machine itself, even if the environment sets one.
        "trust_env": parts.hostname not in LOOPBACK,
    }
