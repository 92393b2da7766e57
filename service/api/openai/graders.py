"""OpenAI's route that checks a grader, and those of its fine-tuning API that Footplate does not have.

A route that is missing here answers with a sentence that says what works instead.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from footplate.contract.errors import FootplateError
from footplate.contract.fields import Group
from service.api.openai.models import Grader
from service.api.openai.to_spec import grader_bundle
from service.deps import StrictRoute, read_model

router = APIRouter(route_class=StrictRoute, include_in_schema=False)

GRADERS = "/v1/fine_tuning/alpha/graders"
PERMISSIONS = "/v1/fine_tuning/checkpoints/{checkpoint}/permissions"


class NotSupported(FootplateError):
    code = "not_supported"
    status = 404
    title = "Footplate does not have this part of OpenAI's API"


class GraderToValidate(Group):
    grader: Grader


@router.post(f"{GRADERS}/validate")
async def validate_grader(request: Request) -> dict[str, Any]:
    """Does the checks that a reinforcement job does when it is created. The grader's code is not run."""
    body = await read_model(request, GraderToValidate)
    grader_bundle(body.grader.source, "grader")
    return {"grader": body.grader.model_dump(mode="json", exclude_none=True)}


@router.post(f"{GRADERS}/run")
async def run_grader() -> None:
    raise NotSupported(
        "graders.run is not supported, because a grader's code runs only in the training process of its job",
        hint="graders.validate checks a grader, and grade(sample, item) can be called in your own Python",
    )


@router.get(PERMISSIONS)
@router.post(PERMISSIONS)
@router.delete(f"{PERMISSIONS}/{{permission}}")
async def refuse_permissions(checkpoint: str) -> None:
    raise NotSupported(
        f"the checkpoint {checkpoint[:200]!r} has no permissions of its own, because they come from the key's project",
        hint="POST /keys makes a key of the same project, which can use all of the project's checkpoints",
    )
