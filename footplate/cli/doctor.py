"""The verb `doctor`: checks this installation, the service and its subsystems, and prints how to fix problems."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from footplate.cli.context import FAILED, UNREACHABLE, Options, Verbs, add_verb, client_of, sentence
from footplate.cli.text import print_json, print_wrapped
from footplate.contract.errors import FootplateError

if TYPE_CHECKING:
    from footplate import Client
    from footplate.sdk.models import Health

CLOCK_SECONDS = 5.0
"""If the clocks of this machine and of the service differ by more than this, `doctor` reports printed ages as wrong."""
SUBSYSTEMS = {
    "database": ("database",),
    "redis": ("redis",),
    "control": ("control", "ingest"),
    "nodes": ("nodes", "silent_nodes"),
    "store": ("artifacts", "disk"),
}
"""The subsystems of the service that are checked, each with the names that /readyz uses for it."""


@dataclass(frozen=True)
class Finding:
    what: str
    is_well: bool
    text: str
    is_note: bool = False
    """True for a finding that is not an error, but that the reader should know."""

    @property
    def mark(self) -> str:
        if not self.is_well:
            return "WRONG"
        return "note " if self.is_note else "ok   "


def add_verbs(verbs: Verbs) -> None:
    add_verb(verbs, "doctor", run_doctor, "check this installation and the service, and print how to fix problems")


def run_doctor(options: Options) -> int:
    findings = list(_examine(client_of(options)))
    for finding in findings:
        if options.json:
            print_json(asdict(finding))
        else:
            print_wrapped(f"{finding.mark}  {finding.what:<9}  {finding.text}", indent=18)
    if any(finding.what == "service" and not finding.is_well for finding in findings):
        return UNREACHABLE
    return 0 if all(finding.is_well for finding in findings) else FAILED


def _examine(client: Client) -> Iterator[Finding]:
    """Checks this machine, then the service and its subsystems, then the key. Stops if the service is unreachable."""
    yield Finding("python", True, f"{platform.python_version()} at {sys.executable}")
    yield Finding("footplate", True, version("footplate"))
    try:
        health = client.health()
    except FootplateError as error:
        yield Finding("service", False, sentence(error))
        return
    is_available = health.status != "unavailable"
    problem = "" if is_available else ", but reports that it is unavailable"
    yield Finding("service", is_available, f"{client.url} answers{problem}")
    yield from _subsystems(health)
    yield from _rights(client)
    yield _key(client)
    yield _clock(health)


def _subsystems(health: Health) -> Iterator[Finding]:
    """Yields a finding for each subsystem, with the text of /readyz if the subsystem is degraded."""
    known_names = [name for names in SUBSYSTEMS.values() for name in names]
    other_subsystems = {name: (name,) for name in health.degraded if name not in known_names}
    for what, names in {**SUBSYSTEMS, **other_subsystems}.items():
        problems = [health.details.get(name, name) for name in names if name in health.degraded]
        if problems:
            yield Finding(what, False, "; ".join(problems))
        elif health.status != "unavailable":
            yield Finding(what, True, "well")


def _rights(client: Client) -> Iterator[Finding]:
    """Yields notes about nodes on which training has more rights than needed, such as root's."""
    with suppress(FootplateError):
        for node in client.nodes():
            if node.exposed:
                yield Finding("rights", True, f"{node.name}: {node.exposed}", is_note=True)


def _key(client: Client) -> Finding:
    try:
        queued_count = len(list(client.jobs.list(state="queued", limit=100)))
    except FootplateError as error:
        return Finding("key", False, sentence(error))
    return Finding("key", True, f"accepted; {queued_count}{'+' if queued_count == 100 else ''} jobs wait")


def _clock(health: Health) -> Finding:
    ahead_seconds = health.clock_ahead_s
    if ahead_seconds is None:
        return Finding("clock", True, "cannot be compared: the service's answer has no time", is_note=True)
    if abs(ahead_seconds) <= CLOCK_SECONDS:
        return Finding("clock", True, "equal to the service's")
    difference = f"{abs(ahead_seconds):.0f} s {'behind' if ahead_seconds > 0 else 'ahead of'} the service's"
    return Finding(
        "clock", False, f"this machine's clock is {difference}, so printed ages are wrong; turn on time synchronisation"
    )
