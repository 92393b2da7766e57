"""An attempt fetches one commit of a hub for its job, reports clearly what is missing, and shows no token."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from footplate.contract.host import outcome
from footplate.contract.host.file_roots import Roots
from footplate.contract.ids import Fence, new_claim_id, new_job_id
from footplate.contract.messages import Grant
from tests.support.factories import make_spec
from tests.support.file_server import FileServer, file_server
from tests.support.hub_server import TOKEN, HubServer
from tests.support.pages import snippets
from tests.support.processes import Processes, children, until
from tests.support.s3_server import S3Server
from worker.attempt import fetch_thread as module
from worker.attempt.fetch_thread import FetchThread
from worker.settings import WorkerSettings

FILES = {"config.json": b"{}", "model.safetensors": b"weights", "pytorch_model.bin": b"pickle", "onnx/m.onnx": b"x"}
ROWS_BY_URL = b'{"x": 1}\n'
TINY = {"model": {"use": "hf/causal-lm", "args": {"path": "hub://me/tiny"}}}


@pytest.fixture(scope="module")
def hub_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    processes = Processes(tmp_path_factory.mktemp("hub"))
    yield HubServer(processes)
    processes.stop_all()


@pytest.fixture
def hub(hub_server: HubServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """Yields an empty hub that child processes of this test use. Held answers are released after the test."""
    for kind in ("models", "datasets"):
        if (hub_server.folder / kind).exists():
            hub_server.drop(kind)
    for name, value in hub_server.environment.items():
        monkeypatch.setenv(name, value)
    yield hub_server
    hub_server.release()


@pytest.fixture
def store() -> Iterator[FileServer]:
    with file_server() as store:
        store.files["/rows.jsonl"] = ROWS_BY_URL
        yield store


class Attempt:
    """An attempt on a node that has its own cache."""

    def __init__(
        self,
        folder: Path,
        job: Any,
        number: int,
        node: str,
        source: int,
        settings: Any,
        spec: Any,
        *,
        is_for_another_user: bool,
    ) -> None:
        values = {"home": folder, "hub": "on", "hub_cache": folder / node, **settings}
        job_spec = make_spec(**spec)
        grant = Grant(
            job=job, attempt=number, fence=Fence(number), claim=new_claim_id(), source=source, nodes=source + 1,
            spec=job_spec.as_json(), beat_seconds=2,
        )  # fmt: skip
        self.wake = os.eventfd(0, os.EFD_NONBLOCK)
        self.hub = FetchThread(
            WorkerSettings(**values), grant, job_spec, self.wake, is_for_another_user=is_for_another_user
        )
        self.notes: list[dict[str, Any]] = []
        self.hub.fetch()

    def finish(self) -> Attempt:
        until(lambda: self.hub.is_idle, within=60, what="the fetch has ended or failed")
        while not self.hub.events.empty():
            self.notes.append(self.hub.events.get()["data"])
        return self

    @property
    def verdict(self) -> tuple[str, str, str]:
        """Returns the reason, the error code, and the text for the user."""
        failure = self.finish().hub.failure
        assert failure is not None
        reason, error = outcome.of_exception(failure)
        return str(reason), error.code, f"{error.message}; {error.hint}"

    @property
    def commit(self) -> str:
        assert self.finish().hub.failure is None
        (folder,) = self.hub.folders.values()
        return Path(folder).name

    def close(self) -> None:
        self.hub.close()
        os.close(self.wake)


Make = Callable[..., Attempt]


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[Make]:
    """Yields a function that makes attempts of one job: `attempt(2, node="other", model=…)`."""
    job, attempts = new_job_id(), list[Attempt]()

    def make(
        number: int = 1, node: str = "one", source: int = 0, settings: Any = (),
        is_for_another_user: bool = False, **spec: Any,
    ) -> Attempt:  # fmt: skip
        attempts.append(
            Attempt(tmp_path, job, number, node, source, dict(settings), spec or TINY,
                    is_for_another_user=is_for_another_user)
        )  # fmt: skip
        return attempts[-1]

    yield make
    for instance in attempts:
        instance.close()


def test_a_hub_model_is_fetched_without_files_that_could_run_code(hub: HubServer, attempt: Make) -> None:
    commit = hub.push("models/me/tiny", FILES)

    result = attempt().finish()

    assert result.commit == commit
    folder = Path(result.hub.folders["hub://me/tiny@main"])
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == [
        "config.json", "model.safetensors",
    ]  # fmt: skip
    roots = Roots(folder, folder, None, result.hub.folders)
    assert Path(roots.resolve("hub://me/tiny")).samefile(folder)
    assert [note["code"] for note in result.notes] == ["hub_pinned", "hub_fetched"]
    assert TOKEN not in str(result.notes)


def test_the_model_and_the_rows_of_the_guides_spec_are_fetched(hub: HubServer, attempt: Make) -> None:
    (block,) = snippets("guides/hub.md", "json")
    hub.push("models/google-bert/bert-base-uncased", FILES)
    hub.push("datasets/stanfordnlp/sst2", {"data/train.jsonl": ROWS_BY_URL})

    result = attempt(**json.loads(block)).finish()

    assert result.hub.failure is None
    names = {path.name for folder in result.hub.folders.values() for path in Path(folder).rglob("*") if path.is_file()}
    assert names == {"config.json", "model.safetensors", "train.jsonl"}


def test_later_attempts_use_the_commit_of_the_first_without_a_request(
    hub: HubServer, attempt: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = hub.push("models/me/tiny", FILES)
    assert attempt(1).commit == first
    second = hub.push("models/me/tiny", {**FILES, "model.safetensors": b"others"})

    assert attempt(2, node="another").commit == first
    hub.drop("models/me/tiny")
    # A node that has the commit sends no request to the hub.
    again = attempt(3).finish()
    assert again.commit == first
    assert [note["code"] for note in again.notes] == ["hub_fetched"]

    # Counter-check: without the record, the job would continue with another model.
    hub.push("models/me/tiny", FILES)
    hub.push("models/me/tiny", FILES)
    monkeypatch.setattr(FetchThread, "_read", lambda self, attempt: None)
    assert attempt(4, node="third").commit == second


def test_a_second_node_waits_for_the_commit_of_the_first(hub: HubServer, attempt: Make) -> None:
    commit = hub.push("models/me/tiny", FILES)
    hub.hold()
    second = attempt(1, node="second", source=1)
    first = attempt(1)
    until(lambda: hub.is_holding, within=30, what="the first node fetches")
    hub.push("models/me/tiny", {**FILES, "config.json": b"[]"})
    hub.release()

    assert (first.commit, second.commit) == (commit, commit)


def test_a_named_commit_is_fetched_without_looking_it_up(hub: HubServer, attempt: Make) -> None:
    commit = hub.push("models/me/tiny", FILES)
    hub.push("models/me/tiny", {**FILES, "config.json": b"[]"})

    result = attempt(model={"use": "hf/causal-lm", "args": {"path": f"hub://me/tiny@{commit}"}})

    assert result.commit == commit
    assert not [line for line in hub.requests if line.startswith(f"GET /api/models/me/tiny/revision/{commit}")]


def test_files_in_a_repository_are_fetched_alone(hub: HubServer, attempt: Make) -> None:
    rows = {f"data/{name}": b'{"x": 1}' for name in ("a.jsonl", "b.jsonl", "c.pkl")}
    hub.push("datasets/me/rows", {**rows, "other/d.jsonl": b"{}", "README.md": b"# Rows"})

    fetch = attempt(data="hub://me/rows/data/*.jsonl").finish()

    roots = Roots(Path(), Path(), None, fetch.hub.folders)
    result = roots.matching("hub://datasets/me/rows/data/*.jsonl")
    assert [Path(item).name for item in result] == ["a.jsonl", "b.jsonl"]
    (folder,) = fetch.hub.folders.values()
    assert {path.name for path in Path(folder).rglob("*") if path.is_file()} == {"a.jsonl", "b.jsonl"}


@pytest.mark.parametrize(
    ("wrong", "reason", "code", "says"),
    [
        ("nothing", "not_buildable", "model_not_found", "has no model me/tiny"),
        ("gated", "not_buildable", "model_gated", "accept its terms there, with the account of the nodes' HF_TOKEN"),
        ("revision", "not_buildable", "model_revision_not_found", "has no revision 'v9'"),
        ("lost", "not_buildable", "model_file_not_found", "lists a file of hub://me/tiny@main and does not have it"),
        ("pickled", "not_buildable", "model_file_not_found", "pickled files and code are never fetched"),
        ("data", "dataset_error", "dataset_not_found", "has no dataset me/rows"),
        ("off", "not_buildable", "hub_is_off", "may not fetch from a hub"),
    ],
)
def test_a_name_that_a_hub_does_not_have_is_reported(
    hub: HubServer, attempt: Make, wrong: str, reason: str, code: str, says: str
) -> None:
    if wrong not in ("nothing", "data"):
        commit = hub.push("models/me/tiny", {"pytorch_model.bin": b""} if wrong == "pickled" else FILES)
    if wrong == "gated":
        hub.gate("models/me/tiny")
    if wrong == "lost":
        hub.remove_but_list("models/me/tiny", commit, "config.json")
    spec: dict[str, Any] = {"data": "hub://me/rows"} if wrong == "data" else {}
    if wrong == "revision":
        spec = {"model": {"use": "hf/causal-lm", "args": {"path": "hub://me/tiny@v9"}}}

    result = attempt(settings={"hub": "off"} if wrong == "off" else {}, **spec)

    assert result.verdict[:2] == (reason, code)
    assert says in result.verdict[2]


def test_an_attempt_waits_for_an_unreachable_hub_and_then_fails_to_be_retried(
    hub: HubServer, attempt: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = hub.push("models/me/tiny", FILES)
    hub.go_away()
    waits = attempt()
    until(lambda: not waits.hub.events.empty(), within=60, what="the attempt reports that it waits")
    hub.come_back()
    assert waits.commit == commit
    assert waits.notes[0]["code"] == "hub_unreachable"

    hub.go_away()
    monkeypatch.setattr(module, "MAX_OUTAGE_SECONDS", -1.0)
    assert attempt(2, node="another").verdict[:2] == ("crashed", "hub_unreachable")
    assert attempt(3).commit == commit
    hub.come_back()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has another user train")
def test_files_fetched_by_root_are_readable_by_the_training_user(hub: HubServer, attempt: Make, tmp_path: Path) -> None:
    hub.push("models/me/tiny", FILES)
    (tmp_path / "store").mkdir()
    before = os.umask(0o077)
    try:
        result = attempt(settings={"artifacts": str(tmp_path / "store")}, is_for_another_user=True).finish()
        own = attempt(node="own", settings={"artifacts": str(tmp_path / "own-store")}).finish()
    finally:
        os.umask(before)

    def closed(top: Path) -> list[Path]:
        # The cache also has folders of huggingface_hub's own.
        paths = [path for path in top.rglob("*") if not {".locks", "trees"} & set(path.parts)]
        return [path for path in paths if ~path.stat().st_mode & (0o005 if path.is_dir() else 0o004)]

    assert closed(tmp_path / "one") == []
    folders = [path for path in (tmp_path / "store").rglob("*") if path.is_dir()]
    assert [folder for folder in folders if not folder.stat().st_mode & 0o001] == []
    # Counter-check: if training runs as the node's own user, the umask applies.
    assert own.commit == result.commit
    assert closed(tmp_path / "own")


def test_a_link_in_place_of_the_record_of_commits_is_not_followed(
    attempt: Make, hub: HubServer, tmp_path: Path
) -> None:
    """Training owns the folder of its attempt, and the process that fetches for the next attempt may run as root."""
    hub.push("models/me/tiny", FILES)
    first = attempt(1).finish()
    record = next((tmp_path / "artifacts").rglob("hub.json"))
    elsewhere = tmp_path / "elsewhere.json"
    record.rename(elsewhere)
    record.symlink_to(elsewhere)

    second = attempt(2).finish()

    assert first.hub.failure is None
    assert isinstance(second.hub.failure, OSError)
    assert not second.hub.folders


def test_a_cancelled_fetch_leaves_no_process(hub: HubServer, attempt: Make) -> None:
    hub.push("models/me/tiny", FILES)
    hub.hold()
    others = set(children(os.getpid()))
    running = attempt()
    until(lambda: hub.is_holding, within=30, what="the attempt fetches")

    running.hub.close()

    until(
        lambda: running.hub.is_idle and not set(children(os.getpid())) - others, within=30, what="the fetch has ended"
    )
    assert running.hub.failure is None


def test_the_record_of_commits_is_stored_in_the_bucket(hub: HubServer, attempt: Make, s3: S3Server) -> None:
    first = hub.push("models/me/tiny", FILES)
    settings = {"artifacts": s3.environment("hub")["FOOTPLATE_ARTIFACTS"]}
    assert attempt(1, settings=settings).commit == first
    hub.push("models/me/tiny", {**FILES, "config.json": b"[]"})

    again = attempt(2, node="another", settings=settings)

    assert again.commit == first
    record = again.hub._read(2)
    assert record == json.loads(json.dumps({"hub://me/tiny@main": first}))


def test_every_attempt_gets_the_same_file_of_a_url(
    attempt: Make,
    store: FileServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    url = f"{store.url}/rows.jsonl?key=hidden"
    spec, settings = {"model": "toy/mlp", "data": {"use": "files/jsonl", "args": {"paths": [url]}}}, {"hub": "off"}
    first = attempt(settings={**settings, "stores_allow": "127.0.0.1/32"}, **spec).finish()
    assert first.hub.failure is None
    assert Path(Roots(Path(), Path(), None, first.hub.folders).matching(url)[0]).read_bytes() == ROWS_BY_URL
    assert [note["code"] for note in first.notes] == ["hub_pinned", "hub_fetched"]
    assert f"sha256 {sha256(ROWS_BY_URL).hexdigest()}" in str(first.notes)
    assert "hidden" not in str(first.notes)
    store.files["/rows.jsonl"] = b"{}"

    again = attempt(2, settings={**settings, "stores_allow": "127.0.0.1/32"}, **spec).finish()
    elsewhere = {**settings, "home": tmp_path / "elsewhere", "artifacts": str(tmp_path / "artifacts")}
    changed = attempt(3, settings={**elsewhere, "stores_allow": "127.0.0.1/32"}, **spec)
    unlisted = attempt(4, settings=elsewhere, **spec)

    assert (again.hub.failure, again.hub.folders) == (None, first.hub.folders)
    assert changed.verdict[:2] == ("dataset_error", "dataset_changed")
    assert unlisted.verdict[:2] == ("not_buildable", "store_refused")
    store.server.server_close()
    monkeypatch.setattr(module, "MAX_OUTAGE_SECONDS", -1.0)
    away = attempt(5, settings={**elsewhere, "stores_allow": "127.0.0.1/32"}, **spec)
    assert away.verdict[1] == "store_unreachable"
