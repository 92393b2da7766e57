"""Switches of the protections between programs of different versions."""

from __future__ import annotations

from typing import Any

from tests.faults.off import switch


@switch("a later protocol is refused", module="service.jobs.beat")
def accept_every_protocol(beat: Any) -> None:
    beat.SUPPORTED_PROTOCOLS = range(-1000, 1000)


@switch("the previous protocol is served", module="service.jobs.beat")
def accept_only_the_same_protocol(beat: Any) -> None:
    beat.SUPPORTED_PROTOCOLS = (beat.PROTOCOL, beat.PROTOCOL)
