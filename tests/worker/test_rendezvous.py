"""Tests the rendezvous address that a supervisor opens for the ranks of several nodes."""

from __future__ import annotations

import socket

import pytest

from footplate.contract.ids import new_claim_id, new_job_id
from footplate.contract.messages import Grant
from worker.attempt.rendezvous import Rendezvous, address_text, bound_socket, host_and_port


def grant(**more: object) -> Grant:
    settings = {"job": new_job_id(), "attempt": 1, "fence": 1, "claim": new_claim_id(), "spec": {}, **more}
    return Grant.model_validate({"lease_seconds": 10, "beat_seconds": 1, **settings})


def test_the_rendezvous_of_one_node_is_on_loopback_at_its_own_port() -> None:
    meeting = Rendezvous(grant(), None)
    assert meeting.is_open
    assert meeting.trouble("here") is None

    with meeting.address() as place:
        assert (place.host, place.interface) == ("127.0.0.1", None)
        socket.create_connection((place.host, place.port)).close()


def test_the_rendezvous_is_at_the_first_node_once_all_nodes_have_claimed() -> None:
    with bound_socket("127.0.0.1") as claimed:
        there = address_text(claimed)
        meeting = Rendezvous(grant(nodes=2), claimed)
        assert not meeting.is_open
        meeting.open(None)
        assert not meeting.is_open

        meeting.open(there)
        assert meeting.is_open
        with meeting.address() as place:
            assert (place.host, place.port) == host_and_port(there)
            assert place.interface == "lo"
            assert place.listening is claimed
            socket.create_connection((place.host, place.port)).close()
        # The supervisor has closed its socket, and only the first rank would keep the address open.
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(host_and_port(there))


def test_a_failed_rendezvous_can_be_retried_at_the_same_address() -> None:
    with bound_socket("127.0.0.1") as claimed:
        meeting = Rendezvous(grant(nodes=2, rendezvous=address_text(claimed)), claimed)
        with pytest.raises(ConnectionRefusedError), meeting.address():
            raise ConnectionRefusedError
        with meeting.address() as place:
            assert place.listening is claimed


def test_ranks_of_other_nodes_connect_to_the_rendezvous_without_an_own_socket() -> None:
    with bound_socket("127.0.0.1") as claimed:
        meeting = Rendezvous(grant(nodes=2, source=1, rendezvous="127.0.0.1:29500"), claimed)
        with meeting.address() as place:
            assert (place.host, place.port, place.listening) == ("127.0.0.1", 29500, None)


def test_an_unreachable_rendezvous_names_the_setting_to_change() -> None:
    with bound_socket("127.0.0.1") as claimed:
        verdict = Rendezvous(grant(nodes=2, source=1, rendezvous="10.0.0.1:29500"), claimed).trouble("node-2")

    assert verdict is not None
    assert (verdict.reason, verdict.error.code) == ("not_buildable", "unreachable_node")
    assert all(name in verdict.error.message for name in ("node-2", "127.0.0.1"))
    assert "FOOTPLATE_NODE_ADDRESS" in str(verdict.error.hint)
