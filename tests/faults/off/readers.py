"""Switches of the protections around clients that hold a connection without using it."""

from __future__ import annotations

from typing import Any

from tests.faults.off import switch


@switch("a slow reader is disconnected", module="service.api.stream")
def wait_for_every_reader(stream: Any) -> None:
    stream.SLOW_SECONDS = 1e6


@switch("a request has a deadline", module="service.http_timeouts")
def wait_for_every_request(patience: Any) -> None:
    patience.HEAD_SECONDS = 1e6
