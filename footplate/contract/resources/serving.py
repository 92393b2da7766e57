"""Resources of `POST /jobs/{job}/predict`: a checkpoint's predictions for inputs of the user."""

from __future__ import annotations

from footplate.contract.fields import Json, Resource


class Served(Resource):
    id: str
    step: int


class PredictionList(Resource):
    job: str
    checkpoint: Served
    session: str
    """The id of the serving session, a job that holds one slot until it has had no request for a while."""
    data: tuple[Json, ...]
    """One result for each input, in the order of the inputs."""
