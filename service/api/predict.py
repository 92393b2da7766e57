"""The route that tries a checkpoint of a job on inputs of its own task."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import Field, JsonValue

from footplate.contract.fields import DURATION, Group, Many, Whole
from footplate.contract.resources.jobs import PredictionList, Served
from footplate.contract.serving import Work
from footplate.contract.spec_parts import CheckpointName
from service.api.documented import documented_body
from service.deps import JobPath, StrictRoute, job_id, read_model
from service.serving import ModelRequest, send_request

router = APIRouter(route_class=StrictRoute, tags=["jobs"])

WAIT_SECONDS = 60.0
LONGEST_WAIT_SECONDS = 600.0
Seconds = Annotated[float, Field(ge=0, le=LONGEST_WAIT_SECONDS), DURATION]
Stops = Annotated[Many[Annotated[str, Field(min_length=1, max_length=100)]], Field(max_length=16)]


class Generation(Group):
    """The way in which a language model generates its texts. Models of other tasks do not read this."""

    max_tokens: Annotated[Whole, Field(ge=1)] | None = None
    """The largest number of tokens of each text. null takes the session's limit."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """0 always takes the likeliest token. Higher values draw tokens at random."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Tokens are drawn only from the likeliest ones whose probabilities add up to this number."""
    stop: Stops = ()
    """Texts that end a generated text. They are not part of it."""
    seed: Annotated[Whole, Field(ge=0, lt=2**63)] | None = None
    """The seed of the random draws, for equal answers to equal requests. Equal inputs of a request get other texts."""


class Predict(Group):
    inputs: Annotated[Many[JsonValue], Field(min_length=1)]
    """Rows with the columns of the job's data, without labels. A language model takes texts, or objects with a prompt
    or messages."""
    checkpoint: CheckpointName | None = None
    """"latest", "best" or a checkpoint's id. null takes the model that the job ends with. With `load_best_model_at_end`
    that is the best checkpoint, else the latest one."""
    parameters: Generation = Generation()
    wait: Seconds = WAIT_SECONDS
    """The time within which the answer must begin, at most 10 minutes. A model that is not loaded yet is loaded in this
    time, if a slot is free."""


@router.post(
    "/jobs/{job}/predict",
    summary="Run a checkpoint of the job on inputs",
    responses={409: {}, 429: {}, 503: {}},
    **documented_body(Predict, {"inputs": [{"x": [1, 2, 3, 4, 5, 6, 7, 8]}], "checkpoint": "latest"}, required=True),
)
async def predict_job(request: Request, job: JobPath) -> PredictionList:
    """Returns a result for each input. The first request loads the checkpoint on a node, where it stays for a while."""
    body = await read_model(request, Predict)
    values = {"inputs": list(body.inputs), "parameters": body.parameters.model_dump(mode="json")}
    model_request = ModelRequest(job_id(job), body.checkpoint, Work.PREDICT, values, body.wait)
    async with send_request(request, model_request) as answer_stream:
        predictions = (await answer_stream.last_data())["predictions"]
    checkpoint = answer_stream.served.checkpoint
    return PredictionList(
        job=job,
        checkpoint=Served(id=checkpoint.id, step=checkpoint.step),
        session=answer_stream.session,
        data=tuple(predictions),
    )
