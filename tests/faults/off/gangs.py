"""Switches of the protections around a job on several nodes."""

from __future__ import annotations

from typing import Any

from tests.faults.off import switch


@switch("ranks begin once every node has claimed", module="service.jobs.gang")
def begin_at_once(gang: Any) -> None:
    gang.rendezvous = lambda parts: parts[0].meets_at if len(parts) > 1 else None


@switch("a claim has its time", module="service.jobs.rescue")
def wait_for_every_claim(rescue: Any) -> None:
    rescue._ActiveJob._why_not_claimed = lambda self, unclaimed: None


@switch("a part that fails ends the others", module="service.jobs.gang")
def let_the_others_run(gang: Any) -> None:
    gang.stop_of = lambda parts: None


@switch("a part that only lost another is not the reason", module="service.jobs.gang")
def believe_the_first(gang: Any) -> None:
    gang.fails_all = lambda end: end.ending == "failed"


@switch("a part that does not end with the others is given up", module="service.jobs.rescue")
def wait_for_its_end(rescue: Any) -> None:
    rescue._ActiveJob._overran_its_end = lambda self: False
