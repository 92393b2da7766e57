"""Finds, stores and seeds the random generators that a collator or a sampler keeps for itself.

A collator for masked language models with a `seed` has such a generator. Hugging Face's collators make theirs at
their first batch. TRL's sampler for GRPO has one, too.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy
import torch

GENERATORS = (torch.Generator, numpy.random.Generator, numpy.random.RandomState, random.Random)


class OwnGenerators:
    """The generators of a collator or sampler: in its attributes, in those of objects that it calls, or as globals."""

    def __init__(self, collator_or_sampler: Any) -> None:
        self._owners = _owners(collator_or_sampler)
        self._own_seeds: dict[str, int] = {}

    def state(self) -> dict[str, Any]:
        """Returns the generators' states. In the key `0.generator`, 0 is the index of the object with the generator."""
        return {name: _state(generator) for name, generator in self._all()}

    def restore(self, states: Mapping[str, Any]) -> None:
        """Sets the generators to stored states. Makes generators that the collator would make at its first batch."""
        generators = dict(self._all())
        for name, (kind, state) in states.items():
            if name not in generators:
                place, attribute = name.split(".", 1)
                owner = self._owners[int(place)] if int(place) < len(self._owners) else None
                if getattr(owner, attribute, ...) is not None:
                    continue  # the script uses another collator than the run before, so there is nothing to restore
                generators[name] = _made(kind)
                setattr(owner, attribute, generators[name])
            _set_state(generators[name], state)

    def seed(self, seed: int) -> None:
        """Seeds each generator by `seed` and its collator's own seed, so that its draws depend on nothing else."""
        for owner in self._owners:
            names = _names(owner)
            # A collator with a seed may make its generator only at its first batch.
            if names.get("seed") is not None and names.get("generator", ...) is None and hasattr(owner, "create_rng"):
                owner.create_rng()
        for name, generator in self._all():
            if name not in self._own_seeds:
                own_seed = getattr(self._owners[int(name.split(".", 1)[0])], "seed", None)
                self._own_seeds[name] = own_seed if isinstance(own_seed, int) else _drawn(generator)
            # The large odd factor keeps a seed apart from the seeds of the next batches.
            _seed(generator, (seed + self._own_seeds[name] * 0x9E3779B97F4A7C15) % 2**63)

    def _all(self) -> Iterator[tuple[str, Any]]:
        for place, owner in enumerate(self._owners):
            for name, value in _names(owner).items():
                if isinstance(value, GENERATORS):
                    yield f"{place}.{name}", value


def _owners(collator_or_sampler: Any) -> list[Any]:
    """Returns the collator or sampler, and every callable that it uses.

    An object uses its attributes. A function uses the global and enclosing names in its code.
    """
    owners, ids, waiting = [], set[int](), [collator_or_sampler]
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, partial):
            waiting += [value.func, *value.args, *value.keywords.values()]
        elif inspect.ismethod(value):
            waiting.append(value.__self__)
        elif id(value) not in ids and not isinstance(value, (*GENERATORS, type, torch.nn.Module)):
            ids.add(id(value))
            owners.append(value)
            waiting += [
                callee
                for callee in _names(value).values()
                # Functions that a function calls are left out, because the search would go on to the whole module.
                if callable(callee) and not (inspect.isfunction(value) and inspect.isfunction(callee))
            ]
    return owners


def _names(owner: Any) -> Mapping[str, Any]:
    """Returns an object's attributes by name. For a function, returns the global and enclosing names that it uses."""
    if inspect.isfunction(owner):
        used = inspect.getclosurevars(owner)
        return {**used.globals, **used.nonlocals}
    return getattr(owner, "__dict__", {})


def _state(generator: Any) -> tuple[str, Any]:
    if isinstance(generator, torch.Generator):
        return "torch", generator.get_state()
    if isinstance(generator, numpy.random.Generator):
        return type(generator.bit_generator).__name__, generator.bit_generator.state
    if isinstance(generator, numpy.random.RandomState):
        return "RandomState", generator.get_state()
    return "random", generator.getstate()


def _made(kind: str) -> Any:
    classes = {"torch": torch.Generator, "RandomState": numpy.random.RandomState, "random": random.Random}
    return classes[kind]() if kind in classes else numpy.random.Generator(getattr(numpy.random, kind)())


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, numpy.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def _seed(generator: Any, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, numpy.random.Generator):
        bits: Any = type(generator.bit_generator)
        generator.bit_generator.state = bits(seed).state
    else:
        generator.seed(seed % 2**32)


def _drawn(generator: Any) -> int:
    """Draws a number from the generator. The number depends on the seed that the user gave to the generator."""
    if isinstance(generator, torch.Generator):
        return int(torch.randint(2**31, (), generator=generator, device=generator.device))
    if isinstance(generator, numpy.random.Generator):
        return int(generator.integers(2**31))
    if isinstance(generator, numpy.random.RandomState):
        return int(generator.randint(2**31))
    return int(generator.getrandbits(31))
