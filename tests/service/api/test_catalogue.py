"""The catalogue that a spec is checked against: what any node has, with what it takes to have the rest."""

from __future__ import annotations

import pytest

from footplate.contract.components import Catalogue, Described
from service.caches import _union

WITH = Described(name="hf/causal-lm", group="models")
WITHOUT = Described(name="hf/causal-lm", group="models", needs="transformers (pip install 'footplate[hf]')")


@pytest.mark.parametrize("nodes", [(WITH, WITHOUT), (WITHOUT, WITH)])
def test_a_component_is_accepted_if_one_node_has_its_library(nodes: tuple[Described, ...]) -> None:
    union = _union([Catalogue.of([node]) for node in nodes])

    assert union
    assert union.get("models", "hf/causal-lm") == WITH


def test_a_component_is_refused_with_the_library_that_no_node_has() -> None:
    union = _union([Catalogue.of([WITHOUT]), Catalogue.of([WITHOUT])])

    assert union
    assert union.get("models", "hf/causal-lm") == WITHOUT
