"""Switches of the protections between programs of different versions."""

from __future__ import annotations

from typing import Any

from tests.faults.off import switch


@switch("a stranger's protocol is turned away", module="service.jobs.beat")
def speak_to_everyone(beat: Any) -> None:
    beat.SPOKEN = range(-1000, 1000)


@switch("the protocol before is served", module="service.jobs.beat")
def speak_to_equals_only(beat: Any) -> None:
    beat.SPOKEN = (beat.PROTOCOL, beat.PROTOCOL)
