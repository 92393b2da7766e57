"""Jobs name the components of an installed package, as examples/plugin shows, and bring no code."""

from __future__ import annotations

from tests.examples.conftest import Examples


def test_components_of_a_plugin_are_listed_checked_and_trained(examples: Examples) -> None:
    system = examples.system
    spec = examples.spec("plugin/job.json")
    job = system.submit(spec)

    catalogue = system.get("/components")
    assert catalogue["models"]["waves/sines"]["summary"].startswith("A sum of sines")
    assert catalogue["data"]["waves/points"]["args"]["properties"]["n"]["description"] == "How many points"
    wrong = {**spec, "model": {"use": "waves/sines", "args": {"waves": 65}}, "callbacks": ["waves/loudst"]}
    errors = {error["pointer"]: error for error in system.client.post("/jobs", json=wrong).json()["errors"]}
    assert "64" in errors["/model/args/waves"]["detail"]
    assert errors["/callbacks/0"]["hint"] == "did you mean 'waves/loudest'?"
    assert examples.ended(job)["state"] == "succeeded"
    rows = system.metrics(job)
    assert [row["eval_loss"] for row in rows if "eval_loss" in row][-1] < 0.02
    assert [row["loudest"] for row in rows if "loudest" in row][-1] > 0.2
