"""Runs one role of the service: `python -m service api | control | all | migrate | backup FOLDER`."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

import uvloop

from footplate.contract.errors import FootplateError, SettingsError
from footplate.contract.ids import JobId
from footplate.contract.tracing import read_trace_settings
from service.app import create_app
from service.auth import Gatekeeper
from service.backup import back_up
from service.caches import Catalogues, WebhookProjects
from service.control.process import Control
from service.deps import Services
from service.events.tail import Tail
from service.prometheus_metrics import Meters
from service.redaction import Redacting
from service.redis_client import Numbers, RedisNotifier
from service.server import Server, listen
from service.settings import ServiceSettings
from service.store import schema
from service.store.database import Database
from service.tracing import Untraced
from service.tracing import log as traces_log

log = logging.getLogger("footplate")

ROLES = {
    "api": "answers requests. Any number of such processes may run, and any may be killed at any time.",
    "control": "places, dispatches, ingests, rescues, prunes. One process works, and the others wait for its lock.",
    "all": "runs both in one process",
    "migrate": "upgrades the database to this version's schema",
    "backup": "copies the database and the artifacts into a new folder while the service runs",
}


def main(argv: Sequence[str] | None = None) -> int:
    role, folder = _arguments(argv)
    _log_plainly()
    try:
        settings = ServiceSettings.from_environment()
        if settings.api_key is not None:
            _log_plainly(settings.api_key.get_secret_value())
        if role == "migrate":
            schema.migrate(settings.database_url)
            log.info("the database is at version %s, which this service needs", schema.newest())
            return 0
        if folder is not None:
            back_up(settings, folder)
            return 0
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run(role, settings))
    except SettingsError as error:
        print(error.message, file=sys.stderr)
        return 2
    except FootplateError as error:
        print("; ".join(filter(None, [error.message, error.hint])), file=sys.stderr)
        return 1


async def run(role: str, settings: ServiceSettings) -> int:
    """Runs the role until a signal, or until control fails. Returns the exit status."""
    db = Database(settings.database_url, settings.readers, settings.writers)
    tracing = _tracing(role)
    try:
        db.read_now(schema.require_current)
        # Imported modules are never garbage. Without the freeze, each full collection would take 100 ms.
        gc.collect()
        gc.freeze()
        if role == "control":
            return await _control(db, settings, tracing)
        return await _serve(db, settings, tracing, with_control=role == "all")
    finally:
        await tracing.close()
        await asyncio.to_thread(db.close)


def _tracing(role: str) -> Untraced:
    """Returns the object that sends OpenTelemetry traces of this process, or that sends nothing if traces are off."""
    settings = read_trace_settings(os.environ)
    tracing = Untraced()
    if settings.is_on:
        # OpenTelemetry's SDK is an optional package, and slow to import.
        from service.spans import Tracing

        tracing = Tracing(role)
        traces_log.info("traces are sent, because the OTEL_ variables request them")
    if settings.wrong:
        traces_log.warning("%s", settings.wrong)
    tracing.wrong = settings.wrong
    return tracing


async def _serve(db: Database, settings: ServiceSettings, tracing: Untraced, *, with_control: bool) -> int:
    tail = Tail(db)
    notifier = RedisNotifier(settings.redis, tail.wake)

    def notify(job_ids: Iterable[JobId]) -> None:
        jobs = list(job_ids)
        tail.wake(jobs)
        notifier.announce(jobs)

    control = Control(db, settings, await tracing.following(db, notify)) if with_control else None

    # While this process waits for control's lock, control is another process.
    def wake_control() -> None:
        wake = control.wake if control and control.is_active else notifier.wake_control
        wake()

    async def numbers() -> Numbers | None:
        numbers_here = await control.numbers() if control else None
        return await notifier.control() if numbers_here is None else numbers_here

    services = Services(
        settings=settings,
        db=db,
        tail=tail,
        catalogues=Catalogues(db),
        gatekeeper=Gatekeeper(settings, db),
        meters=Meters(),
        notifier=notifier,
        webhooks=WebhookProjects(db),
        wake_control=wake_control,
        control=numbers,
        untraced=tracing.wrong,
    )
    server = Server(tracing.around(create_app(services)), settings, listen(settings), on_stop=tail.close)
    notifier.start(control.numbers if control else None)
    caches = (services.catalogues, services.gatekeeper.keyring, services.webhooks)
    for cache in caches:
        await cache.start()
    try:
        return await _until_stopped(server.serve(), server.stop, control)
    finally:
        for cache in caches:
            await cache.close()
        await notifier.close()


async def _control(db: Database, settings: ServiceSettings, tracing: Untraced) -> int:
    notifier = RedisNotifier(settings.redis)
    control = Control(db, settings, await tracing.following(db, notifier.announce))
    notifier.start(control.numbers)
    stop_event = asyncio.Event()
    try:
        return await _until_stopped(stop_event.wait(), stop_event.set, control)
    finally:
        await notifier.close()


async def _until_stopped(work: Coroutine[Any, Any, Any], stop: Callable[[], None], control: Control | None) -> int:
    """Runs `work` until a signal calls `stop`. If control fails, the process ends, so that its manager restarts it."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    working = asyncio.create_task(work)
    if control is None:
        await working
        return 0
    controlling = asyncio.create_task(control.run())
    controlling.add_done_callback(lambda _: stop())
    await working
    is_over = controlling.done()
    await control.close()
    try:
        await controlling
    except asyncio.CancelledError:
        pass
    except Exception:
        log.exception("control failed, so this process ends")
        return 1
    return 1 if is_over else 0


def _arguments(argv: Sequence[str] | None) -> tuple[str, Path | None]:
    parser = argparse.ArgumentParser(
        prog="python -m service",
        description="Settings come from the environment: FOOTPLATE_HOST, FOOTPLATE_PORT, FOOTPLATE_DATABASE, …",
    )
    roles = parser.add_subparsers(title="roles", dest="role", metavar="ROLE", required=True)
    for role, help_text in ROLES.items():
        roles.add_parser(role, help=help_text)
    roles.choices["backup"].add_argument("folder", metavar="FOLDER", type=Path, help="the folder to make")
    arguments = parser.parse_args(argv)
    return arguments.role, getattr(arguments, "folder", None)


def _log_plainly(*secrets: str) -> None:
    logging.basicConfig(level=logging.INFO)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(Redacting("%(asctime)s %(levelname)s %(name)s: %(message)s", secrets))
    # Lines of these loggers contain whole URLs, which may contain a ticket or a webhook's token.
    for name in ("uvicorn", "httpx2"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("alembic.runtime.plugins").setLevel(logging.WARNING)
