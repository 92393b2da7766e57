"""Resources of trying a checkpoint: predictions for a job's own task."""

from __future__ import annotations

from footplate.contract.fields import Json, Resource


class Served(Resource):
    id: str
    step: int


class PredictionList(Resource):
    job: str
    checkpoint: Served
    session: str
    """The serving session, which is a job that holds one slot until it has been idle for a while."""
    data: tuple[Json, ...]
    """One result for each input, in the order of the inputs."""
