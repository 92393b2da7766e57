"""Settings are environment variables, read once and frozen. SettingsError lists all wrong values at once."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError

from footplate.contract.errors import SettingsError
from footplate.contract.fields import PATTERNS
from footplate.contract.variables import PREFIX, RENAMED, unknown

log = logging.getLogger("footplate.settings")


class Settings(BaseModel):
    """The settings of a process. The field `lease_seconds` is read from FOOTPLATE_LEASE_SECONDS. Empty means unset."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Self:
        source = _with_new_names(os.environ if environ is None else environ)
        values = {name: source[variable(name)] for name in cls.model_fields if source.get(variable(name))}
        sentences, cause = unknown(source), None
        try:
            settings = cls.model_validate(values)
        except ValidationError as error:
            sentences, cause = sentences + [sentence(detail) for detail in error.errors()], error
        if sentences:
            raise SettingsError("\n".join(sentences)) from cause
        return settings


def _with_new_names(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables under their current names, and logs older names. A value under the current name wins."""
    variables = dict(environ)
    for old_name, new_name in RENAMED.items():
        if value := environ.get(PREFIX + old_name):
            log.warning("%s%s is the older name of %s%s: rename it", PREFIX, old_name, PREFIX, new_name)
            variables[PREFIX + new_name] = environ.get(PREFIX + new_name) or value
    return variables


def variable(field: str) -> str:
    return PREFIX + field.upper()


def sentence(error: Any) -> str:
    """Returns pydantic's error as a sentence for the operator, without values that may contain a password."""
    pattern = error.get("ctx", {}).get("pattern")
    reason = PATTERNS.get(pattern) or str(error["msg"]).removeprefix("Value error, ")
    if not error["loc"]:
        return f"{reason}."
    value = str(error["input"])
    assignment = "" if "@" in value else f"={value!r}"
    return f"{variable(str(error['loc'][0]))}{assignment} cannot be used: {reason}."


def expanded(path: str | os.PathLike[str]) -> str:
    """Replaces a `~` at the beginning by the home folder, because no shell does so in a unit of systemd or a .env file.

    Raises ValueError if there is no such user.
    """
    text = os.path.expanduser(path)
    if text.startswith("~"):
        raise ValueError("~ and a name stand for a user's home folder, and there is no such user; write the whole path")
    return str(text)


LocalPath = Annotated[Path, BeforeValidator(expanded)]
"""A file or folder of this machine. It may begin with `~`."""


def _redis_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss", "unix") or not (parts.netloc or parts.path):
        raise ValueError("write a URL such as redis://host:6379/0, rediss://… or unix:///path/of/socket")
    _ = parts.port  # Raises ValueError if the port is not a number.
    return url


RedisUrl = Annotated[str, AfterValidator(_redis_url)]
