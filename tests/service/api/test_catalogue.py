"""Tests the union of all nodes' catalogues, against which the service checks a spec."""

from __future__ import annotations

import asyncio

import pytest

from footplate.contract.components import Catalogue, Described
from service.caches import Catalogues, Poller, _union
from service.store.database import Database
from tests.conformance.acting import Stage

WITH = Described(name="hf/causal-lm", group="models")
WITHOUT = Described(name="hf/causal-lm", group="models", needs="transformers (pip install 'footplate[hf]')")


@pytest.mark.parametrize("nodes", [(WITH, WITHOUT), (WITHOUT, WITH)])
def test_the_union_of_catalogues_prefers_a_component_with_its_library(nodes: tuple[Described, ...]) -> None:
    union = _union([Catalogue.of([node]) for node in nodes])

    assert union
    assert union.get("models", "hf/causal-lm") == WITH


def test_the_union_of_catalogues_keeps_a_component_whose_library_is_missing() -> None:
    union = _union([Catalogue.of([WITHOUT]), Catalogue.of([WITHOUT])])

    assert union
    assert union.get("models", "hf/causal-lm") == WITHOUT


async def test_an_unreadable_catalogue_does_not_hide_catalogues_of_other_nodes(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    stage = Stage(database)
    stage.node(catalogue_hash="broken", catalogue={"models": ["toy/mlp"]})
    stage.node(catalogue_hash="good", catalogue=Catalogue.of([WITH]).as_json())
    catalogues, job = Catalogues(database), stage.submitted(None).job

    await catalogues.refresh()

    assert stage.place() == [job.id]
    assert catalogues.current is not None
    assert catalogues.current.get("models", "hf/causal-lm") == WITH
    database.close()


async def test_a_cache_is_refreshed_again_after_an_unexpected_error(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Poller):
        seconds = 0.001
        reads, read_again = 0, asyncio.Event()

        async def _read(self) -> None:
            self.reads += 1
            if self.reads == 3:
                self.read_again.set()
            raise ValueError("not a row of ours")

    cache = Broken(db=None)  # type: ignore[arg-type]
    await cache.start()
    await asyncio.wait_for(cache.read_again.wait(), 10)
    await cache.close()

    assert "not a row of ours" in caplog.text
