"""Tests the link of a serving session with a real Redis. The test plays the serving process and the API."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis as redis_py

from footplate.contract import redis_keys
from footplate.contract.ids import JobId, new_job_id
from footplate.contract.serving import SLOT_WANTED, AdapterOffer, AnswerPiece, AnswerPieceKind, ServingRequest, Work
from tests.support.processes import until
from tests.support.redis_server import RedisServer
from worker.attempt.serve_link import ServeLink
from worker.redis_client import connect


class Linked:
    def __init__(self, url: str, limit: int = 2) -> None:
        self.client: redis_py.Redis = connect(url)
        self.session: JobId = new_job_id()
        self.link = ServeLink(self.client, self.session, limit, lambda data: data)
        self.process = socket.socket(fileno=self.link.theirs.detach())
        self.process.settimeout(20)
        self._lines = self.process.makefile("rb")
        self.link.start()

    def be_ready(self) -> None:
        self.send_piece("", AnswerPieceKind.ALIVE)

    def ask(self, name: str, adapter: AdapterOffer | None = None, body: dict[str, Any] | None = None) -> None:
        request = ServingRequest(id=name, work=Work.PREDICT, body=body or {"inputs": [name]}, adapter=adapter)
        self.client.set(redis_keys.serving_request(name), request.model_dump_json())
        self.client.rpush(redis_keys.serving_queue(self.session), name)

    def next_request(self) -> dict[str, Any]:
        return dict(json.loads(self._lines.readline()))

    def send_piece(self, name: str, kind: AnswerPieceKind, **data: Any) -> None:
        self.process.sendall(AnswerPiece(id=name, kind=kind, data=data).model_dump_json().encode() + b"\n")

    def answer(self, name: str) -> AnswerPiece:
        item: Any = self.client.blpop([redis_keys.serving_answer(name)], timeout=60)
        assert item is not None, f"no answer arrived for {name}"
        return AnswerPiece.model_validate_json(item[1])

    def pieces(self, name: str) -> list[bytes]:
        pieces: Any = self.client.lrange(redis_keys.serving_answer(name), 0, -1)
        return list(pieces)

    def end_process(self) -> None:
        self._lines.close()
        self.process.close()


@pytest.fixture
def linked(redis: RedisServer) -> Iterator[Linked]:
    instance = Linked(redis.url)
    yield instance
    instance.end_process()
    instance.link.close()


def test_a_request_reaches_the_process_and_the_pieces_of_its_answer_are_sent(linked: Linked) -> None:
    linked.ask("a")
    linked.be_ready()

    assert linked.next_request()["body"] == {"inputs": ["a"]}
    linked.send_piece("a", AnswerPieceKind.STARTED)
    linked.send_piece("a", AnswerPieceKind.DONE, predictions=[1])
    assert [linked.answer("a").kind for _ in range(2)] == [AnswerPieceKind.STARTED, AnswerPieceKind.DONE]


def test_a_request_with_an_adapter_reaches_the_process_after_the_adapter(linked: Linked) -> None:
    offer = AdapterOffer(id="ckpt_1", path="jobs/a/1/checkpoint-1", manifest_sha256="0" * 64)
    asked_for, is_fetched = threading.Event(), threading.Event()

    def fetch(adapter: AdapterOffer) -> threading.Event:
        assert adapter == offer
        asked_for.set()
        return is_fetched

    linked.link.fetch_adapter = fetch
    linked.ask("a", adapter=offer)
    linked.be_ready()
    assert asked_for.wait(20)
    linked.process.setblocking(False)
    with pytest.raises(BlockingIOError):
        linked.process.recv(1)
    linked.process.settimeout(20)
    is_fetched.set()

    assert linked.next_request()["adapter"]["id"] == "ckpt_1"


def test_no_more_requests_are_taken_than_the_process_can_hold(linked: Linked) -> None:
    linked.be_ready()
    for name in ("a", "b", "c"):
        linked.ask(name)
    assert [linked.next_request()["id"] for _ in range(2)] == ["a", "b"]

    assert linked.client.lrange(redis_keys.serving_queue(linked.session), 0, -1) == [b"c"]
    linked.send_piece("a", AnswerPieceKind.DONE)
    assert linked.next_request()["id"] == "c"


def test_a_withdrawn_request_reaches_a_process_that_can_hold_no_more(linked: Linked) -> None:
    linked.be_ready()
    for name in ("a", "b"):
        linked.ask(name)
        linked.next_request()

    linked.client.rpush(redis_keys.serving_withdrawn(linked.session), "b")

    assert linked.next_request() == {"id": "b", "kind": "again", "data": {}}


def test_the_process_of_a_session_is_notified_that_a_job_waits_for_its_slot(linked: Linked) -> None:
    linked.be_ready()
    linked.client.rpush(redis_keys.serving_withdrawn(linked.session), SLOT_WANTED)

    assert linked.next_request()["id"] == SLOT_WANTED


def test_requests_of_a_process_that_dies_are_answered_with_an_error(linked: Linked) -> None:
    linked.be_ready()
    for name in ("a", "b"):
        linked.ask(name)
        linked.next_request()
    linked.send_piece("a", AnswerPieceKind.STARTED)
    assert linked.answer("a").kind is AnswerPieceKind.STARTED

    linked.end_process()

    error = linked.answer("a")
    assert (error.kind, error.data["code"]) == (AnswerPieceKind.ERROR, "serving_ended")
    assert linked.session in error.data["message"]
    assert linked.answer("b").kind is AnswerPieceKind.AGAIN


def test_an_answer_of_which_redis_refused_a_part_does_not_end_as_if_it_were_whole(linked: Linked) -> None:
    linked.be_ready()
    linked.ask("a")
    linked.next_request()
    linked.send_piece("a", AnswerPieceKind.STARTED)
    assert linked.answer("a").kind is AnswerPieceKind.STARTED
    linked.client.config_set("maxmemory", 1)
    linked.send_piece("a", AnswerPieceKind.CHUNK, index=0, text="at")
    assert linked.next_request() == {"id": "a", "kind": "again", "data": {}}, "the process is told to stop"
    linked.client.config_set("maxmemory", 0)

    linked.send_piece("a", AnswerPieceKind.CHUNK, index=0, text=" dawn")
    linked.send_piece("a", AnswerPieceKind.DONE)
    linked.ask("b")
    linked.next_request()
    linked.send_piece("b", AnswerPieceKind.DONE)

    assert linked.answer("b").kind is AnswerPieceKind.DONE
    assert linked.answer("a").data["code"] == "serving_ended"
    assert linked.pieces("a") == []


def test_an_answer_whose_end_redis_refused_gets_an_error_once_redis_accepts_pieces(linked: Linked) -> None:
    linked.be_ready()
    for name in ("a", "b"):
        linked.ask(name)
        linked.next_request()
    linked.client.config_set("maxmemory", 1)
    # The pieces of one read go to Redis together.
    pieces = [("a", "started", {}), ("a", "chunk", {"text": "at"}), ("a", "done", {}), ("b", "started", {})]
    lines = [AnswerPiece(id=name, kind=AnswerPieceKind(kind), data=data) for name, kind, data in pieces]
    linked.process.sendall(b"".join(line.model_dump_json().encode() + b"\n" for line in lines))
    assert linked.next_request()["id"] == "b", "the refused pieces were withdrawn"

    linked.client.config_set("maxmemory", 0)

    assert [linked.answer(name).data["code"] for name in ("a", "b")] == ["serving_ended"] * 2
    assert [linked.pieces(name) for name in ("a", "b")] == [[], []]


def test_a_withdrawal_does_not_break_a_long_request_that_is_being_written(
    linked: Linked, caplog: pytest.LogCaptureFixture
) -> None:
    linked.be_ready()
    linked.ask("a")
    linked.next_request()
    linked.ask("long", body={"inputs": ["x" * 4_000_000]})
    linked.process.recv(1, socket.MSG_PEEK)
    linked.client.config_set("maxmemory", 1)
    linked.send_piece("a", AnswerPieceKind.CHUNK, index=0, text="at")
    until(lambda: "cannot deliver" in caplog.text, within=20, what="the link withdraws the request")

    assert [linked.next_request()["id"] for _ in range(2)] == ["long", "a"]


def test_pieces_of_unknown_requests_are_dropped(linked: Linked) -> None:
    linked.be_ready()
    linked.ask("a")
    linked.next_request()

    linked.process.sendall(b'{"kind":[]}\nnothing\n')
    linked.send_piece("of another session", AnswerPieceKind.DONE)
    linked.send_piece("a", AnswerPieceKind.DONE)

    assert linked.answer("a").kind is AnswerPieceKind.DONE
    assert not linked.client.exists(redis_keys.serving_answer("of another session"))


def test_a_session_serves_requests_again_after_redis_has_lost_its_data(linked: Linked, redis: RedisServer) -> None:
    linked.be_ready()
    linked.ask("a")
    linked.next_request()
    redis.kill()
    linked.send_piece("a", AnswerPieceKind.DONE)
    redis.start()

    def asks_again() -> bool:
        try:
            linked.ask("b")
        except redis_py.RedisError:
            return False
        return True

    until(asks_again, within=20, what="Redis accepts requests again")
    assert linked.next_request()["id"] == "b"
