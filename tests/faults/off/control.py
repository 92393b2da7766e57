"""Switches of the protections around control and the API."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.faults.off import switch


@switch("one control at a time", module="service.store.control_lock")
def lock_nothing(single: Any) -> None:
    """Grants the lock to every control."""
    for lock in (single.FileLock, single.AdvisoryLock):
        lock.try_take = lock.is_held = lambda self: True


@switch("a control writes only while it is sure of its lock", module="service.control.process")
def always_sure(control: Any) -> None:
    control.Control._is_alone = lambda self: True


@switch("a job is stored before it is acknowledged", module="service.api.jobs")
def answer_first(jobs: Any) -> None:
    """Sends the answer before the transaction is committed."""
    from service.jobs.submit import Submitted, new_job

    async def create_job(request: Any, response: Any) -> Any:
        services = jobs.services_of(request)
        raw = await jobs.read_body(request)
        spec = jobs.accept_for(services, jobs.read_json(raw)).spec
        words = {"project": spec.project, "spec": spec, "spec_json": spec.model_dump_json(), "now": jobs.now_ms()}
        words["job_id"] = jobs.new_job_id()
        write = jobs.Submission(**words, idempotency=jobs.idempotency(request, raw)).write
        asyncio.get_running_loop().call_later(0.5, lambda: asyncio.ensure_future(services.db.write(write)))
        row = new_job(**words)
        return jobs.created(Submitted(row, replayed=False, response=None), services, response, 201, jobs.views.job(row))

    (route,) = (item for item in jobs.router.routes if item.operation_id == "create_job")
    route.dependant.call = create_job


@switch("one job for each Idempotency-Key", module="service.jobs.submit")
def ignore_idempotency_keys(submit: Any) -> None:
    submit._replay = lambda conn, use, job, response: None


@switch("a reader's cursor", module="service.api.stream")
def read_from_the_start(stream: Any) -> None:
    stream.read_number = lambda text, name, default: default if name == "max_hz" else 0
