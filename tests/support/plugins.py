"""Registers the components of the tests like those of an installed package."""

from __future__ import annotations

from pathlib import Path

OF_SYSTEMS = """\
[footplate.callbacks]
test/gate = tests.support.gates:Gatekeeper
test/training_fault = tests.faults.training_faults:TrainingFault
test/chatter = tests.faults.chatter:Chatter
"""


def register(folder: Path, entry_points: str) -> Path:
    """Registers entry points. Returns the folder that processes need on their PYTHONPATH to use the components."""
    info = folder / "footplate_test_parts-1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: footplate-test-parts\nVersion: 1\n")
    (info / "entry_points.txt").write_text(entry_points)
    return folder
