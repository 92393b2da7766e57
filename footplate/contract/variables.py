"""The names of the environment variables of all our programs, and the check for unknown names at start-up.

Without the check, a misspelt FOOTPLATE_LEASE_SECOND would have no effect, and nobody would notice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches

PREFIX = "FOOTPLATE_"

SETTINGS = frozenset({
    "ALLOWED_ORIGINS", "API_KEY", "ARTIFACTS", "BEAT_SECONDS", "CLAIM_SECONDS", "CODE", "DATA", "DATABASE",
    "DRAIN_SECONDS", "ENV_ALLOWED", "EXTERNAL_SECONDS",
    "GPUS", "HOME", "HOST", "HUB", "HUB_CACHE",
    "JOURNAL_MAX_MB", "KILL_SECONDS", "LEASE_SECONDS", "MODELS", "NODE_ADDRESS", "NODE_HOME", "OPENAI_MODELS",
    "NODE_NAME", "PING_SECONDS", "POLL_SECONDS", "POOL", "PORT", "RATE_PER_ADDRESS", "RATE_PER_KEY", "READERS", "REDIS",
    "RETRY_BACKOFF_SECONDS", "RESEND_SECONDS", "SLOTS", "START_SECONDS", "STOP_SECONDS", "STREAMS_PER_KEY",
    "STORES_ALLOW", "STORES_MAX_MB", "TRAINING_USER",
    "UPLOAD_MAX_MB", "URL", "URL_FILE", "WEBHOOKS_ALLOW", "WRITERS",
})  # fmt: skip
"""The settings of all programs, which may share one environment. docs/reference/settings.md has their meanings."""
RENAMED = {"RING_SECONDS": "RESEND_SECONDS"}
"""The older names of settings, which are still read, each with the current name."""
OF_TESTS = frozenset({"CHROMIUM", "SOAK_SECONDS", "TEST_EXAMPLES", "TEST_SEED"})
"""Variables for the tests. The programs under test inherit the variables and must accept them."""
DROP_IN = f"{PREFIX}DROP_IN"
"""The variable that a job sets to 1 in its `env` to run libraries on our Trainer: docs/guides/drop-in.md."""

OF_SECRETS = "SECRET_"
"""FOOTPLATE_SECRET_WANDB_API_KEY on a node holds the secret that specs call WANDB_API_KEY."""

_OF_KUBERNETES = re.compile(r"(.+_)?(SERVICE_(HOST|PORT(_\w+)?)=.*|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?=.*|=\w+://.*))")
"""Variables of Kubernetes in every container. For a Service named footplate-api, one is FOOTPLATE_API_PORT."""


def unknown(environ: Mapping[str, str]) -> list[str]:
    """Returns a sentence for each variable with our prefix that no program reads. Empty variables count as unset."""
    values = {name.removeprefix(PREFIX): value for name, value in environ.items() if name.startswith(PREFIX) and value}
    sentences = []
    for name, value in sorted(values.items()):
        is_ours = name in SETTINGS | RENAMED.keys() | OF_TESTS | {DROP_IN.removeprefix(PREFIX)}
        if not (is_ours or name.startswith(OF_SECRETS) or _OF_KUBERNETES.fullmatch(f"{name}={value}")):
            nearest_names = get_close_matches(name, SETTINGS, n=1, cutoff=0.6)
            advice = "unset it, or look for the one you mean in docs/reference/settings.md."
            hint = f"did you mean {PREFIX}{nearest_names[0]}?" if nearest_names else advice
            sentences.append(f"{PREFIX}{name} is not a setting: {hint}")
    return sentences
