"""Specs for tests of the contract, and hypothesis strategies that generate any spec."""

from typing import Any

from hypothesis import strategies as st

from footplate.contract.components import Catalogue
from footplate.contract.errors import InvalidSpec, Problem
from footplate.contract.hub import PATH_ARGUMENTS
from footplate.contract.spec import JobSpec

TOY = {"model": "toy/mlp", "data": "toy/regression"}


def problems_of(body: object, catalogue: Catalogue | None = None) -> list[Problem]:
    try:
        JobSpec.parse(body, catalogue)
    except InvalidSpec as invalid:
        return invalid.problems
    return []


def places(body: object) -> list[tuple[str, str]]:
    return [(problem.pointer, problem.code) for problem in problems_of(body)]


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=12)
KEYS = TEXT.filter(lambda name: name not in PATH_ARGUMENTS)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
).filter(lambda value: "hub://" not in str(value))
ARGS = st.dictionaries(KEYS, VALUES, max_size=3)
NAMES = st.sampled_from(["toy/mlp", "accuracy", "hf/sequence-classification", "a/b_2/C"])
SLUGS = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_.-]{0,9}\Z")
COMPONENTS = NAMES | st.fixed_dictionaries({"use": NAMES}, optional={"args": ARGS})
SETS = st.dictionaries(SLUGS.filter(lambda name: name != "use"), COMPONENTS, min_size=1, max_size=3)
DURATIONS = st.sampled_from(["4h", "90s", "1h30m", "1d", "1.5h", 1, 17.25])
SHARED = st.fixed_dictionaries(
    {"gpus_per_node": st.integers(2, 8)},
    optional={
        "nodes": st.integers(1, 9),
        "strategy": st.sampled_from(
            ["ddp", "fsdp", {"type": "deepspeed", "config": {"zero_optimization": {"stage": 3}}}]
        ),
    },
)
ACCELERATED = st.sampled_from(
    [{"distributed_type": kind, "num_processes": 4, "num_machines": 2} for kind in ("MULTI_GPU", "FSDP", "DEEPSPEED")]
).map(lambda config: {"strategy": {"type": "accelerate", "config": config}})
ALONE = st.fixed_dictionaries(
    {},
    optional={
        "gpus_per_node": st.none() | st.integers(0, 1),
        "processes_per_node": st.none() | st.just(1),
        "strategy": st.just("single"),
    },
)
REST = st.fixed_dictionaries(
    {},
    optional={
        "gpu": st.none() | TEXT,
        "pool": SLUGS,
        "time_limit": st.none() | DURATIONS,
        "stall_limit": DURATIONS,
    },
)
SHAPES = st.builds(lambda shape, rest: {**shape, **rest}, SHARED | ALONE | ACCELERATED, REST)
RETRIES = st.fixed_dictionaries(
    {},
    optional={
        "max_attempts": st.integers(1, 100),
        "on": st.lists(st.sampled_from(["node_lost", "crashed", "stalled", "oom", "error"]), max_size=3),
        "backoff": DURATIONS,
    },
)
OPTIMIZERS = st.lists(
    st.fixed_dictionaries(
        {
            "id": SLUGS,
            "params": st.lists(st.sampled_from([r"\.quantiles$", ".*"]), min_size=1, max_size=2),
            "use": NAMES,
        },
        optional={
            "args": ARGS,
            "loss": st.none(),
            "schedule": NAMES | st.fixed_dictionaries({"use": NAMES, "per": st.sampled_from(["step", "epoch"])}),
            "every": st.integers(1, 5),
            "clip": st.none() | st.floats(0.1, 10),
        },
    ),
    min_size=1,
    max_size=2,
    unique_by=lambda item: item["id"],
)
TRAINING = st.fixed_dictionaries(
    {},
    optional={
        "learning_rate": st.floats(0, 1),
        "max_steps": st.integers(1, 10**6) | st.just(5e8),
        "num_train_epochs": st.integers(0, 9),
        "bf16": st.booleans(),
        "seed": st.integers(0, 2**31),
        "lr_scheduler_type": st.sampled_from(["linear", "cosine", "constant"]),
    },
)
SPECS = st.fixed_dictionaries(
    {
        "model": COMPONENTS,
        "data": COMPONENTS
        | st.just("data://x/train.jsonl")
        | st.fixed_dictionaries(
            {"train": COMPONENTS},
            optional={
                "eval": st.none() | COMPONENTS | SETS,
                "test": COMPONENTS,
                "map": st.lists(COMPONENTS, max_size=2),
            },
        ),
    },
    optional={
        "name": st.none() | TEXT,
        "project": SLUGS,
        "tags": st.lists(TEXT, max_size=3),
        "metadata": ARGS,
        "priority": st.integers(-100, 100),
        "processor": st.none() | COMPONENTS,
        "collator": COMPONENTS,
        "loss": COMPONENTS,
        "metrics": st.lists(COMPONENTS, max_size=3),
        "compute_metrics": st.none(),
        "training": TRAINING,
        "optimizers": st.none() | OPTIMIZERS,
        "callbacks": st.lists(COMPONENTS, max_size=3),
        "report_to": st.lists(st.sampled_from(["tensorboard", "wandb", "all"]), max_size=2),
        "code": st.fixed_dictionaries({"bundle": st.just("a" * 64)}, optional={"requires": st.lists(TEXT, max_size=2)}),
        "loop": st.none(),
        "env": st.dictionaries(st.sampled_from(["A", "HF_HOME"]), TEXT, max_size=2),
        "secrets": st.lists(SLUGS, max_size=2),
        "resources": SHAPES,
        "retry": RETRIES,
        "resume_from": st.fixed_dictionaries(
            {"job": st.just("job_" + "0" * 32)},
            optional={
                "checkpoint": st.sampled_from(["latest", "best", "ckpt_" + "1" * 32]),
                "mode": st.sampled_from(["full", "weights"]),
            },
        ),
    },
).map(lambda spec: _for_several_optimizers(spec) if spec.get("optimizers") else spec)


def _for_several_optimizers(spec: dict[str, Any]) -> dict[str, Any]:
    """Removes settings that a spec with several optimizers must not have: rates, schedules and the strategy."""
    reports = {
        name: value for name, value in spec.get("training", {}).items() if not name.startswith(("learning", "lr"))
    }
    shape = {name: value for name, value in spec.get("resources", {}).items() if name != "strategy"}
    return {**spec, "training": reports, "resources": shape}
