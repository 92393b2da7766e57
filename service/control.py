from __future__ import annotations
from collections.abc import Callable, Collection
from dataclasses import dataclass
from contract.ids import JobId
from service.settings import ServiceSettings
from service.store.database import Database


@dataclass(slots=True)
class Counts:
    attempts_placed: int = 0
    bells_rung: int = 0
    claims_granted: int = 0
    claims_denied: int = 0
    attempts_lost: int = 0
    attempts_closed: int = 0
    beats: int = 0
    events_stored: int = 0
    events_duplicate: int = 0
    events_ahead: int = 0
    """Jumped ahead of the watermark; their journal sends them again."""
    events_dead: int = 0
    events_late: int = 0
    stale_refused: int = 0
    ingest_lag_ms: int = 0
    redis_outages: int = 0
    database_outages: int = 0


class Control:
    def __init__(self, db: Database, settings: ServiceSettings, on_events: Callable[[Collection[JobId]], None] = lambda _: None) -> None:
        self.counts = Counts()
        self.is_active = False
        """Holds the lock and works."""
        self.redis_ok = False

    async def run(self) -> None:
        """Until closed: waits for the lock, then works."""
        raise NotImplementedError

    def poke(self) -> None: ...

    async def close(self) -> None: ...
