"""Switches of the protections around time."""

from __future__ import annotations

import time
from typing import Any

from tests.faults.off import switch


@switch("leases are timed by a clock that does not jump", module="service.jobs.rescue")
def time_by_the_wall(rescue: Any) -> None:
    """Measures leases by the wall clock."""
    timers = rescue.Timers

    def by_the_wall(method: Any) -> Any:
        return lambda self, *args: method(self, *args[:-1], time.time())

    for name in ("renew", "restart", "elapsed"):
        setattr(timers, name, by_the_wall(getattr(timers, name)))
