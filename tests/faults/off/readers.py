"""Switches of the protections around who holds a connection and does nothing with it."""

from __future__ import annotations

from types import ModuleType

from tests.faults.off import switch


@switch("a slow reader is sent away", module="service.api.stream")
def wait_for_every_reader(stream: ModuleType) -> None:
    stream.SLOW_SECONDS = 1e6


@switch("a request comes in time", module="service.http_timeouts")
def wait_for_every_request(patience: ModuleType) -> None:
    patience.HEAD_SECONDS = 1e6
