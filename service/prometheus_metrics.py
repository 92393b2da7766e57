"""The metrics for Prometheus: requests and streams of this process, jobs and nodes in SQL, and control's counters."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest

from service.counters import GAUGES, prometheus_name

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Meters:
    """The metrics of one process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._requests = Counter(
            "footplate_requests", "Requests that were answered.", ["method", "route", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "footplate_request_seconds",
            "Time from a request to the end of its answer.",
            ["route"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.sockets = Gauge("footplate_open_streams", "Open websockets and event streams.", registry=self.registry)
        self.slow_readers = Counter(
            "footplate_slow_readers", "Streams closed because the client did not read.", registry=self.registry
        )
        self._jobs = Gauge("footplate_jobs", "Jobs by state.", ["state"], registry=self.registry)
        self._waiting = Gauge("footplate_jobs_waiting", "Queued jobs by reason.", ["reason"], registry=self.registry)
        self._nodes = Gauge("footplate_nodes", "Nodes by state.", ["state"], registry=self.registry)
        self._slots = Gauge("footplate_slots", "Slots of nodes that are up.", registry=self.registry)
        # Cached, because labels() locks and hashes at each request.
        self._counter, self._timer = cache(self._requests.labels), cache(self._seconds.labels)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        self._counter(method, route, str(status)).inc()
        self._timer(route).observe(seconds)

    def render(
        self,
        jobs: Mapping[str, int],
        waiting: Mapping[str, int],
        nodes: Mapping[str, int],
        slots: int,
        control: Mapping[str, int],
    ) -> bytes:
        """Returns all metrics as Prometheus reads them: this process's own, and the given ones of SQL and control."""
        self._waiting.clear()
        for reason, count in waiting.items():
            self._waiting.labels(reason).set(count)
        for gauge, counts in ((self._jobs, jobs), (self._nodes, nodes)):
            for state, count in counts.items():
                gauge.labels(state).set(count)
        self._slots.set(slots)
        return generate_latest(self.registry) + _control(control)


def _control(counts: Mapping[str, int]) -> bytes:
    """Formats control's counters as Prometheus reads them. Control may be another process, so no registry has them."""
    lines = []
    for name, value in counts.items():
        name_only, brace, label = name.partition("{")
        full_name = prometheus_name(name_only)
        type_line = f"# TYPE {full_name} {'gauge' if name_only in GAUGES else 'counter'}"
        lines += [*([type_line] if type_line not in lines else []), f"{full_name}{brace}{label} {value}"]
    return "".join(f"{line}\n" for line in lines).encode()
