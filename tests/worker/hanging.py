"""A program whose loop hangs while its link to control still works, until a file appears.

It is a process of its own, because the test checks how that process ends.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from footplate.contract.ids import Fence, new_claim_id, new_job_id
from footplate.contract.messages import Grant
from worker.attempt import control_link
from worker.attempt.control_link import ControlLink
from worker.attempt.journal import Journal, JournalName
from worker.redis_client import connect

HUNG_SECONDS = 1.0


def main(url: str, folder: Path) -> None:
    control_link.HUNG_SECONDS = HUNG_SECONDS
    grant = Grant(job=new_job_id(), attempt=1, fence=Fence(1), claim=new_claim_id(), spec={}, beat_seconds=0.1)
    journal = Journal.create(folder, JournalName(**dict(grant)), 10)
    link = ControlLink(connect(url), grant, journal, os.eventfd(0, os.EFD_NONBLOCK))
    link.start()
    while not (folder / "hang").exists():
        link.beats.record_turn()
        time.sleep(0.02)
    time.sleep(600)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
