"""Which environment variables a job may set, and which secrets it may name.

The operator lists names, or beginnings that end in a star: `FOOTPLATE_ENV_ALLOWED=HF_*,MY_FLAG`. What decides about
the process before a job's code runs is never among them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from footplate.contract.body import pointer_to
from footplate.contract.errors import Problem, SettingsError, did_you_mean
from footplate.contract.variables import OF_SECRETS, PREFIX

HARMLESS = frozenset(
    {"CUDA_LAUNCH_BLOCKING", "MAX_JOBS", "NCCL_DEBUG", "TOKENIZERS_PARALLELISM", "TORCH_CUDA_ARCH_LIST"}
)
SETTING = "FOOTPLATE_ENV_ALLOWED"
SHORTEST_SECRET = 6
"""Characters. What is taken out of every line must not be a word that every line has."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ALLOWED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?")
_NODES_OWN = re.compile(
    r"LD_.*|PYTHON.*|FOOTPLATE_.*|OMP_.*|MKL_.*|OPENBLAS_.*|TMPDIR|PATH|HOME|CUDA_VISIBLE_DEVICES|TORCH_EXTENSIONS_DIR"
    r"|(LOCAL_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)"
)
"""Read before a job's code runs, or the node's to say: set here, they would do nothing or harm."""


def _allowed(text: str) -> str:
    for one in entries(text):
        if not _ALLOWED.fullmatch(one):
            raise ValueError(f"{one!r} is neither a variable's name nor the beginning of some, such as HF_*")
    return text


EnvAllowed = Annotated[str, AfterValidator(_allowed)]


def entries(allowed: str) -> list[str]:
    return [one.strip() for one in allowed.split(",") if one.strip()]


def refused_env(env: Mapping[str, str], allowed: str) -> list[Problem]:
    """What a job may not set, each with what would work."""
    return [problem for name in env if (problem := _refused(name, allowed))]


def _refused(name: str, allowed: str) -> Problem | None:
    where = pointer_to("env", name)
    if not _NAME.fullmatch(name):
        return Problem(where, "bad_name", f"{name[:80]!r} is no name of a variable", "letters, digits and '_'")
    if _NODES_OWN.fullmatch(name):
        return Problem(where, "env_not_allowed", f"{name} is for the node to say, and no job can set it")
    listed = entries(allowed)
    if name in HARMLESS or any(name == one or (one.endswith("*") and name.startswith(one[:-1])) for one in listed):
        return None
    known = sorted({*HARMLESS, *listed})
    hint = did_you_mean(name, known) or f"the operator lists it in {SETTING}, on service and nodes"
    return Problem(where, "env_not_allowed", f"{name} is not among what jobs may set: {', '.join(known)}", hint)


def secrets_of(environ: Mapping[str, str]) -> dict[str, str]:
    """What this node holds, by the names that specs use. SettingsError for one that could not be kept secret."""
    found = {}
    for variable, value in environ.items():
        name = variable.removeprefix(PREFIX + OF_SECRETS)
        if name == variable or not value:
            continue
        if not _NAME.fullmatch(name) or _NODES_OWN.fullmatch(name):
            raise SettingsError(f"{variable} cannot be used: {name!r} is no name that a job's secret can have.")
        if len(value) < SHORTEST_SECRET:
            raise SettingsError(
                f"{variable} cannot be used: a secret has {SHORTEST_SECRET} characters or more, because it is taken "
                "out of all that a job says."
            )
        found[name] = value
    return found


def unknown_secrets(names: Iterable[str], known: Iterable[str]) -> list[Problem]:
    there = sorted(known)
    return [
        Problem(
            pointer_to("secrets", index),
            "unknown_secret",
            f"no node has a secret {name!r}; known: {', '.join(there) or 'none'}",
            did_you_mean(name, there) or f"its value is set on the nodes, as {PREFIX}{OF_SECRETS}{name}",
        )
        for index, name in enumerate(names)
        if name not in there
    ]


class Hidden:
    """Takes secrets out of what is told: values, and the lines of those that have several."""

    def __init__(self, secrets: Iterable[str]) -> None:
        lines = {line for secret in secrets for line in [secret, *secret.splitlines()] if len(line) >= SHORTEST_SECRET}
        # The longest first: one may hold another.
        self._pattern = re.compile("|".join(map(re.escape, sorted(lines, key=len, reverse=True)))) if lines else None

    def __call__(self, value: Any) -> Any:
        """The same JSON value without them."""
        return value if self._pattern is None else self._clean(value)

    def _clean(self, value: Any) -> Any:
        if isinstance(value, str):
            assert self._pattern is not None
            return self._pattern.sub("***", value)
        if isinstance(value, dict):
            return {self._clean(key): self._clean(item) for key, item in value.items()}
        return [self._clean(item) for item in value] if isinstance(value, list) else value
