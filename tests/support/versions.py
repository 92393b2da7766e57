"""Real nodes that announce the previous or the next protocol version in every message."""

from __future__ import annotations

import os

from footplate.contract.messages import PROTOCOL
from tests.support.processes import REPOSITORY, Process
from tests.support.system import System

BEFORE, AFTER = PROTOCOL - 1, PROTOCOL + 1

OF_ANOTHER_VERSION = """
from footplate.contract import messages
for each in vars(messages).values():
    if isinstance(each, type) and issubclass(each, messages.ProtocolMessage):
        each.model_fields["protocol"].default = {protocol}
        each.model_rebuild(force=True)
for name, union in (("TO_CONTROL", messages.ToControl), ("TO_ATTEMPT", messages.ToAttempt)):
    setattr(messages, name, messages.TypeAdapter(union))
messages.PROTOCOL = {protocol}
"""


def start_node_of(
    protocol: int, system: System, number: int = 1, *, slots: int = 1, wait: bool = True, **environment: str
) -> Process:
    folder = system.processes.folder / f"protocol-{protocol}"
    folder.mkdir()
    path = system.environment.get("PYTHONPATH", os.fspath(REPOSITORY))
    (folder / "sitecustomize.py").write_text(OF_ANOTHER_VERSION.format(protocol=protocol))
    environment["PYTHONPATH"] = f"{folder}{os.pathsep}{path}"
    return system.start_node(number, slots=slots, wait=wait, **environment)
