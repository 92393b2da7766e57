"""The entry point of a node: `celery -A worker.app worker` and `python -m worker` start the same program."""

from __future__ import annotations

from worker.celery_app import app as app
from worker.celery_app import configuration
from worker.node import parent
from worker.settings import WorkerSettings

app.conf.update(configuration(WorkerSettings.from_environment()))
parent.connect()
