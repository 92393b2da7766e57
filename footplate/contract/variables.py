"""The environment variables that anything of ours reads. One that is not among them is misspelt, and is said at the
start: whoever set FOOTPLATE_LEASE_SECOND believes that his leases are longer now."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches

PREFIX = "FOOTPLATE_"

SETTINGS = frozenset({
    "ALLOWED_ORIGINS", "API_KEY", "ARTIFACTS", "BEAT_SECONDS", "CLAIM_SECONDS", "CODE", "DATA", "DATABASE",
    "DRAIN_SECONDS", "ENV_ALLOWED",
    "GPUS", "HOME", "HOST", "HUB", "HUB_CACHE",
    "JOURNAL_MAX_MB", "KILL_SECONDS", "LEASE_SECONDS", "MODELS", "NODE_ADDRESS", "NODE_HOME",
    "NODE_NAME", "PING_SECONDS", "POLL_SECONDS", "POOL", "PORT", "RATE_PER_ADDRESS", "RATE_PER_KEY", "READERS", "REDIS",
    "RETRY_BACKOFF_SECONDS", "RING_SECONDS", "SLOTS", "START_SECONDS", "STOP_SECONDS", "STREAMS_PER_KEY",
    "STORES_ALLOW", "STORES_MAX_MB", "TRAINING_USER",
    "UPLOAD_MAX_MB", "URL", "URL_FILE", "WEBHOOKS_ALLOW", "WRITERS",
})  # fmt: skip
"""Of every program of ours: one environment may serve them all. docs/settings.md says what each means."""
OF_TESTS = frozenset({"CHROMIUM", "SOAK_SECONDS", "TEST_EXAMPLES", "TEST_SEED"})
"""What the tests read; the programs that they start inherit it."""

OF_SECRETS = "SECRET_"
"""FOOTPLATE_SECRET_WANDB_API_KEY holds, on a node, what a spec calls by the name WANDB_API_KEY."""

_OF_KUBERNETES = re.compile(r"(.+_)?(SERVICE_(HOST|PORT(_\w+)?)=.*|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?=.*|=\w+://.*))")
"""It tells every container where each Service is: of one that is called footplate-api, in FOOTPLATE_API_PORT."""


def unknown(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each variable that nobody reads. Empty means unset, as everywhere."""
    ours = {name.removeprefix(PREFIX): value for name, value in environ.items() if name.startswith(PREFIX) and value}
    return [
        f"{PREFIX}{name} is no setting: {_instead(name)}"
        for name, value in sorted(ours.items())
        if name not in SETTINGS | OF_TESTS
        and not name.startswith(OF_SECRETS)
        and not _OF_KUBERNETES.fullmatch(f"{name}={value}")
    ]


def _instead(name: str) -> str:
    near = get_close_matches(name, SETTINGS, n=1, cutoff=0.6)
    return f"did you mean {PREFIX}{near[0]}?" if near else "unset it, or look for the one you mean in docs/settings.md."
