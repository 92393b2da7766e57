"""`doctor`: what is wrong here, and what would mend it."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from footplate.cli.context import FAILED, UNREACHABLE, Given, Verbs, add_verb, client_of, sentence
from footplate.cli.text import say, say_json
from footplate.contract.errors import FootplateError

if TYPE_CHECKING:
    from footplate import Client
    from footplate.sdk.models import Health

CLOCK_SECONDS = 5.0
"""Further apart, two clocks make ages and times mislead. Nothing is decided by them."""
PARTS = {
    "database": ("database",),
    "redis": ("redis",),
    "control": ("control", "ingest"),
    "nodes": ("nodes", "silent_nodes"),
    "store": ("artifacts", "disk"),
}
"""What is looked at, by the names that /readyz has for what is not as it should be."""


@dataclass(frozen=True)
class Finding:
    what: str
    is_well: bool
    said: str
    is_note: bool = False
    """Nothing is broken, and its reader should know it all the same."""

    @property
    def mark(self) -> str:
        if not self.is_well:
            return "WRONG"
        return "note " if self.is_note else "ok   "


def add_verbs(verbs: Verbs) -> None:
    add_verb(verbs, "doctor", run_doctor, "what is wrong here, and what would mend it")


def run_doctor(given: Given) -> int:
    found = list(_examine(client_of(given)))
    for one in found:
        say_json(asdict(one)) if given.json else say(f"{one.mark}  {one.what:<9}  {one.said}")
    if any(one.what == "service" and not one.is_well for one in found):
        return UNREACHABLE
    return 0 if all(one.is_well for one in found) else FAILED


def _examine(client: Client) -> Iterator[Finding]:
    """The nearest first: what is further away cannot be seen through something that is broken."""
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
    """The service's own sentences: each says what is wrong since when, and most what to do."""
    known = [name for names in PARTS.values() for name in names]
    others = {name: (name,) for name in health.degraded if name not in known}
    for what, names in {**PARTS, **others}.items():
        wrong = [health.details.get(name, name) for name in names if name in health.degraded]
        if wrong:
            yield Finding(what, False, "; ".join(wrong))
        elif health.status != "unavailable":
            yield Finding(what, True, "well")


def _rights(client: Client) -> Iterator[Finding]:
    """Whoever trusts all who may submit can live with it, so nothing is wrong; but they should know."""
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
