"""The verb `doctor`: finds what is wrong here, and says how to fix it."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from footplate.cli.context import FAILED, UNREACHABLE, Given, Verbs, add_verb, client_of, sentence
from footplate.cli.text import say_json, say_wrapped
from footplate.contract.errors import FootplateError

if TYPE_CHECKING:
    from footplate import Client
    from footplate.sdk.models import Health

CLOCK_SECONDS = 5.0
"""The difference from which two clocks make ages and times misleading. No decision depends on them."""
PARTS = {
    "database": ("database",),
    "redis": ("redis",),
    "control": ("control", "ingest"),
    "nodes": ("nodes", "silent_nodes"),
    "store": ("artifacts", "disk"),
}
"""The parts that are checked, with the names that /readyz uses for them."""


@dataclass(frozen=True)
class Finding:
    what: str
    is_well: bool
    said: str
    is_note: bool = False
    """True if nothing is broken, but the reader should know about it."""

    @property
    def mark(self) -> str:
        if not self.is_well:
            return "WRONG"
        return "note " if self.is_note else "ok   "


def add_verbs(verbs: Verbs) -> None:
    add_verb(verbs, "doctor", run_doctor, "find what is wrong here, and how to fix it")


def run_doctor(given: Given) -> int:
    findings = list(_examine(client_of(given)))
    for finding in findings:
        if given.json:
            say_json(asdict(finding))
        else:
            say_wrapped(f"{finding.mark}  {finding.what:<9}  {finding.said}", indent=18)
    if any(finding.what == "service" and not finding.is_well for finding in findings):
        return UNREACHABLE
    return 0 if all(finding.is_well for finding in findings) else FAILED


def _examine(client: Client) -> Iterator[Finding]:
    """Yields findings, the nearest part first, because a broken part hides what is behind it."""
    is_new = sys.version_info >= (3, 11)
    yield Finding(
        "python", is_new, f"{platform.python_version()} at {sys.executable}" + ("" if is_new else "; 3.11 is needed")
    )
    yield Finding("footplate", True, version("footplate"))
    try:
        health = client.health()
    except FootplateError as error:
        yield Finding("service", False, sentence(error))
        return
    is_there = health.status != "unavailable"
    yield Finding("service", is_there, f"{client.url} answers" + ("" if is_there else ", and is unavailable"))
    yield from _parts(health)
    yield from _rights(client)
    yield _key(client)
    yield _clock(health)


def _parts(health: Health) -> Iterator[Finding]:
    """Yields the service's own sentences. Each says what is wrong since when, and most say what to do."""
    known_names = [name for names in PARTS.values() for name in names]
    others = {name: (name,) for name in health.degraded if name not in known_names}
    for what, names in {**PARTS, **others}.items():
        wrong = [health.details.get(name, name) for name in names if name in health.degraded]
        if wrong:
            yield Finding(what, False, "; ".join(wrong))
        elif health.status != "unavailable":
            yield Finding(what, True, "well")


def _rights(client: Client) -> Iterator[Finding]:
    """Yields notes about training with root's rights. This is not an error if all users are trusted."""
    with suppress(FootplateError):
        for node in client.nodes():
            if node.exposed:
                yield Finding("rights", True, f"{node.name}: {node.exposed}", is_note=True)


def _key(client: Client) -> Finding:
    try:
        waiting = len(list(client.jobs.list(state="queued", limit=100)))
    except FootplateError as error:
        return Finding("key", False, sentence(error))
    return Finding("key", True, f"accepted; {waiting}{'+' if waiting == 100 else ''} jobs wait")


def _clock(health: Health) -> Finding:
    ahead = health.clock_ahead_s
    if ahead is None:
        return Finding("clock", True, "cannot be compared: the service's answer has no time", is_note=True)
    if abs(ahead) <= CLOCK_SECONDS:
        return Finding("clock", True, "as the service's")
    how = f"{abs(ahead):.0f} s {'behind' if ahead > 0 else 'ahead of'} the service's"
    return Finding(
        "clock", False, f"this machine's clock is {how}: ages shown here mislead; turn on time synchronisation"
    )
