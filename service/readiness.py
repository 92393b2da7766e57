"""Whether this process can serve, and what is not as it should be: names, each with a sentence, for /readyz.

Only the database makes it unready: everything else is borne, and told.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from sqlalchemy import Connection

from footplate.contract.bucket import RemoteStore, StoreAway
from footplate.contract.ids import uuid7
from service.artifact_files import Store
from service.deps import Services
from service.redis_client import Numbers
from service.store import nodes, schema
from service.store.rows import NodeRow
from service.store.times import now_ms, text_of

LAG_MS = 5_000
SILENT_MS = 3_600_000
"""A node that has been silent for longer was perhaps meant to go."""
FREE_BYTES = 1 << 30
FREE_SHARE = 0.02

Part = Literal["redis", "control", "ingest", "nodes", "silent_nodes", "artifacts", "disk", "tracing"]
"""What may not be as it should be. docs/guides/monitor.md says of each what goes on meanwhile, and what to do."""
Degraded = dict[Part, str]


def of_sql(conn: Connection) -> tuple[str | None, list[NodeRow]]:
    """Why it cannot serve, if so, and the nodes."""
    if not schema.schema_is_current(conn):
        return "the database has another schema version: run `python -m service migrate`", []
    return None, nodes.everyone(conn)


async def degraded(services: Services, known: Sequence[NodeRow]) -> Degraded:
    redis, control = await asyncio.gather(services.pipe.is_there(), services.control())
    found: Degraded = {}
    if not redis:
        found["redis"] = (
            f"Redis has not answered since {text_of(services.pipe.away_since_ms or now_ms())}: what runs goes on, what "
            "is new is accepted and waits; bring back what FOOTPLATE_REDIS names"
        )
    if control is None:
        found["control"] = _no_control(redis_is_there=redis)
    else:
        found |= _late(control)
    found |= _of_nodes(known, now_ms())
    if services.untraced:
        found["tracing"] = services.untraced
    return found | await asyncio.to_thread(_of_store, services.settings.store)


def _no_control(*, redis_is_there: bool) -> str:
    if not redis_is_there:
        return "whether a control process works cannot be told: it says so through Redis, which is away"
    return "no control process holds the lock, so nothing is placed or ingested: start `python -m service control`"


def _late(control: Numbers) -> Degraded:
    lag = control.get("ingest_lag_ms", 0)
    if lag <= LAG_MS:
        return {}
    return {
        "ingest": f"the oldest event in Redis has waited for {lag / 1000:.0f} s: histories are that late, and whole"
    }


def _of_nodes(known: Sequence[NodeRow], now: int) -> Degraded:
    found: Degraded = {}
    if not any(node.takes_work for node in known):
        here = _reasons(node for node in known if not node.lost)
        found["nodes"] = "no node takes work, so jobs wait" + (f": {here}" if here else "; start `python -m worker`")
    elif here := _reasons(node for node in known if node.is_staying or node.is_turned_away):
        found["nodes"] = f"no work goes to {here}"
    silent = [
        f"{node.name} (last heard {text_of(node.seen_at)})"
        for node in known
        if node.lost and now - node.seen_at < SILENT_MS and not (node.draining or node.drain_requested)
    ]
    if silent:
        found["silent_nodes"] = f"fell silent without a drain: {', '.join(silent)}; what ran there goes on elsewhere"
    return found


def _reasons(nodes: Iterable[NodeRow]) -> str:
    return ", ".join(f"{node.name}: {node.why_not}" for node in nodes if not node.takes_work)


def _of_store(store: Store) -> Degraded:
    if not isinstance(store, RemoteStore):
        return _of_files(store)
    try:
        store.write(b"", f"readyz/{os.uname().nodename}")
    except StoreAway as error:
        return {"artifacts": f"the artifact store cannot be written here: {error}"}
    return {}


def _of_files(artifacts: Path) -> Degraded:
    probe = artifacts / f".readyz-{os.getpid()}-{uuid7()}"
    try:
        artifacts.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        total, _, free = shutil.disk_usage(artifacts)
    except OSError as error:
        return {"artifacts": f"the artifact store {artifacts} cannot be written here: {error.strerror}"}
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
    if free > max(FREE_BYTES, FREE_SHARE * total) or free > total / 2:
        return {}
    text = f"{free / 1e9:.1f} GB are left where the artifacts lie ({artifacts}): checkpoints will fail when it is full"
    return {"disk": text}
