"""Tests a supervisor whose own code fails. The test plays the warm parent."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from footplate.contract import layout
from footplate.contract.bucket import RemoteStore
from footplate.contract.host import launch
from footplate.contract.host.launch import FD_NAMES
from footplate.contract.ids import Fence, new_claim_id, new_job_id
from footplate.contract.messages import Grant
from tests.support.factories import make_spec
from tests.support.redis_server import RedisServer
from tests.worker.fake_control import FakeControl
from worker.attempt.supervise import supervise
from worker.identity import claim_node
from worker.redis_client import connect
from worker.settings import WorkerSettings
from worker.tracing import Untraced


@pytest.mark.parametrize("has_bucket", [False, True], ids=["folder", "bucket"])
def test_an_unexpected_error_of_the_supervisor_ends_training_and_is_reported(
    tmp_path: Path, redis: RedisServer, control: FakeControl, request: pytest.FixtureRequest, has_bucket: bool
) -> None:
    artifacts = "s3://shelf/supervise" if has_bucket and request.getfixturevalue("s3") else ""
    settings = WorkerSettings(home=tmp_path, redis=redis.url, node_name="one", artifacts=artifacts)
    node = claim_node(tmp_path / "node-1", 1)
    listening = launch.listen(node.folder.run)
    grant = Grant(
        job=new_job_id(), attempt=1, fence=Fence(1), claim=new_claim_id(), spec=make_spec().as_json(),
        beat_seconds=0.5,
    )  # fmt: skip

    def answer_with_nonsense() -> bytes:
        """Returns what the supervisor sends after an answer that it cannot parse. Nothing: it has hung up."""
        listening.settimeout(60)
        warm, _ = listening.accept()
        with warm:
            _, training, _, _ = socket.recv_fds(warm, 4096, len(FD_NAMES) + 1)
            if has_bucket:
                [root] = node.folder.work.iterdir()
                folder = root / layout.attempt_folder(grant.job, 1)
                folder.mkdir(parents=True)
                (folder / "half").write_text("training is writing this")
            warm.send(b"nonsense")
            last = warm.recv(4096)
            for descriptor in training:
                os.close(descriptor)
            return last

    with ThreadPoolExecutor(1) as thread:
        last = thread.submit(answer_with_nonsense)
        supervise(settings, node, grant, connect(redis.url), None, Untraced())

    outcome = control.done(grant.job)
    assert last.result(60) == b"", "a warm parent kills training when its supervisor hangs up"
    assert (outcome["ending"], outcome["reason"]) == ("failed", "crashed")
    assert "ValidationError" in outcome["error"]["message"]
    assert not list(node.folder.journals.iterdir())
    if has_bucket:
        uploaded = RemoteStore(artifacts).files(str(layout.attempt_folder(grant.job, 1)))
        assert uploaded == [], "training may have changed its files while they were uploaded"
