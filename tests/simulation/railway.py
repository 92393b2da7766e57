"""The whole simulation of SQL, Redis, control, nodes and users, from the first job until nothing more happens."""

from __future__ import annotations

from footplate.contract.ids import JobId
from footplate.contract.lifecycle import JobState
from tests.simulation.books import Books
from tests.simulation.control import SETTINGS, Control
from tests.simulation.ground import Ground, Sql
from tests.simulation.nodes import Node
from tests.simulation.pipe import Redis
from tests.simulation.training import Plan, Store
from tests.simulation.users import Users
from tests.simulation.world import QUIET, Violation, World

CHAOS_SECONDS = 30.0
QUIET_SECONDS = 240.0
"""Seconds within which all jobs must end after the faults. They suffice for several leases, stops and backoffs."""


class Railway:
    def __init__(self, world: World, ground: Ground) -> None:
        self.world = world
        self.books = Books(world, SETTINGS.lease_seconds)
        self.books.rows, self.books.changes = ground.rows, ground.changes
        self.ground = ground
        self.redis = Redis(world, self.books)
        self.sql = Sql(world, ground, self.books)
        self.store = Store()
        self.plans: dict[JobId, Plan] = {}
        self.users = Users(self)
        self.controls = 0
        self.control: Control | None = None

    def open(self) -> None:
        world = self.world
        self.start_control()
        self.nodes = [Node(self, f"node{number}", slots) for number, slots in ((1, 2), (2, 2))]
        for node in self.nodes:
            world.after(world.between(0, 2), node.up)
        self.users.begin()

    def start_control(self) -> None:
        if self.control is None:
            self.controls += 1
            self.control = Control(self, f"control-{self.controls}")
            self.world.say(self.control.name, "works")

    def stop_control(self) -> Control | None:
        control, self.control = self.control, None
        return control

    # The end

    def heal(self) -> None:
        """Ends all faults, so that everything works from now on."""
        world = self.world
        world.say("world", "all is well from here on")
        world.weather = QUIET
        self.redis.is_unavailable = self.sql.is_unavailable = False
        self.start_control()
        assert self.control is not None
        self.control.is_frozen = False
        for node in self.nodes:
            node.is_frozen = node.line.is_cut = False
            if node.drains:
                node.down()
            node.up()

    def is_quiet(self) -> bool:
        """Returns True if no process has any work left."""
        return self.is_settled() and self.redis.is_idle and not self.left_journals() and not self.books.going()

    def is_settled(self) -> bool:
        resting = {JobState.PAUSED.value} | {state.value for state in JobState if state.is_terminal}
        return all(job.state in resting for job in self.books.jobs.values())

    def left_journals(self) -> list[str]:
        return [path.name for node in self.nodes for path in node.journals]

    def close(self) -> None:
        """Checks what must be true once no process has any work left."""
        if not self.is_quiet():
            stuck = [
                f"{self.world.name(job.id)} {job.state} ({job.reason}) attempt {job.attempt}"
                for job in self.books.jobs.values()
            ]
            raise Violation(
                f"not quiet after {QUIET_SECONDS:g} s of peace: {stuck}, journals {self.left_journals()}, "
                f"stream {len(self.redis.stream)}, checkpoints {self.books.going()}"
            )
        self.books.close()
        for path in self.books.gone():
            self.world.must(path not in self.store.whole, "{} was rotated away, and is there", path)
        for job, row in self.books.jobs.items():
            was_harmed = job in self.store.was_harmed
            if row.reason == "no_valid_checkpoint" and not was_harmed:
                raise Violation(f"{self.world.name(job)} has no valid checkpoint, and no disk has harmed one")
