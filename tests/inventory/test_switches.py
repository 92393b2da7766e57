"""Checks that the switches of protections in tests/faults/off fit the code that they change.

A switch has its module and the replaced names as strings, so neither mypy nor an import notices a changed name.
"""

from __future__ import annotations

from tests.support.template import run_after_imports

TURN_ALL_OFF = """
import ast
import importlib
import inspect
import operator
from tests.faults.off import SWITCHES


def check_names_that_are_read(name, code, turn_off):
    # The body of a lambda runs much later, in the middle of a fault test, so the names in it are looked up here.
    (given,) = inspect.signature(turn_off).parameters
    nodes = ast.walk(ast.parse(inspect.getsource(turn_off)))
    for read in {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}:
        first, _, path = read.partition(".")
        if first == given and path.replace(".", "").isidentifier():
            try:
                operator.attrgetter(path)(code)
            except AttributeError as error:
                raise AssertionError(f"the switch {name!r} reads {read}: {error}") from None


for name, (module, turn_off) in SWITCHES.items():
    code = importlib.import_module(module)
    check_names_that_are_read(name, code, turn_off)
    places = [code, *(item for item in vars(code).values() if isinstance(item, type))]
    before = [(place, dict(vars(place))) for place in places]
    turn_off(code)
    for place, names in before:
        added = vars(place).keys() - names.keys()
        assert not added, f"the switch {name!r} sets {added} of {place.__name__}, which has no such names"
        for item in [item for item in names if vars(place)[item] is not names[item]]:
            setattr(place, item, names[item])
"""


def test_every_switch_of_a_protection_uses_module_names_that_exist() -> None:
    run_after_imports("-c", TURN_ALL_OFF)
