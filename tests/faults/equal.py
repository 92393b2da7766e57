"""Compares a disturbed job bit for bit with an undisturbed job of the same spec."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.system import System

MODEL, OPTIMIZER, SCHEDULER, RNG = "model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"


def assert_bit_equal(system: System, job: str, quiet: str) -> None:
    """Compares every loss, and the weights, optimizer, schedule and random generators of the last checkpoint."""
    for job_id in (job, quiet):
        outcome = system.until_settled(job_id)
        assert outcome["state"] == "succeeded", outcome
    mine, theirs = system.losses(job), system.losses(quiet)
    differ = [step for step in sorted(mine | theirs) if mine.get(step) != theirs.get(step)]
    assert not differ, f"not the same losses from step {differ[0]} on"
    assert system.final_weights(job) == system.final_weights(quiet), "not the same weights"
    mine_last, quiet_last = fingerprint(system, job), fingerprint(system, quiet)
    assert mine_last == quiet_last, {name: mine_last[name] == quiet_last[name] for name in mine_last}


def fingerprint(system: System, job: str) -> dict[str, str]:
    """Returns the digests of the newest checkpoint's files."""
    from safetensors.torch import load_file

    from footplate.trainer.checkpoint import load_tensors
    from tests.support.training import digest

    newest = max(system.get(f"/jobs/{job}/checkpoints")["data"], key=lambda row: (row["step"], row["no"]))
    folder = system.folder / "artifacts" / newest["path"]
    digests = {name: digest(load_tensors(folder, name)) for name in (OPTIMIZER, SCHEDULER, RNG)}
    return {"step": str(newest["step"]), MODEL: digest(load_file(folder / MODEL)), **digests}
