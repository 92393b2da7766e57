"""The faults of the simulation, by name, so that a failing seed can be tried without each of them."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tests.simulation.world import HOUR_MS, Weather

if TYPE_CHECKING:
    from tests.simulation.nodes import Node
    from tests.simulation.railway import Railway

STRIKES = (
    "node_killed", "power_cut", "disk_gone", "node_frozen", "node_cut_off", "supervisor_killed", "warm_restart",
    "drain", "redis_emptied", "redis_away", "control_killed", "control_frozen", "sql_away", "clock_jumps", "bit_flips",
)  # fmt: skip
_ZOMBIES = ("node_frozen", "node_cut_off")
"""Faults after which two processes may run one attempt. More seeds have these faults, because they matter most."""
HABITS = ("users", "crashes", "poison", "hangs", "deaf")
ROTATION = "rotation"
"""Jobs limit the number of their checkpoints over all attempts."""
NETWORK = ("drop", "twice", "late", "half", "interleave")
ALL = frozenset((*STRIKES, *HABITS, ROTATION, *NETWORK))


def weather_of(seed: int, without: frozenset[str] = frozenset()) -> Weather:
    """Returns some of the possible faults for a seed, because a world with all faults would make no progress."""
    dice = Random(f"weather-{seed}")
    some = frozenset(name for name in (*STRIKES, *HABITS) if dice.random() < (0.5 if name in _ZOMBIES else 0.25))
    rates = {name: dice.choice([0.0, 0.0, 0.02, 0.1]) for name in NETWORK}
    rates = {name: 0.0 if name in without else rate for name, rate in rates.items()}
    if dice.random() < 0.5:
        some |= {ROTATION}
    return Weather(some - without, **rates)


class Adversary:
    def __init__(self, railway: Railway, until: float) -> None:
        self.railway, self.world, self.until = railway, railway.world, until
        self.strikes = sorted(self.world.weather.faults.intersection(STRIKES))
        if self.strikes:
            self.world.after(self.world.between(1, 6), self._turn)

    def _turn(self) -> None:
        if self.world.clock >= self.until:
            return
        getattr(self, self.world.dice.choice(self.strikes))()
        self.world.after(self.world.between(0.3, 6), self._turn)

    def _node(self) -> Node:
        return self.world.dice.choice(self.railway.nodes)

    def _for(self, low: float = 0.5, high: float = 15.0) -> float:
        return self.world.between(low, high)

    # Nodes

    def node_killed(self) -> None:
        self._down("is killed")

    def power_cut(self) -> None:
        self._down("loses power", loses_power=True)

    def disk_gone(self) -> None:
        self._down("loses its disk", loses_disk=True)

    def _down(self, how: str, **losses: bool) -> None:
        node = self._node()
        if node.start is not None:
            self.world.say(node.name, how)
            node.down(**losses)
            self.world.after(self._for(), node.up)

    def node_frozen(self) -> None:
        """Freezes all processes of a node, which continue later in the same state."""
        node = self._node()
        self.world.say(node.name, "freezes")
        node.is_frozen = True
        self.world.after(self._for(3, 18), self._thaw, node, node.start)

    def _thaw(self, node: Node, start: object) -> None:
        if node.start is start and node.is_frozen:
            self.world.say(node.name, "thaws")
            node.is_frozen = False

    def node_cut_off(self) -> None:
        """Cuts off a node, whose training continues without sending anything."""
        node = self._node()
        self.world.say(node.name, "is cut off")
        node.line.is_cut = True
        self.world.after(self._for(3, 18), self._connect, node)

    def _connect(self, node: Node) -> None:
        if node.line.is_cut:
            self.world.say(node.name, "is connected again")
            node.line.is_cut = False

    def supervisor_killed(self) -> None:
        node = self._node()
        living = [supervisor for supervisor in node.start.supervisors if not supervisor.is_over] if node.start else []
        if living:
            item = self.world.dice.choice(living)
            self.world.say(item.name, "is killed")
            item.dies()

    def warm_restart(self) -> None:
        """Kills the warm parent of a node, and with it all training of the node."""
        node = self._node()
        self.world.say(node.name, "loses its warm parent")
        for supervisor in node.start.supervisors if node.start else []:
            supervisor.training.is_dead = True

    def drain(self) -> None:
        node = self._node()
        if node.start is not None and not node.drains:
            self.world.say(node.name, "drains")
            node.drains = True
            self.world.after(self._for(3, 12), self._restart, node, node.start)

    def _restart(self, node: Node, start: object) -> None:
        if node.start is start:
            node.down()
            self.world.after(1.0, node.up)

    # Redis, SQL, control

    def redis_emptied(self) -> None:
        self.world.say("redis", "restarts empty")
        self.railway.redis.empty()

    def redis_away(self) -> None:
        self.world.say("redis", "is away")
        self.railway.redis.is_unavailable = True
        self.world.after(self._for(), self._redis_back)

    def _redis_back(self) -> None:
        if self.railway.redis.is_unavailable:
            self.world.say("redis", "is back")
            self.railway.redis.is_unavailable = False

    def sql_away(self) -> None:
        self.world.say("sql", "is away")
        self.railway.sql.is_unavailable = True
        self.world.after(self._for(0.3, 12), self._sql_back)

    def _sql_back(self) -> None:
        if self.railway.sql.is_unavailable:
            self.world.say("sql", "is back")
            self.railway.sql.is_unavailable = False

    def control_killed(self) -> None:
        if (control := self.railway.stop_control()) is not None:
            self.world.say(control.name, "is killed")
            control.die()
            self.world.after(self._for(0.1, 12), self.railway.start_control)

    def control_frozen(self) -> None:
        """Freezes a control, which loses its lock.

        When it thaws, another control works. The first one dies a second later, when it has noticed.
        """
        if (control := self.railway.stop_control()) is not None:
            self.world.say(control.name, "freezes, and loses its lock")
            control.is_frozen = True
            self.world.after(self._for(0.1, 2), self.railway.start_control)
            thawed = self._for(1, 15)

            def thaw() -> None:
                self.world.say(control.name, "thaws")
                control.is_frozen = False

            self.world.after(thawed, thaw)
            self.world.after(thawed + 1.0, control.die)

    # Time and disks

    def clock_jumps(self) -> None:
        hours = self.world.dice.choice([-1, 1])
        self.world.say("world", "wall clocks jump by {} h", hours)
        self.world.wall_ms += hours * HOUR_MS

    def bit_flips(self) -> None:
        whole = sorted(path for path, is_whole in self.railway.store.whole.items() if is_whole)
        if whole:
            path = self.world.dice.choice(whole)
            self.world.say(
                "store", "loses a bit of {}", path.replace(path.split("/")[1], self.world.name(path.split("/")[1]))
            )
            self.railway.store.flip_a_bit(path)
