"""A job that needs a package goes to a node that has it, or waits for one, and delays no other job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from footplate.contract.components import HUB_ON, HUBS, PACKAGES, SECRETS, Catalogue, Described
from footplate.contract.lifecycle import Reason
from service.jobs.installed import Installed
from service.jobs.needs import Needs
from service.jobs.placement import NodeCapacity
from tests.support.factories import make_spec
from tests.support.placing import capacity as bare_room
from tests.support.placing import job, place

MLP, BERT = "models/toy/mlp", "models/hf/sequence-classification"

ZERO = {"type": "deepspeed", "config": {"zero_optimization": {"stage": 2}}}


def node(*names: str, summary: str = "", needs: str = "") -> Installed:
    """Returns an announcement of packages such as `packages/einops`."""
    parts = [item.partition("/") for item in names]
    described = [Described(group=group, name=name, summary=summary, needs=needs) for group, _, name in parts]
    return Installed(Catalogue.of(described))


def capacity(name: str, **more: Any) -> NodeCapacity:
    return replace(bare_room(name, **more), name=name)


def wanting(*parts: str, **more: Any) -> dict[str, Any]:
    return {"requirements": tuple(sorted(parts)), **more}


def test_a_job_needs_the_components_of_its_spec_but_not_of_its_bundle() -> None:
    spec = make_spec(
        model="hf/causal-lm", data={"train": "toy/regression", "eval": {"a": "toy/regression"}, "map": ["tokenize"]},
        callbacks=["own.module:Callback", "ema"], resources={"processes_per_node": 2, "strategy": ZERO},
        secrets=["wandb"], code={"bundle": "0" * 64, "requires": ["einops>=0.8"]}, report_to=["all", "tensorboard"],
    )  # fmt: skip

    assert Needs.of(spec).requirements == (
        "callbacks/ema", "data/toy/regression", "maps/tokenize", "models/hf/causal-lm", "packages/deepspeed",
        "packages/einops>=0.8", "packages/tensorboard|tensorboardx", "secrets/wandb",
    )  # fmt: skip
    assert Needs.from_json(Needs.of(spec).to_json()) == Needs.of(spec)


def test_a_hub_name_needs_a_node_that_fetches() -> None:
    assert Needs.of(make_spec(data="hub://me/rows")).requirements == ("data/hf/dataset", f"{HUBS}/{HUB_ON}", MLP)


def test_a_job_stored_before_an_upgrade_may_run_on_any_node() -> None:
    older = Needs().to_json().replace(',"requirements":[]', "")

    assert "requirements" not in older
    assert Needs.from_json(older) == Needs()


@pytest.mark.parametrize(
    ("installed", "part", "lacks"),
    [
        (node(MLP), MLP, ()),
        (node(MLP), BERT, ("model hf/sequence-classification",)),
        (node(MLP), "models/toy/mpl", ("model toy/mpl (did you mean 'toy/mlp'?)",)),
        (node(BERT, needs="transformers"), BERT, ("model hf/sequence-classification (transformers)",)),
        (node("packages/einops", summary="0.8.1"), "packages/Einops>=0.8", ()),
        (node("packages/einops", summary="0.7.0"), "packages/einops>=0.8", ("package einops>=0.8",)),
        (node("packages/einops", summary="a fork"), "packages/einops>=0.8", ("package einops>=0.8",)),
        (node("packages/torch"), "packages/einops", ("package einops",)),
        (node("packages/tensorboardx", summary="2.6"), "packages/tensorboard|tensorboardx", ()),
        (node("packages/torch"), "packages/tensorboard|tensorboardx", ("package tensorboard or tensorboardx",)),
        (node("secrets/wandb"), "secrets/wandb", ()),
        (node("secrets/wandb"), "secrets/hub", ("secret hub",)),
        (node(MLP), "packages/einops", ("package einops",)),
        (node(MLP), "secrets/hub", ("secret hub",)),
        (node(f"{HUBS}/{HUB_ON}"), f"{HUBS}/{HUB_ON}", ()),
        (node(MLP), f"{HUBS}/{HUB_ON}", (HUB_ON,)),
        (Installed(None), BERT, ()),
    ],
)
def test_a_node_lacks_components_that_it_did_not_announce(
    installed: Installed, part: str, lacks: tuple[str, ...]
) -> None:
    assert {PACKAGES, SECRETS} == {"packages", "secrets"}
    for _ in "twice":
        assert installed.missing_needs((part,)) == lacks


def test_a_job_goes_to_the_node_with_its_components_even_if_others_are_freer() -> None:
    capacities = [capacity("a", slots=8, installed=node(MLP)), capacity("b", slots=1, installed=node(MLP, BERT))]
    plan = place([job("bert", **wanting(BERT)), job("mlp", since=1, **wanting(MLP))], capacities)

    assert plan.placed == {"bert": ["b"], "mlp": ["a"]}


def test_a_job_waits_for_the_node_with_its_components_and_delays_no_other_job() -> None:
    capacities = [
        capacity("a", slots=2, installed=node(MLP)),
        capacity("b", slots=1, free=0, installed=node(MLP, BERT)),
    ]
    plan = place(
        [job("bert", **wanting(BERT)), *(job(f"mlp{n}", since=n + 1, **wanting(MLP)) for n in (1, 2))], capacities
    )

    assert plan.placed == {"mlp1": ["a"], "mlp2": ["a"]}
    assert plan.waits["bert"].reason is Reason.CAPACITY


def test_if_no_node_has_all_components_the_message_lists_what_every_node_lacks() -> None:
    capacities = [capacity("node-a", installed=node(MLP)), capacity("b", pool="other", installed=node(MLP))]
    wait = place([job("bert", **wanting(BERT, MLP))], capacities).waits["bert"]

    assert wait.reason is Reason.NO_SUCH_SHAPE
    assert "node-a has no model hf/sequence-classification" in wait.message


def test_a_wait_message_does_not_claim_that_a_refused_node_has_the_component() -> None:
    away = capacity(
        "node-a", installed=node(MLP), refused="node-a has it, and is draining, because its worker is about to stop"
    )
    wait = place([job("bert", **wanting(BERT))], [away]).waits["bert"]

    assert str(away.refused) not in wait.message
    assert "node-a has no model hf/sequence-classification" in wait.message


def test_every_node_of_a_job_must_have_its_components() -> None:
    capacities = [capacity(name, installed=node(MLP, *more)) for name, more in (("a", [BERT]), ("b", []), ("c", []))]
    both = [job("bert", **wanting(BERT, nodes=2)), job("mlp", since=1, **wanting(MLP, nodes=2))]
    plan = place(both, capacities)

    assert list(plan.placed) == ["mlp"]
    assert "2 nodes" in plan.waits["bert"].message
    assert place(both[:1], [*capacities, capacity("d", installed=node(BERT))]).placed == {"bert": ["a", "d"]}
