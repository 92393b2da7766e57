"""Switches of the protections around the actions that users request of a job."""

from __future__ import annotations

from typing import Any

from tests.faults.off import switch


@switch("changes of state are guarded", module="service.jobs.stopping")
def allow_every_change_of_state(stopping: Any) -> None:
    """Refuses no action and allows every change of state."""
    from service.store import jobs

    store: Any = jobs
    store.may_move = lambda old, new: True
    stopping.refuse = lambda *args, **more: None


@switch("cancel wins", module="service.jobs.conclude")
def let_the_end_override_a_cancel(conclude: Any) -> None:
    """Lets the end of an attempt override a cancel that was acknowledged."""
    from dataclasses import replace

    from footplate.contract.lifecycle import Desired

    policy = conclude.next_move
    conclude.next_move = lambda job, *rest: policy(replace(job, desired=Desired.RUN), *rest)


@switch("prune removes folders of deleted jobs", module="service.jobs.prune")
def prune_no_folders(prune: Any) -> None:
    prune.prune_deleted = lambda artifacts, deleted: None
