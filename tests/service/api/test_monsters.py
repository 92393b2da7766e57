"""Checks for every route that no request within the size limits delays other requests.

Times are CPU times of this process, which other processes do not increase. During a request, a task yields to the event
loop again and again. Its longest wait includes all code in the loop and in threads that hold the interpreter lock. A
request that seems to block is sent twice more, because a real block repeats.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from footplate.contract.ids import JobId
from service.deps import MAX_BODY_BYTES
from tests.service.api.conftest import PATIENCE, Api, Serve
from tests.service.api.test_system import a_node

BAR_SECONDS = 0.05
BUDGET_SECONDS = 20.0
"""CPU seconds that the generated requests may use."""


class Monster(NamedTuple):
    method: str
    path: str
    body: bytes = b""
    headers: tuple[str, ...] = ()
    rest: bytes = b""
    """Bytes that are sent once the answer has begun."""

    def request(self) -> bytes:
        head = [f"{self.method} {self.path} HTTP/1.1", "Host: 127.0.0.1", *(self.headers or ["Connection: close"])]
        if self.body and not any(header.lower().startswith("content-type") for header in self.headers):
            head.append("Content-Type: application/json")
        return "\r\n".join([*head, f"Content-Length: {len(self.body)}", "", ""]).encode("latin-1") + self.body


class Probe:
    """Measures from a thread how long the event loop is blocked during a request."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address, self._loop = (parts.hostname, parts.port), asyncio.get_running_loop()

    def blocked(self, monster: Monster) -> tuple[float, int]:
        """Returns the blocked seconds, the minimum of up to three tries, and the status of the answer."""
        least, status = self._tried(monster)
        for _ in range(2):
            if least >= BAR_SECONDS:
                least = min(least, self._tried(monster)[0])
        return least, status

    def _tried(self, monster: Monster) -> tuple[float, int]:
        request = monster.request()
        begun, over = threading.Event(), threading.Event()
        watching = asyncio.run_coroutine_threadsafe(_longest_wait(begun, over), self._loop)
        assert begun.wait(PATIENCE)
        try:
            answer = self._exchange(request, monster.rest)
        finally:
            over.set()
        return watching.result(PATIENCE), int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/") else 0

    def _exchange(self, request: bytes, rest: bytes) -> bytes:
        with socket.create_connection(self._address, PATIENCE) as connection:
            try:
                connection.sendall(request)
                if rest:
                    assert connection.recv(65536)
                    connection.sendall(rest)
                # When the first part of the answer arrives, the server has done all of the work.
                return connection.recv(65536)
            except (BrokenPipeError, ConnectionResetError):
                return b""


async def _longest_wait(begun: threading.Event, over: threading.Event) -> float:
    longest, last = 0.0, time.process_time()
    while not over.is_set():
        await asyncio.sleep(0)
        now = time.process_time()
        longest, last = max(longest, now - last), now
        begun.set()
    return longest


@pytest.fixture
async def served(serve: Serve, sqlite_url: str) -> tuple[Api, JobId]:
    api = await serve(sqlite_url)
    await a_node(api)
    job = await api.submit()
    return api, job


def filled(before: str, unit: str, after: str, size: int = MAX_BODY_BYTES) -> bytes:
    """Returns a body of up to `size` bytes with as many comma-separated units as fit."""
    count = (size - len(before) - len(after)) // (len(unit) + 1)
    return (before + ",".join([unit] * count) + after).encode()


def numbered(before: str, unit: str, after: str, count: int) -> bytes:
    return (before + ",".join(unit.replace("#", f"{n:05x}") for n in range(count)) + after).encode()


