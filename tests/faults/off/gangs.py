"""Switches of the protections around a job on several nodes."""

from __future__ import annotations

from typing import Any

from tests.faults.off import switch


@switch("all nodes of a job at once, or none", module="service.jobs.placement")
def take_what_there_is(place: Any) -> None:
    def choose(self: Any) -> Any:
        return [free for _, _, free in self._heap if free.fits(self.needs)][: self.needs.nodes] or None

    place._Shape.choose = choose


@switch("what waits for several nodes holds what it will get", module="service.jobs.placement")
def hold_nothing(place: Any) -> None:
    place._Shape.reserve = lambda self: False


@switch("nothing is held for who waits for a node without work", module="service.jobs.placement")
def hold_for_whoever_waits(place: Any) -> None:
    """Reserves any running node, also for jobs whose nodes may never take work again."""

    def reserve(self: Any) -> bool:
        for free in self._fitting[: self.needs.nodes]:
            free.take(self.needs)
        return bool(self._fitting)

    place._Shape.reserve = reserve


@switch("ranks begin once every node has claimed", module="service.jobs.gang")
def begin_at_once(gang: Any) -> None:
    gang.rendezvous = lambda parts: parts[0].meets_at if len(parts) > 1 else None


@switch("a claim has its time", module="service.jobs.rescue")
def wait_for_every_claim(rescue: Any) -> None:
    rescue._Look._why_not_claimed = lambda self, unclaimed: None


@switch("a part that fails ends the others", module="service.jobs.gang")
def let_the_others_run(gang: Any) -> None:
    gang.stop_of = lambda parts: None


@switch("an attempt is over when its last part is", module="service.events.ingest")
def over_with_the_first(ingest: Any) -> None:
    """Ends the attempt with its first part, whatever still runs elsewhere."""
    original = ingest.attempts.sources_of

    class Hasty:
        def __getattr__(self, name: str) -> Any:
            return getattr(attempts, name)

        def sources_of(self, *which: Any) -> Any:
            parts = original(*which)
            return [part for part in parts if part.done is not None] or parts

    attempts, ingest.attempts = ingest.attempts, Hasty()


@switch("who only lost another is not the reason", module="service.jobs.gang")
def believe_the_first(gang: Any) -> None:
    gang.fails_all = lambda end: end.ending == "failed"


@switch("a part that does not end with the others is given up", module="service.jobs.rescue")
def wait_for_its_end(rescue: Any) -> None:
    rescue._Look._overran_its_end = lambda self: False
