"""Tests Celery's settings, and how a wrong setting of the node is reported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from footplate.contract import redis_keys
from tests.support.processes import REPOSITORY, clean_environment
from worker.app import app


def test_every_socket_of_celery_has_a_timeout() -> None:
    options = app.conf.broker_transport_options
    assert 0 < options["socket_timeout"] < 30
    assert options["socket_connect_timeout"] > 0
    assert options["visibility_timeout"] == redis_keys.VISIBILITY_SECONDS


def test_pool_processes_of_celery_import_neither_torch_nor_an_exporter_of_traces() -> None:
    # Redis's client imports OpenTelemetry's metrics if they are installed, so only these modules are checked.
    unwanted = {"torch", "accelerate", "numpy", "opentelemetry.exporter", "opentelemetry.sdk.trace", "worker.spans"}
    code = f"import sys, worker.app, worker.node.celery_tasks; print({unwanted} & {{*sys.modules}})"
    command = [sys.executable, "-c", code]

    assert subprocess.check_output(command, cwd=REPOSITORY, env=clean_environment(), text=True) == "set()\n"


def test_a_setting_that_the_node_refuses_ends_it_with_one_sentence(tmp_path: Path) -> None:
    outcome = subprocess.run(
        [sys.executable, "-m", "worker"],
        cwd=REPOSITORY,
        env=clean_environment() | {"FOOTPLATE_GPUS": "GPU-a", "FOOTPLATE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode != 0
    assert "FOOTPLATE_GPUS" in outcome.stderr
    assert "uuid:name:memory_mb" in outcome.stderr
    assert "Traceback" not in outcome.stderr
