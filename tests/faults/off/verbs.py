"""Switches of the protections around what users ask of a job."""

from __future__ import annotations

from typing import Any

from tests.faults.off import switch


@switch("moves are guarded", module="service.jobs.stopping")
def move_anything_anywhere(stopping: Any) -> None:
    """No verb is refused, and the table of moves has every move."""
    from service.store import jobs

    store: Any = jobs
    store.may_move = lambda old, new: True
    stopping.refuse = lambda *asked, **more: None


@switch("cancel wins", module="service.jobs.conclude")
def let_the_end_win(conclude: Any) -> None:
    """Lets the end of an attempt decide, whatever its user was answered."""
    from dataclasses import replace

    from footplate.contract.lifecycle import Desired

    policy = conclude.next_move
    conclude.next_move = lambda job, *rest: policy(replace(job, desired=Desired.RUN), *rest)


@switch("prune removes what was deleted", module="service.jobs.prune")
def leave_the_rest(prune: Any) -> None:
    prune.prune_deleted = lambda artifacts, deleted: None
