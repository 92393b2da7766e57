"""Tests two controls on one database. Only one works, and a control that is unsure of its lock writes nothing."""

from __future__ import annotations

import re
import socket
import threading
from contextlib import closing, suppress

import psycopg
import pytest
from redis import Redis

from footplate.contract import redis_keys
from tests.support.postgres import PostgresServer
from tests.support.processes import Process, Processes
from tests.support.redis_server import RedisServer
from tests.support.system import LONG_TOY, System, assert_whole

TABLES = ("jobs", "attempts", "sources", "events", "nodes", "checkpoints")


def works(control: Process) -> bool:
    return "control is active" in control.output


@pytest.mark.fault(8, without="one control at a time", red="two controls work at once")
def test_another_control_takes_over_when_the_first_is_killed_but_not_while_frozen(system: System) -> None:
    system.start_service("api")
    first = system.start_service("control", "first")
    system.processes.until(lambda: works(first), within=30, what="the first control works")
    second = system.start_service("control", "second")
    system.start_node()
    gate = system.gate()
    job = system.submit(LONG_TOY, callbacks=[gate.at(30)])
    system.until_step(job, 20)
    assert not works(second), "two controls work at once"

    first.kill()
    system.processes.until(lambda: works(second), within=30, what="the second control takes over")
    third = system.start_service("control", "third")
    second.freeze()
    gate.open(30)
    outputs = system.folder / "artifacts" / "jobs" / job / "attempts" / "1" / "outputs"
    system.until((outputs / "metrics.json").exists, within=60, what="training ends meanwhile", job=job)
    assert not works(third), "two controls work at once"
    assert system.state(job) == "running"
    second.thaw()

    outcome = system.until_settled(job, within=40)
    assert (outcome["state"], outcome["attempt"]) == ("succeeded", 1), outcome
    assert_whole(system.events(job))
    assert sorted(system.losses(job)) == list(range(1, 121))
    assert not works(third), "two controls work at once"
    assert grants(system, job) == 1


def test_a_service_that_waits_for_the_lock_reports_and_wakes_the_other_control(
    processes: Processes, redis: RedisServer
) -> None:
    system = System(processes, redis, f"sqlite:///{processes.folder}/footplate.db")
    active = system.start_service("all", "active")
    active.until(lambda: works(active), within=30, what="the first service is control")
    waiting = system.start_service("all", "waiting")
    with Redis.from_url(redis.url) as client, client.pubsub(ignore_subscribe_messages=True) as channel:
        channel.subscribe(redis_keys.WAKE_CONTROL)
        waiting.until(
            lambda: "control" not in system.get("/readyz")["degraded"],
            within=30,
            what="the waiting service reports the other one's control",
        )

        system.submit()

        waiting.until(
            lambda: channel.get_message() is not None, within=10, what="the waiting service wakes the active one"
        )
    assert not works(waiting)


@pytest.mark.postgres
@pytest.mark.fault(
    8, without="a control writes only while it is sure of its lock", red="the first control knows that another may work"
)
def test_a_control_that_lost_its_lock_unnoticed_stops_writing(
    processes: Processes,
    redis: RedisServer,
    postgres_server: PostgresServer,
    postgres_url: str,
    protection_off: list[str],
) -> None:
    system = System(processes, redis, postgres_url, without=protection_off)
    plain = postgres_url.replace("+psycopg", "")
    record_writers(plain)
    with closing(Relay(postgres_server.port)) as relay:
        through = postgres_url.replace(f":{postgres_server.port}/", f":{relay.port}/") + "?application_name=cut"
        system.start_service("api")
        cut = system.run("service", "control", FOOTPLATE_DATABASE=through)
        processes.until(lambda: works(cut), within=30, what="the first control works")
        other = system.start_service("control", "other")
        system.start_node()

        relay.swallow(port_of_the_lock(plain))
        processes.until(lambda: works(other), within=30, what="the other control takes over")
        processes.until(
            lambda: "waits for the lock" in cut.output, within=15, what="the first control knows that another may work"
        )
        before = written_by(plain, "cut")
        job = system.submit(LONG_TOY)
        outcome = system.until_settled(job)

        assert written_by(plain, "cut") == before, "it wrote without its lock"
        assert (outcome["state"], outcome["attempt"]) == ("succeeded", 1), outcome
        assert_whole(system.events(job))
        assert grants(system, job) == 1
        cut.kill()


def port_of_the_lock(url: str) -> int:
    """Returns the local port of the connection that holds the lock."""
    with psycopg.connect(url) as line:
        holder = "SELECT client_port FROM pg_stat_activity JOIN pg_locks USING (pid) WHERE locktype = 'advisory'"
        row = line.execute(holder).fetchone()
        assert row is not None
        return int(row[0])


class Relay:
    """A TCP relay between a program and PostgreSQL. Only the server notices when `swallow` cuts a connection."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._servers: dict[int, socket.socket] = {}
        self._swallowed: set[int] = set()
        self._clients: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self, port: int) -> None:
        self._swallowed.add(port)
        self._servers[port].shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.close()
        for line in (*self._clients, *self._servers.values()):
            line.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                port = int(server.getsockname()[1])
                self._clients.append(client)
                self._servers[port] = server
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._carry, args=(source, sink, port), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, port: int) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        if port not in self._swallowed:
            with suppress(OSError):
                sink.shutdown(socket.SHUT_WR)


def grants(system: System, job: str) -> int:
    return len(re.findall(rf"{job} attempt \d+ is granted to this node", system.nodes[1].output))


def record_writers(url: str) -> None:
    """Adds a trigger to each table, which records the program of every write."""
    with psycopg.connect(url, autocommit=True) as line:
        line.execute("CREATE TABLE written (who text DEFAULT current_setting('application_name'), what text)")
        line.execute(
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " INSERT INTO written (what) VALUES (TG_OP || ' ' || TG_TABLE_NAME); RETURN NULL; END $$"
        )
        for table in TABLES:
            line.execute(
                f"CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {table}"  # type: ignore[arg-type]
                " FOR EACH STATEMENT EXECUTE FUNCTION note()"
            )


def written_by(url: str, program: str) -> int:
    with psycopg.connect(url) as line:
        row = line.execute("SELECT count(*) FROM written WHERE who = %s", [program]).fetchone()
        assert row is not None
        return int(row[0])