HANDSHAKE = (
    "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)  # fmt: skip
SPEC = '{"model":"toy/mlp","data":"toy/regression",'
ATTACKS: dict[str, Callable[[str], Monster]] = {
    "60,000 unknown metrics": lambda job: Monster(
        "POST", "/jobs", numbered(SPEC + '"metrics":[', '"accurac#"', "]}", 60_000)
    ),
    "9,000 unknown metrics": lambda job: Monster(
        "POST", "/jobs", numbered(SPEC + '"metrics":[', '"accurac#"', "]}", 9_000)
    ),
    "9,000 unknown callbacks": lambda job: Monster(
        "POST", "/jobs", numbered(SPEC + '"callbacks":[', '"early#"', "]}", 9_000)
    ),
    "9,000 unknown maps": lambda job: Monster(
        "POST", "/jobs", numbered('{"model":"toy/mlp","data":{"train":"toy/regression","map":[', '"tok#"', "]}}", 9_000)
    ),
    "100 unknown metrics in a small body": lambda job: Monster(
        "POST", "/jobs", numbered(SPEC + '"metrics":[', '"accur#"', "]}", 150)
    ),
    "100 unknown arguments in a small body": lambda job: Monster(
        "POST", "/jobs", numbered(SPEC + '"training":{', '"learning_#":1', "}}", 90)
    ),
    "9,000 unknown keys": lambda job: Monster("POST", "/jobs", numbered(SPEC, '"prior#":1', "}", 9_000)),
    "9,000 wrong variables": lambda job: Monster("POST", "/jobs", numbered(SPEC + '"env":{', '"V#":1', "}}", 9_000)),
    "9,000 wrong tags": lambda job: Monster("PATCH", f"/jobs/{job}", numbered('{"tags":[', "#"[:0] + "1", "]}", 9_000)),
    "components that are nothing but unknown keys": lambda job: Monster(
        "POST", "/jobs/validate", numbered(SPEC + '"metrics":[', '{"use":"a","x#":1}', "]}", 3_300)
    ),
    "components without a name": lambda job: Monster(
        "POST", "/jobs/validate", filled(SPEC + '"callbacks":[', "{}", "]}", 27_000)
    ),
    "patterns that are slow to compile": lambda job: Monster(
        "POST",
        "/jobs",
        (SPEC + '"optimizers":[{"id":"a","use":"adamw","params":["(?i)' + "[\\\\0-\\\\uffff]" * 40 + '"]}]}').encode(),
    ),
    "patterns of ASCII": lambda job: Monster(
        "POST",
        "/jobs",
        (SPEC + '"optimizers":[{"id":"a","use":"adamw","params":["(?i)' + "[\\u0001-\\u007f]" * 80 + '"]}]}').encode(),
    ),
    "repeated keys": lambda job: Monster("POST", "/jobs", filled("{", '"":0', "}")),
    "9,000 repeated keys": lambda job: Monster("POST", "/jobs", filled("{", '"":0', "}", 9_000 * 5)),
    "NaN": lambda job: Monster("POST", "/jobs", filled("[", "NaN", "]")),
    "9,000 NaN": lambda job: Monster("POST", "/jobs", filled("[", "NaN", "]", 9_000 * 4)),
    "nested lists": lambda job: Monster("POST", "/jobs", filled("[", "[" * 30 + "]" * 30, "]")),
    "a bottomless list": lambda job: Monster("POST", "/jobs", b"[" * MAX_BODY_BYTES),
    "empty strings": lambda job: Monster("POST", "/jobs", filled("[", '""', "]")),
    "surrogates": lambda job: Monster("POST", "/jobs", filled("[", '"\\ud800"', "]")),
    "quotes without an end": lambda job: Monster("POST", "/jobs", b'"' + b'\\"' * (MAX_BODY_BYTES // 2 - 1)),
    "a number of a million digits": lambda job: Monster("POST", "/jobs", b"[" + b"9" * (MAX_BODY_BYTES - 2) + b"]"),
    "a name of a million characters": lambda job: Monster(
        "POST", "/jobs", (SPEC + '"name":"' + "a" * 1_000_000 + '"}').encode()
    ),
    "a key of a million characters": lambda job: Monster(
        "POST", "/jobs", ('{"' + "a" * 900_000 + '":[' + ",".join(["NaN"] * 100) + "]}").encode()
    ),
    "metadata of 9,000 values": lambda job: Monster(
        "PATCH", f"/jobs/{job}", filled('{"metadata":{"a":[', "0", "]}}", 18_000)
    ),
    "a patch of 9,000 values": lambda job: Monster(
        "POST", f"/jobs/{job}/fork", numbered('{"patch":{"training":{', '"learning_#":1', "}}}", 9_000)
    ),
    "a wish of 9,000 arguments": lambda job: Monster(
        "POST", f"/jobs/{job}/do", numbered('{"set":{', '"learning_#":1', "}}", 9_000)
    ),
    "resources of 9,000 names": lambda job: Monster(
        "POST", f"/jobs/{job}/resume", numbered('{"resources":{', '"gpu#":1', "}}", 9_000)
    ),
    "9,000 jobs at once": lambda job: Monster(
        "POST", "/jobs/bulk", numbered('{"action":"cancel","ids":[', '"job_#"', "]}", 9_000)
    ),
    "60,000 states": lambda job: Monster("GET", "/jobs?state=" + "," * 60_000),
    "20,000 kinds": lambda job: Monster("GET", f"/jobs/{job}/events?kinds=" + "a," * 20_000),
    "10,000 names of metrics": lambda job: Monster(
        "GET", f"/jobs/{job}/metrics/series?points=10&names=" + ",".join(f"{n:x}" for n in range(4_000))
    ),
    "7,000 parameters": lambda job: Monster("GET", "/livez?" + "&".join(f"p{n}=" for n in range(7_000))),
    "a parameter of escapes": lambda job: Monster("GET", "/jobs?name=" + "%41" * 21_000),
    "5,000 headers": lambda job: Monster("GET", "/livez", headers=tuple(f"a{n}: b" for n in range(5_000))),
    "14,000 requests at once": lambda job: Monster(
        "GET", "/livez", rest=b"GET / HTTP/1.1\r\n\r\n" * 14_000, headers=("Connection: keep-alive",)
    ),
    "40,000 frames at once": lambda job: Monster(
        "GET", f"/jobs/{job}/stream", headers=HANDSHAKE, rest=b"\x8a\x80\0\0\0\0" * 40_000
    ),
    "1,300 frames at once": lambda job: Monster(
        "GET", f"/jobs/{job}/stream", headers=HANDSHAKE, rest=b"\x8a\x80\0\0\0\0" * 1_300
    ),
    "a long Accept": lambda job: Monster("GET", f"/jobs/{job}/metrics/summary", headers=("Accept: " + "a," * 30_000,)),
    "a form of nothing but half boundaries": lambda job: Monster(
        "POST",
        "/files",
        b"--b\r\nContent-Disposition: form-data; name=a; filename=a.csv\r\n\r\n" + b"\r\n--" * 250_000,
        ("Content-Type: multipart/form-data; boundary=b",),
    ),
    "a form of headers": lambda job: Monster(
        "POST", "/files", b"--b\r\n" + b"a:b\r\n" * 150_000, ("Content-Type: multipart/form-data; boundary=b",)
    ),
    "a form with an endless header": lambda job: Monster(
        "POST", "/files", b"--b\r\n" + b"a" * 1_000_000, ("Content-Type: multipart/form-data; boundary=b",)
    ),
}


async def test_no_known_attack_delays_other_requests(served: tuple[Api, JobId]) -> None:
    api, job = served
    probe = Probe(api.url)

    result = {}
    for name, attack in ATTACKS.items():
        result[name] = await asyncio.to_thread(probe.blocked, attack(job))

    print("\n".join(f"{seconds * 1000:8.1f} ms  {status}  {name}" for name, (seconds, status) in result.items()))
    assert {name: status for name, (_, status) in result.items() if status >= 500} == {}
    assert {name: seconds for name, (seconds, _) in result.items() if seconds >= BAR_SECONDS} == {}


UNITS = ("[]", "{}", '""', "0", "-1e308", "1e999", "NaN", "null", '"a"', '"\\ud800"', '"\\u0000"', '{"use":"toy/mlp"}',
         '{"use":"x#","args":{"a#":1}}', '"x#"', '{"id":"a#","use":"b#","params":["c#"]}', "9" * 4000,
         "[" * 30 + "]" * 30, '{"a":' * 30 + "1" + "}" * 30)  # fmt: skip
SIZES = (20, 90, 1_000, 9_000, 300_000)
"""Numbers of units. Small bodies are parsed in the event loop itself, and the largest are reduced to the limit."""


def bodies(names: list[str]) -> st.SearchStrategy[bytes]:
    """Generates objects whose fields contain very many small values."""
    key = st.sampled_from([*names, "metrics", "training", "args", "x"])
    return st.builds(flood, key, key, st.sampled_from(UNITS), st.sampled_from(SIZES), st.booleans(), st.booleans())


def flood(outer: str, inner: str, unit: str, count: int, is_object: bool, is_nested: bool) -> bytes:
    before, after = (f'{{"{outer}":{{"{inner}":', "}}") if is_nested else (f'{{"{outer}":', "}")
    text = f'"k#":{unit}' if is_object else unit
    count = min(count, (MAX_BODY_BYTES - 200) // (len(text.replace("#", "00000")) + 1))
    opening, closing = "{}" if is_object else "[]"
    return numbered(before + opening, text, closing + after, count)


def fields_of(document: dict[str, Any], operation: dict[str, Any]) -> list[str]:
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    name = schema.get("$ref", "").rpartition("/")[2]
    return list((document["components"]["schemas"][name] if name else schema).get("properties", {}))


def addresses(path: str, operation: dict[str, Any], job: str) -> st.SearchStrategy[str]:
    """Generates addresses of the route, with and without a very long query."""
    here = path.replace("{job}", job).replace("{checkpoint}", "latest").replace("{", "").replace("}", "")
    names = [item["name"] for item in operation.get("parameters", ()) if item["in"] == "query"]
    floods = st.sampled_from([",", "a,", "%41", "a", "&", "&a=", "%2C", "queued,", "\\", "9", "+"])
    values = st.builds(lambda text, count: text * (count // len(text)), floods, st.sampled_from((10, 2_000, 60_000)))
    query = st.builds("{}={}".format, st.sampled_from([*names, "project", "x"]), values)
    return st.one_of(st.just(here), query.map(lambda text: f"{here}?{text}"))


def monsters(document: dict[str, Any], job: str) -> st.SearchStrategy[Monster]:
    result = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            verb, address = st.just(method.upper()), addresses(path, operation, job)
            result.append(st.builds(_of, verb, address, st.just(b"")))
            if fields := fields_of(document, operation):
                result += [st.builds(_of, verb, address.map(lambda text: text.partition("?")[0]), bodies(fields))] * 3
    return st.one_of(result)


def _of(method: str, path: str, body: bytes) -> Monster:
    return Monster(method, path, body)


async def test_no_large_request_within_the_limits_delays_others(served: tuple[Api, JobId]) -> None:
    api, job = served
    probe, document = Probe(api.url), (await api.client.get("/openapi.json")).json()
    until = time.process_time() + BUDGET_SECONDS
    tried: list[str] = []

    @given(monsters(document, job))
    @settings(
        max_examples=300, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    def property_holds(monster: Monster) -> None:
        if time.process_time() < until:
            seconds, status = probe.blocked(monster)
            what = f"{monster.method} {monster.path[:80]} {monster.body[:80]!r}"
            tried.append(f"{seconds * 1000:8.1f} ms  {status}  {what}")
            assert status < 500, what
            assert seconds < BAR_SECONDS, what

    await asyncio.to_thread(property_holds)
    print(len(tried), *sorted(tried)[-10:], sep="\n")
    assert len(tried) > 50
