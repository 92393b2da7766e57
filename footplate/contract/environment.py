"""The environment variables that a job may set, and the secrets that it may name.

The operator lists names, or prefixes that end in a star: `FOOTPLATE_ENV_ALLOWED=HF_*,MY_FLAG`. Variables that affect
the process before the job's code runs are never allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from footplate.contract.body import pointer_to
from footplate.contract.errors import Problem, SettingsError, did_you_mean
from footplate.contract.variables import DROP_IN, OF_SECRETS, PREFIX

HARMLESS = frozenset(
    {
        "CUDA_LAUNCH_BLOCKING", "MAX_JOBS", "NCCL_DEBUG", "TOKENIZERS_PARALLELISM", "TORCH_CUDA_ARCH_LIST",
        DROP_IN,
    }
)  # fmt: skip
SETTING = "FOOTPLATE_ENV_ALLOWED"
SHORTEST_SECRET = 6
"""The fewest characters of a secret. A secret is masked wherever it occurs, so a short one would mask common words."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ALLOWED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?")
_NODES_OWN = re.compile(
    r"LD_.*|PYTHON.*|FOOTPLATE_.*|OMP_.*|MKL_.*|OPENBLAS_.*|TMPDIR|PATH|HOME|CUDA_VISIBLE_DEVICES|TORCH_EXTENSIONS_DIR"
    r"|(LOCAL_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)"
)
"""Variables that are read before a job's code runs, or that the node sets. A job must not set them."""


def _allowed(text: str) -> str:
    for entry in entries(text):
        if not _ALLOWED.fullmatch(entry):
            raise ValueError(f"{entry!r} is neither the name of a variable nor a prefix such as HF_*")
    return text


EnvAllowed = Annotated[str, AfterValidator(_allowed)]


def entries(allowed: str) -> list[str]:
    return [entry.strip() for entry in allowed.split(",") if entry.strip()]


def refused_env(env: Mapping[str, str], allowed: str) -> list[Problem]:
    """Returns a problem for each variable that a job may not set."""
    return [problem for name in env if (problem := _refused(name, allowed))]


def _refused(name: str, allowed: str) -> Problem | None:
    place = pointer_to("env", name)
    if not _NAME.fullmatch(name):
        return Problem(place, "bad_name", f"{name[:80]!r} is not the name of a variable", "use letters, digits and '_'")
    if _NODES_OWN.fullmatch(name) and name != DROP_IN:
        return Problem(place, "env_not_allowed", f"{name} is set by the node, and no job can set it", "leave it out")
    entry_list = entries(allowed)
    if name in HARMLESS or any(
        name == entry or (entry.endswith("*") and name.startswith(entry[:-1])) for entry in entry_list
    ):
        return None
    allowed_names = sorted({*HARMLESS, *entry_list})
    hint = did_you_mean(name, allowed_names) or f"the operator can allow it in {SETTING}, on service and nodes"
    return Problem(place, "env_not_allowed", f"{name} is not among the allowed names: {', '.join(allowed_names)}", hint)


def secrets_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the node's secrets by name, from its environment. Raises SettingsError for a secret too short to mask."""
    secrets = {}
    for variable, value in environ.items():
        name = variable.removeprefix(PREFIX + OF_SECRETS)
        if name == variable or not value:
            continue
        if not _NAME.fullmatch(name) or _NODES_OWN.fullmatch(name):
            raise SettingsError(
                f"{variable} cannot be used: {name!r} is not a name that a job's secret can have. A name may contain "
                "letters, digits and '_', and must not be a variable that the node sets."
            )
        if len(value) < SHORTEST_SECRET:
            raise SettingsError(
                f"{variable} cannot be used: a secret must have {SHORTEST_SECRET} characters or more, because it is "
                "masked in all output of a job."
            )
        secrets[name] = value
    return secrets


def unknown_secrets(names: Iterable[str], secret_names: Iterable[str]) -> list[Problem]:
    known_names = sorted(secret_names)
    return [
        Problem(
            pointer_to("secrets", index),
            "unknown_secret",
            f"no node has a secret {name!r}. The nodes' secrets: {', '.join(known_names) or 'none'}",
            did_you_mean(name, known_names) or f"set its value on the nodes, as {PREFIX}{OF_SECRETS}{name}",
        )
        for index, name in enumerate(names)
        if name not in known_names
    ]


DEEPEST = 100
"""The levels of nested lists and objects in which secrets are masked. Users' code may send events with more."""


class SecretMask:
    """Masks secrets in events and logs. Each line of a secret with several lines is masked as well."""

    def __init__(self, secrets: Iterable[str]) -> None:
        lines = {line for secret in secrets for line in [secret, *secret.splitlines()] if len(line) >= SHORTEST_SECRET}
        # Longer secrets are masked first, because one secret may contain another.
        self._pattern = re.compile("|".join(map(re.escape, sorted(lines, key=len, reverse=True)))) if lines else None

    def __call__(self, value: Any) -> Any:
        """Returns the same JSON value without secrets."""
        return value if self._pattern is None else self._clean(value)

    def _clean(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, str):
            assert self._pattern is not None
            return self._pattern.sub("***", value)
        if depth > DEEPEST and isinstance(value, dict | list):
            return "nested too deep"
        if isinstance(value, dict):
            return {self._clean(key): self._clean(item, depth + 1) for key, item in value.items()}
        return [self._clean(item, depth + 1) for item in value] if isinstance(value, list) else value
