"""Tests a node that dies between two uploads to a bucket. Only complete checkpoints and files count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from footplate.contract import layout
from footplate.contract.bucket import RemoteStore, StoreUnreachable
from footplate.contract.ids import new_job_id
from tests.faults.off import turned_off
from tests.support.processes import until
from tests.support.s3_server import S3Server
from tests.worker.test_shipping import SCRIPT, Attempt, offer_of
from worker.attempt.artifact_sync import _files_of, _is_verified

Make = Callable[..., Attempt]


@pytest.fixture
def store(s3: S3Server, tmp_path: Path) -> RemoteStore:
    remote = RemoteStore(f"s3://shelf/faults/{tmp_path.name}")
    remote.write(b"ours", layout.PROBE)
    return remote


@pytest.fixture
def attempt(store: RemoteStore, tmp_path: Path, protection_off: list[str]) -> Iterator[Make]:
    """Returns a function that makes an attempt of one job, as in `attempt(2, *offers)`."""
    job = new_job_id()
    with ExitStack() as stack:
        for name in protection_off:
            stack.enter_context(turned_off(name))

        def make(number: int, *saved: object, **more: object) -> Attempt:
            new_attempt = Attempt(store, tmp_path, job, number, *saved, **more)  # type: ignore[arg-type]
            stack.callback(new_attempt.close)
            return new_attempt

        yield make


def dies_before(store: RemoteStore, last: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Makes all uploads of the node fail from this object on, and returns the list of requested paths."""
    paths: list[str] = []

    def put(file: Path, path: str) -> None:
        paths.append(path)
        if path.endswith(last):
            raise StoreUnreachable("the node's line is cut")
        RemoteStore.put(store, file, path)

    def remove(path: str) -> None:
        raise StoreUnreachable("the node's line is cut")

    monkeypatch.setattr(store, "put", put)
    monkeypatch.setattr(store, "remove", remove)
    return paths


@pytest.mark.fault(1, without="a checkpoint is reported once the store has it", red="nobody has all of checkpoint-20")
def test_a_half_uploaded_checkpoint_is_never_reported(
    attempt: Make, store: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = attempt(1)
    report = first.upload_checkpoints(older := first.save(10))
    with monkeypatch.context() as patch:
        paths = dies_before(store, "checkpoint-20/trainer_state.json", patch)
        passed = first.shipping.hold_checkpoints([newer := first.save(20)])
        until(
            lambda: any("checkpoint-20" in path for path in paths),
            within=30,
            what="a part of the second checkpoint is uploaded",
        )
        until(lambda: first.has_reported("store_away"), within=30, what="the upload's failure is reported")
        first.close_and_join()
    report += [
        *passed,
        *(message for message in first.reported() if message["kind"] == "checkpoint" and message not in report),
    ]

    second = attempt(2, *(offer_of(item) for item in reversed(report)))
    began = second.starting_point()

    assert not second.sentences, f"nobody has all of checkpoint-20, and it was told: {second.sentences}"
    assert report == [older] != [newer]
    assert began is not None
    assert began.folder.endswith("checkpoint-10")


@pytest.mark.fault(10, without="a replaced checkpoint loses its manifest first", red="vouches for what was replaced")
def test_a_checkpoint_that_is_being_replaced_never_has_a_wrong_manifest(
    attempt: Make, store: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second save of a step has the same path. A reader meanwhile gets the old files, the new files or none."""
    first = attempt(1)
    first.upload_checkpoints(event := first.save(10, "weights"))
    with monkeypatch.context() as patch:
        dies_before(store, "checkpoint-10/trainer_state.json", patch)
        first.shipping.hold_checkpoints([first.save(10, "another")])
        until(lambda: first.has_reported("store_away"), within=30, what="half of the second checkpoint is uploaded")
        first.close_and_join()

    place = event["data"]["path"]
    try:
        manifest = store.read(f"{place}/{layout.MANIFEST}")
    except FileNotFoundError:
        return
    for name, expected in _files_of(manifest).items():
        store.fetch(f"{place}/{name}", here := first.root / "read" / name)
        assert _is_verified(here, expected), f"the manifest vouches for what was replaced: {name}"


@pytest.mark.fault(1, without="a script continues only with files of all its nodes", red="a state that no run was in")
def test_a_script_does_not_continue_with_files_of_only_some_of_its_nodes(attempt: Make) -> None:
    for number, steps in ((1, "10"), (2, "20")):
        for source in (0, 1):
            node = attempt(number, source=source, nodes=2, **SCRIPT)
            node.write_files({f"state-{source}": steps}, is_lost=(number, source) == (2, 1))

    third = attempt(3, source=1, nodes=2, **SCRIPT)
    third.fetch()

    assert third.contents() == {"state-0": "10", "state-1": "10"}, "a state that no run was in"


@pytest.mark.fault(1, without="files that a node has fetched are not uploaded again", red="which is older")
def test_a_nodes_unchanged_files_do_not_replace_newer_files_of_another_node(attempt: Make) -> None:
    """Every node begins with the files of all nodes, and each file is changed by one node only."""
    for number, steps in ((1, "10"), (2, "20"), (3, "30")):
        for source in (0, 1):
            node = attempt(number, source=source, nodes=2, **SCRIPT)
            node.fetch()
            node.write_files({f"state-{source}": steps})

    last = attempt(4, source=0, nodes=2, **SCRIPT)
    last.fetch()

    assert last.contents() == {"state-0": "30", "state-1": "30"}, "it has what the other node had found, which is older"


@pytest.mark.fault(1, without="a script continues only with files of all its nodes", red="a state that no run was in")
def test_a_script_does_not_continue_with_half_uploaded_files(
    attempt: Make, store: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt(1, **SCRIPT).write_files({"model": "10", "optimizer": "10"})
    second = attempt(2, **SCRIPT)
    second.write_files({"model": "20", "optimizer": "20"}, is_lost=True)
    with monkeypatch.context() as patch:
        paths = dies_before(store, "/optimizer", patch)
        second.shipping.upload_outputs()
        until(
            lambda: any(path.endswith("/optimizer") for path in paths),
            within=30,
            what="a part of the script's files is uploaded",
        )
        second.close_and_join()

    third = attempt(3, **SCRIPT)
    third.fetch()

    assert third.contents() == {"model": "10", "optimizer": "10"}, "a state that no run was in"
