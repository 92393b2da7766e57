"""Settings come from the environment, are read once and frozen. What is wrong is said in sentences, all at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from contract.errors import SettingsError

PREFIX = "FOOTPLATE_"


class Settings(BaseModel):
    """A process's settings: the field `lease_seconds` is read from FOOTPLATE_LEASE_SECONDS; empty means unset."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Self:
        source = os.environ if environ is None else environ
        given = {name: source[variable(name)] for name in cls.model_fields if source.get(variable(name))}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise SettingsError("\n".join(sentence(one) for one in error.errors())) from error


def variable(field: str) -> str:
    return PREFIX + field.upper()


def sentence(error: Any) -> str:
    where = variable(str(error["loc"][0])) if error["loc"] else "settings"
    return f"{where}={error.get('input')!r} cannot be used: {error['msg']}."
