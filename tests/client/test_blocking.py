"""Checks that `Client` has every method of `AsyncClient` in a blocking form."""

from __future__ import annotations

import inspect

import pytest

from footplate import AsyncClient, Client
from footplate.sdk import blocking, bundles, checkpoints, files, jobs, keys, metrics, uploads, webhooks

TWINS = [
    (AsyncClient, Client),
    (jobs.AsyncJobs, blocking.Jobs),
    (jobs.AsyncJob, blocking.Job),
    (metrics.AsyncMetrics, blocking.Metrics),
    (checkpoints.AsyncCheckpoints, blocking.Checkpoints),
    (checkpoints.AsyncCheckpoint, blocking.SavedCheckpoint),
    (files.AsyncOutputs, blocking.Outputs),
    (uploads.AsyncFiles, blocking.Files),
    (bundles.AsyncBundles, blocking.Bundles),
    (keys.AsyncKeys, blocking.Keys),
    (webhooks.AsyncWebhooks, blocking.Webhooks),
]
OF_ONE_HALF = {"pages", "at", "of"}
"""Methods for the other modules of the SDK."""


@pytest.mark.parametrize(("twin", "kind"), TWINS, ids=lambda kind: kind.__name__)
def test_both_clients_have_the_same_methods_with_the_same_parameters(twin: type, kind: type) -> None:
    assert {name: parameters(value) for name, value in methods(kind)} == {
        name: parameters(value) for name, value in methods(twin)
    }


def test_help_on_a_blocking_method_shows_its_docstring_and_return_type() -> None:
    assert (inspect.getdoc(blocking.Job.fork) or "").startswith("Starts another job from a checkpoint")
    assert str(inspect.signature(blocking.Job.fork)).endswith("-> 'Job'")


def methods(kind: type) -> list[tuple[str, object]]:
    members = inspect.getmembers(kind, inspect.isfunction)
    return [(name, value) for name, value in members if not name.startswith("_") and name not in OF_ONE_HALF]


def parameters(method: object) -> list[str]:
    return [str(parameter) for parameter in inspect.signature(method).parameters.values()]  # type: ignore[arg-type]
