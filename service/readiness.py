"""The state of the service for /readyz: the reason why it cannot serve, or the dependencies that are degraded.

Only a database that is unreachable or has another schema makes a process unready. If Redis, control, the nodes or the
artifact store fail, the process still serves, and reports them as degraded.
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

from footplate.contract.bucket import RemoteStore, StoreUnreachable
from footplate.contract.ids import uuid7
from service.artifact_files import Store
from service.deps import Services
from service.store import nodes, schema
from service.store.row_types import NodeRow
from service.store.times import now_ms, text_of

LAG_MS = 5_000
SILENT_MS = 3_600_000
"""A lost node is reported for this long, because after that it was probably removed on purpose."""
FREE_BYTES = 1 << 30
FREE_SHARE = 0.02
NO_CONTROL = "no control process holds the lock, so nothing is placed or ingested: start `python -m service control`"
CONTROL_UNKNOWN = "the state of the control process is unknown, because it reports through Redis, which is unreachable"

Dependency = Literal["redis", "control", "ingest", "nodes", "silent_nodes", "artifacts", "disk", "tracing"]
"""The dependencies that may be degraded. docs/guides/monitor.md says what each means and what to do."""
Degraded = dict[Dependency, str]


def of_sql(conn: Connection) -> list[NodeRow]:
    """Returns the nodes. Raises SettingsError if this process cannot serve with this database."""
    schema.require_current(conn)
    return nodes.all_nodes(conn)


async def degraded(services: Services, cluster: Sequence[NodeRow]) -> Degraded:
    redis, control = await asyncio.gather(services.notifier.is_there(), services.control())
    conditions: Degraded = {}
    if not redis:
        conditions["redis"] = (
            f"Redis has not answered since {text_of(services.notifier.away_since_ms or now_ms())}. Running jobs go on, "
            "and new jobs wait: restart the Redis that FOOTPLATE_REDIS names"
        )
    if control is None:
        conditions["control"] = NO_CONTROL if redis else CONTROL_UNKNOWN
    elif (lag := control.get("ingest_lag_ms", 0)) > LAG_MS:
        waiting = f"the oldest event in Redis has waited for {lag / 1000:.0f} s"
        conditions["ingest"] = f"{waiting}: histories are late, but lose nothing"
    conditions |= _of_nodes(cluster, now_ms())
    if services.untraced:
        conditions["tracing"] = services.untraced
    return conditions | await asyncio.to_thread(_of_store, services.settings.store)


def _of_nodes(cluster: Sequence[NodeRow], now: int) -> Degraded:
    conditions: Degraded = {}
    if not any(node.takes_work for node in cluster):
        reasons = _reasons(node for node in cluster if not node.lost)
        hint = f": {reasons}" if reasons else "; start `python -m worker`"
        conditions["nodes"] = f"no node takes work, so jobs wait{hint}"
    elif reasons := _reasons(node for node in cluster if node.is_up):
        conditions["nodes"] = f"these nodes get no work: {reasons}"
    silent = [
        f"{node.name} (last report at {text_of(node.seen_at)})"
        for node in cluster
        if node.lost and now - node.seen_at < SILENT_MS and not node.has_left
    ]
    if silent:
        conditions["silent_nodes"] = (
            f"these nodes stopped reporting without a drain: {', '.join(silent)}; their jobs go on elsewhere"
        )
    return conditions


def _reasons(nodes: Iterable[NodeRow]) -> str:
    return ", ".join(f"{node.name}: {node.why_not}" for node in nodes if not node.takes_work)


def _of_store(store: Store) -> Degraded:
    if not isinstance(store, RemoteStore):
        return _of_files(store)
    try:
        store.write(b"", f"readyz/{os.uname().nodename}")
    except StoreUnreachable as error:
        return {"artifacts": f"this process cannot write to the artifact store: {error}"}
    return {}


def _of_files(artifacts: Path) -> Degraded:
    probe = artifacts / f".readyz-{os.getpid()}-{uuid7()}"
    try:
        artifacts.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        total, _, free = shutil.disk_usage(artifacts)
    except OSError as error:
        return {"artifacts": f"this process cannot write to the artifact store {artifacts}: {error.strerror}"}
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
    if free > max(FREE_BYTES, FREE_SHARE * total) or free > total / 2:
        return {}
    text = f"the artifact store {artifacts} has {free / 1e9:.1f} GB left: when the disk is full, checkpoints fail"
    return {"disk": text}
