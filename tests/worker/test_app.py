"""Celery's settings, each of which a measured accident depends on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from footplate.contract import keys
from footplate.contract.ids import NodeId
from tests.support.processes import REPOSITORY, clean_environment
from worker.app import app, configuration, queue_of
from worker.node.consumer import SILENT
from worker.settings import WorkerSettings

EXPECTED = {
    "task_serializer": "json",
    "accept_content": ["json"],
    "result_backend": None,
    "task_ignore_result": True,
    "task_acks_late": False,
    "worker_prefetch_multiplier": 1,
    "worker_disable_prefetch": True,
    "worker_enable_remote_control": False,
    "worker_consumer": "worker.node.consumer:SilentConsumer",
    "worker_send_task_events": False,
    "task_send_sent_event": False,
    "task_create_missing_queues": False,
    "broker_connection_retry": True,
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "worker_cancel_long_running_tasks_on_connection_loss": False,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_celery_has_exactly_this(name: str) -> None:
    assert configuration(WorkerSettings())[name] == EXPECTED[name]
    assert app.conf[name] == EXPECTED[name]


def test_no_setting_is_without_a_test() -> None:
    others = {"broker_url", "broker_transport_options", "worker_soft_shutdown_timeout", "worker_redirect_stdouts"}
    assert configuration(WorkerSettings()).keys() - EXPECTED.keys() == others | {"include", "task_queues"}


def test_no_socket_waits_for_ever() -> None:
    options = app.conf.broker_transport_options
    assert 0 < options["socket_timeout"] < 30
    assert options["socket_connect_timeout"] > 0
    assert options["visibility_timeout"] == keys.VISIBILITY_SECONDS


def test_celery_waits_longer_than_a_checkpoint_takes() -> None:
    settings = WorkerSettings(drain_seconds=77)
    assert configuration(settings)["worker_soft_shutdown_timeout"] == 77


def test_workers_do_not_talk_to_each_other() -> None:
    assert SILENT == {"without_mingle": True, "without_gossip": True, "without_heartbeat": True}


def test_a_queue_has_an_exchange_and_a_routing_key_of_its_own() -> None:
    queue = queue_of(NodeId("node_1"))
    assert queue.name == queue.exchange.name == queue.routing_key == "fp.node.node_1"


def test_what_celery_forks_has_no_torch_in_it() -> None:
    code = (
        "import sys, worker.app, worker.node.tasks; "
        "print([name for name in ('torch', 'accelerate', 'numpy') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_a_wrong_setting_is_a_sentence(tmp_path: Path) -> None:
    for env, says in (
        ({"FOOTPLATE_SLOTS": "many"}, "FOOTPLATE_SLOTS='many' cannot be used"),
        ({"FOOTPLATE_GPUS": "GPU-a", "FOOTPLATE_HOME": str(tmp_path)}, "a simulated GPU is 'uuid:name:memory_mb"),
    ):
        told = subprocess.run(
            [sys.executable, "-m", "worker"],
            cwd=REPOSITORY,
            env=clean_environment() | env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert told.returncode != 0
        assert says in told.stderr
        assert "Traceback" not in told.stderr
