"""Messages between service and worker keep their names on the wire."""

from __future__ import annotations

import json

from footplate.contract.ids import ClaimId
from footplate.contract.messages import AttemptReply, Command


def test_a_reply_has_the_names_that_the_other_version_reads_and_writes() -> None:
    wire = {"claim": "claim_1", "meets_at": "10.0.0.1:29500", "deeds": [{"no": 3, "save": True}]}

    reply = AttemptReply.model_validate(wire)
    sent = json.loads(reply.model_dump_json())

    assert reply == AttemptReply(
        claim=ClaimId("claim_1"), rendezvous="10.0.0.1:29500", commands=[Command(no=3, save=True)]
    )
    assert (sent["meets_at"], sent["deeds"][0]["no"]) == ("10.0.0.1:29500", 3)
