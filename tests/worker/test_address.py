"""Tests the addresses at which nodes and ranks connect to each other."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from unittest.mock import patch

import pytest

from footplate.contract.errors import SettingsError
from footplate.contract.host import outcome
from footplate.contract.host.launch import Order
from footplate.contract.ids import new_claim_id, new_job_id
from footplate.runtime import process_group
from worker.attempt.rendezvous import (
    address_text,
    bound_socket,
    can_reach,
    host_and_port,
    interface_of,
    own_address,
    require_own,
)
from worker.settings import WorkerSettings


def test_a_nodes_address_is_that_of_its_connection_to_redis_or_the_setting() -> None:
    assert own_address(WorkerSettings(redis="redis://127.0.0.1:1/0")) == "127.0.0.1"
    assert own_address(WorkerSettings(redis="unix:///run/redis.sock")) == "127.0.0.1"
    assert own_address(WorkerSettings(node_address="10.1.2.3")) == "10.1.2.3"


def test_an_address_of_another_machine_is_refused_with_a_hint() -> None:
    require_own(WorkerSettings(node_address="127.0.0.1"))
    with pytest.raises(SettingsError, match=r"FOOTPLATE_NODE_ADDRESS=203\.0\.113\.9"):
        require_own(WorkerSettings(node_address="203.0.113.9"))


def test_a_rendezvous_address_is_reserved_and_opened_when_needed() -> None:
    with bound_socket("127.0.0.1") as item, bound_socket("127.0.0.1") as other:
        assert address_text(item) != address_text(other)
        there = host_and_port(address_text(item))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(there)
        item.listen()
        socket.create_connection(there).close()


def test_a_node_that_has_lost_its_address_uses_loopback_for_single_node_jobs() -> None:
    with bound_socket("203.0.113.9") as place:
        assert host_and_port(address_text(place))[0] == "127.0.0.1"


def test_ipv4_and_ipv6_addresses_are_parsed() -> None:
    assert host_and_port("10.0.0.1:29500") == ("10.0.0.1", 29500)
    assert host_and_port("[fd00::1]:29500") == ("fd00::1", 29500)


@pytest.mark.parametrize(
    ("own", "host", "leads"),
    [
        ("10.0.0.1", "10.0.0.2", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("10.0.0.1", "127.0.0.1", False),
        ("127.0.0.1", "10.0.0.2", False),
        ("fd00::1", "::1", False),
        ("localhost", "127.0.0.1", True),
        ("localhost", "node-7", False),
    ],
)
def test_a_loopback_address_cannot_be_reached_from_other_nodes(own: str, host: str, leads: bool) -> None:
    assert can_reach(own, host) is leads


def test_the_network_interface_of_an_address_is_named_if_it_exists() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.9") is None
    assert interface_of("nonsense") is None


def order(**more: object) -> Order:
    settings = {
        "job": new_job_id(), "attempt": 1, "fence": 1, "claim": new_claim_id(), "spec": {}, "gpus": [], "threads": 1,
        "checkpoints": [], "artifacts": Path("/a"), "data": Path("/d"), "models": Path("/m"), **more,
    }  # fmt: skip
    return Order.model_validate(settings)


def test_a_rank_of_the_second_node_gets_the_variables_of_torchrun() -> None:
    there = order(rank=3, world=4, node=1, nodes=2, host="10.0.0.1", port=29500, interface="eth1")
    with patch.dict(os.environ, clear=True):
        report = process_group.environment(there)

    assert report == {
        "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "eth1",
        "OMP_NUM_THREADS": "1", "TORCHELASTIC_USE_AGENT_STORE": "True", "DS_ACCELERATOR": "cpu",
    }  # fmt: skip


def test_a_network_interface_chosen_by_the_operator_is_kept() -> None:
    there = order(world=2, nodes=2, host="10.0.0.1", port=29500, interface="eth1", gpus=["g"])
    with patch.dict(os.environ, {"NCCL_SOCKET_IFNAME": "ib0"}, clear=True):
        report = process_group.environment(there)

    assert report["GLOO_SOCKET_IFNAME"] == "eth1"
    assert "NCCL_SOCKET_IFNAME" not in report


def test_a_rank_that_lost_its_connection_is_not_the_reason_and_is_retried() -> None:
    error = RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:4711")

    assert process_group.is_caused_by_another_rank(error)
    assert (outcome.of_exception(error).reason, outcome.of_exception(error).error.code) == ("crashed", "peer_lost")
    assert not process_group.is_caused_by_another_rank(ValueError("a bad sample"))
