"""Every protection that a fault test has, by name, and how a test turns it off in the processes that it starts.

A switch changes one module right after its import. Without the protection the test must fail, which shows that the
test injects a real fault. Every process of such a test loads the switches, so they import only the standard library.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

TurnOff = Callable[[Any], None]


class Switch(NamedTuple):
    module: str
    turn_off: TurnOff


SWITCHES: dict[str, Switch] = {}


def switch(name: str, module: str) -> Callable[[TurnOff], TurnOff]:
    """Names a protection of `module`, which the decorated function turns off."""

    def register(turn_off: TurnOff) -> TurnOff:
        assert name not in SWITCHES, f"there is a switch named {name!r} already"
        SWITCHES[name] = Switch(module, turn_off)
        return turn_off

    return register


@contextmanager
def turned_off(name: str) -> Iterator[None]:
    """Turns a protection off in this process, for a test that starts no other processes."""
    module = importlib.import_module(SWITCHES[name].module)
    classes = [
        entry for entry in vars(module).values() if isinstance(entry, type) and entry.__module__ == module.__name__
    ]
    before = [(place, dict(vars(place))) for place in (module, *classes)]
    SWITCHES[name].turn_off(module)
    try:
        yield
    finally:
        for place, names in before:
            for item, was in names.items():
                if vars(place)[item] is not was:
                    setattr(place, item, was)


for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")
