"""Settings come from the environment, are read once and frozen. What is wrong is said in sentences, all at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from footplate.contract.errors import SettingsError
from footplate.contract.variables import PREFIX, unknown


class Settings(BaseModel):
    """A process's settings: the field `lease_seconds` is read from FOOTPLATE_LEASE_SECONDS; empty means unset."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Self:
        source = os.environ if environ is None else environ
        given = {name: source[variable(name)] for name in cls.model_fields if source.get(variable(name))}
        wrong, cause = unknown(source), None
        try:
            settings = cls.model_validate(given)
        except ValidationError as error:
            wrong, cause = wrong + [sentence(one) for one in error.errors()], error
        if wrong:
            raise SettingsError("\n".join(wrong)) from cause
        return settings


def variable(field: str) -> str:
    return PREFIX + field.upper()


def sentence(error: Any) -> str:
    """Never with a secret: what disagrees with another setting has all of them as its input, keys included."""
    said = str(error["msg"]).removeprefix("Value error, ")
    if not error["loc"]:
        return f"{said}."
    given = str(error["input"])
    shown = "" if "@" in given else f"={given!r}"
    return f"{variable(str(error['loc'][0]))}{shown} cannot be used: {said}."


def _redis_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss", "unix") or not (parts.netloc or parts.path):
        raise ValueError("it looks like redis://host:6379/0, rediss://… or unix:///path/of/socket")
    _ = parts.port  # raises for what is no port
    return url


RedisUrl = Annotated[str, AfterValidator(_redis_url)]
