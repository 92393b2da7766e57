"""Switches of the protections around a job on several nodes."""

from __future__ import annotations

from typing import Any

from tests.faults.off import switch


@switch("ranks begin once every node has claimed", module="service.jobs.multi_node")
def begin_at_once(multi_node: Any) -> None:
    multi_node.rendezvous = lambda sources: sources[0].rendezvous if len(sources) > 1 else None


@switch("a claim has a deadline", module="service.jobs.rescue")
def wait_for_every_claim(rescue: Any) -> None:
    rescue._ActiveJob._why_not_claimed = lambda self, unclaimed: None


@switch("a failed node ends the others", module="service.jobs.multi_node")
def let_the_others_run(multi_node: Any) -> None:
    multi_node.stop_of = lambda sources: None


@switch("a node that lost another node is not the reason", module="service.jobs.multi_node")
def believe_the_first(multi_node: Any) -> None:
    multi_node.fails_all = lambda end: end.ending == "failed"


@switch("a node that does not end has a deadline", module="service.jobs.rescue")
def wait_for_its_end(rescue: Any) -> None:
    rescue._ActiveJob._overran_its_end = lambda self: False
