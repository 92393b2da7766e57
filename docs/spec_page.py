"""Makes docs/reference/spec.md, the job spec field by field, from the models in footplate/contract/.

Every field has an example, and every example is parsed and checked before the page is written. The page is not made if
an example is refused, if an example shows a field's default, or if a field has no example.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from docs.markdown import one_line
from footplate.contract.components import Catalogue
from footplate.contract.errors import InvalidSpec
from footplate.contract.fields import PATTERNS, Group
from footplate.contract.machine import STRATEGIES, Resources, Retry
from footplate.contract.short_forms import READERS, long_form
from footplate.contract.spec import JobSpec
from footplate.contract.spec_parts import (
    Bundle,
    Component,
    Data,
    Export,
    Optimizer,
    ResumeFrom,
    Schedule,
    Script,
    Serve,
    Split,
)
from footplate.contract.spec_schema import job_schema
from footplate.runtime.catalogue import describe_all

Json = dict[str, Any]

SMALLEST: Json = {"model": "toy/mlp", "data": "toy/regression"}
SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
JOB = "job_0123456789abcdef0123456789abcdef"

INTENTS = {
    "What is trained": ("model", "processor", "loss", "trainer", "loop", "code"),
    "On what data": ("data", "collator"),
    "How": ("training", "optimizers", "metrics", "compute_metrics", "callbacks", "final_eval", "report_to"),
    "Where": ("resources", "env", "secrets"),
    "What happens when it fails": ("retry", "resume_from"),
    "How a checkpoint is used": ("serve", "export"),
    "How it is listed and queued": ("name", "project", "tags", "metadata", "priority"),
}
"""The sections of the page, each with its fields."""

INSIDE: dict[str, dict[str, type[Group]]] = {
    "model": {"model": Component},
    "loop": {"loop": Script},
    "code": {"code": Bundle},
    "data": {"data": Data, "data.split": Split},
    "optimizers": {"optimizers[0]": Optimizer, "optimizers[0].schedule": Schedule},
    "resources": {"resources": Resources},
    "retry": {"retry": Retry},
    "resume_from": {"resume_from": ResumeFrom},
    "serve": {"serve": Serve},
    "export": {"export": Export},
}
"""The objects inside a field, by their place in a spec."""

MORE = {
    "model": "Every field that takes a component takes a name, or an object with `use` and `args`. All names and their "
    "arguments: [components](components.md).",
    "report_to": "What a tracker does not send to a server is among the job's outputs: `tensorboard/`, `wandb/`, "
    "`mlflow/`, `trackio/`. Without the secret `WANDB_API_KEY`, W&B works offline; `wandb sync` sends its run later.",
    "trainer": "[Fine-tune a language model](../guides/fine-tune-an-llm.md) explains the trainers of TRL. "
    "[Bring your own code](../guides/bundles.md) has a whole example of a subclass.",
    "loop": "[A loop of your own](../guides/bundles.md#a-loop-of-your-own) explains both forms.",
    "data": "A path works wherever a dataset is named. Paths begin with `data://` or `models://`, or are the id of an "
    "[uploaded file](../guides/files.md), or "
    "[a name on a hub](../guides/hub.md).",
    "training": "All arguments that work, and what to use instead of the others: [parity](parity.md).",
    "resources": "[Several processes](../guides/strategies.md) explains shapes and strategies.",
    "env": "[Variables and secrets](../guides/bundles.md#variables-and-secrets) lists what a job may set.",
    "retry": "[The life of a job](lifecycle.md) lists all reasons.",
    "priority": "`footplate queue` shows the order.",
    "serve": "[Try a checkpoint](../guides/try-a-checkpoint.md) shows how sessions are used.",
    "export": "[Try a checkpoint](../guides/try-a-checkpoint.md#export-for-production) shows how exports are used.",
}
"""The page to read next about a field."""

OWN_CODE: Json = {"code": {"bundle": SHA256}}
_MAIN = {"id": "main", "params": ["."], "use": "adamw", "args": {"lr": 0.001}}
_CODEC = {"model": "toy/compression", "data": "toy/regression"}
_CAUSAL_LM = {"use": "hf/causal-lm", "args": {"path": "models://gpt2"}}
_LORA = {"use": "hf/causal-lm", "args": {"path": "models://gpt2", "peft": {"r": 8}}}

_USED: Json = {"data": {}, "resume_from": {"job": JOB, "mode": "weights"}}

EXAMPLES: dict[str, Json] = {
    "serve": {**_USED, "serve": {"idle": "10m"}},
    "serve.idle": {**_USED, "serve": {"idle": "1h"}},
    "serve.max_batch": {**_USED, "serve": {"max_batch": 16}},
    "serve.max_queue": {**_USED, "serve": {"max_queue": 64}},
    "serve.max_tokens": {**_USED, "serve": {"max_tokens": 4096}},
    "serve.max_inputs": {**_USED, "serve": {"max_inputs": 1000}},
    "export": {**_USED, "export": {"merge": True}},
    "export.merge": {**_USED, "model": _LORA, "export": {"merge": True}},
    "export.card": {**_USED, "export": {"card": "# My model"}},
    "model": {"model": _CAUSAL_LM, "data": "data://rows.jsonl"},
    "model.use": {"model": _CAUSAL_LM, "data": "data://rows.jsonl"},
    "model.args": {"model": {"use": "toy/mlp", "args": {"hidden": 64}}},
    "processor": {
        "model": _CAUSAL_LM,
        "processor": {"use": "hf/tokenizer", "args": {"path": "models://gpt2"}},
        "data": "data://rows.jsonl",
    },
    "loss": {"loss": "huber"},
    "trainer": {"trainer": "trl/sft", "model": _CAUSAL_LM, "data": "data://rows.jsonl"},
    "loop": {"loop": {"use": "my_code:main", "args": {"steps": 100}}, **OWN_CODE},
    "loop.script": {"loop": {"script": "train.py"}, **OWN_CODE},
    "loop.argv": {"loop": {"script": "train.py", "argv": ["--epochs", "3"]}, **OWN_CODE},
    "code": {"model": "my_code:Net", "code": {"bundle": SHA256}},
    "code.bundle": {"model": "my_code:Net", "code": {"bundle": SHA256}},
    "code.requires": {"model": "my_code:Net", "code": {"bundle": SHA256, "requires": ["einops>=0.8"]}},
    "data": {"data": {"train": "data://train.jsonl", "eval": "data://dev.jsonl"}},
    "data.train": {"data": {"train": {"use": "files/csv", "args": {"paths": ["data://a.csv", "data://b.csv"]}}}},
    "data.eval": {
        "data": {"train": "data://train.jsonl", "eval": {"dev": "data://dev.jsonl", "hard": "data://hard.csv"}}
    },
    "data.test": {"data": {"train": "data://train.jsonl", "test": "data://test.jsonl"}},
    "data.split": {"data": {"train": "data://rows.jsonl", "split": {"test_size": 0.1, "seed": 7}}},
    "data.split.test_size": {"data": {"train": "data://rows.jsonl", "split": {"test_size": 500}}},
    "data.split.seed": {"data": {"train": "data://rows.jsonl", "split": {"test_size": 0.1, "seed": 7}}},
    "data.map": {"data": {"train": "data://train.jsonl", "map": [{"use": "keep", "args": {"columns": ["x", "y"]}}]}},
    "collator": {"collator": "stack"},
    "training": {"training": {"max_steps": 500, "learning_rate": 0.001, "logging_steps": 10}},
    "optimizers": {"optimizers": [_MAIN]},
    "optimizers[0].id": {"optimizers": [_MAIN]},
    "optimizers[0].params": {"optimizers": [{**_MAIN, "params": ["weight$", "bias$"]}]},
    "optimizers[0].use": {"optimizers": [{**_MAIN, "use": "sgd"}]},
    "optimizers[0].args": {"optimizers": [{**_MAIN, "args": {"lr": 0.01}}]},
    "optimizers[0].loss": {
        **_CODEC,
        "optimizers": [
            {"id": "aux", "params": ["quantiles$"], "use": "adam", "loss": "aux_loss"},
            {"id": "main", "params": ["^(?!.*quantiles$)"], "use": "adam"},
        ],
    },
    "optimizers[0].schedule": {"optimizers": [{**_MAIN, "schedule": "constant"}]},
    "optimizers[0].every": {"optimizers": [{**_MAIN, "every": 2}]},
    "optimizers[0].clip": {"optimizers": [{**_MAIN, "clip": 1.0}]},
    "optimizers[0].schedule.use": {"optimizers": [{**_MAIN, "schedule": {"use": "constant"}}]},
    "optimizers[0].schedule.args": {
        "optimizers": [{**_MAIN, "schedule": {"use": "StepLR", "args": {"step_size": 100}}}]
    },
    "optimizers[0].schedule.per": {
        "optimizers": [{**_MAIN, "schedule": {"use": "StepLR", "args": {"step_size": 1}, "per": "epoch"}}]
    },
    "metrics": {
        "data": {"train": "toy/classification", "eval": "toy/classification"},
        "metrics": ["accuracy", "f1"],
        "training": {"eval_strategy": "epoch"},
    },
    "compute_metrics": {
        "data": {"train": "toy/regression", "eval": "toy/regression"},
        "compute_metrics": "my_code:measure",
        "training": {"eval_strategy": "epoch"},
        **OWN_CODE,
    },
    "final_eval": {
        "data": {"train": "data://rows.jsonl", "split": {"test_size": 0.1}},
        "training": {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True},
        "final_eval": "best",
    },
    "callbacks": {"callbacks": ["stop_on_nan", {"use": "ema", "args": {"decay": 0.99}}]},
    "report_to": {"report_to": ["tensorboard"]},
    "resources": {"resources": {"gpus_per_node": 1, "time_limit": "4h"}},
    "resources.nodes": {"resources": {"nodes": 2, "gpus_per_node": 8}},
    "resources.gpus_per_node": {"resources": {"gpus_per_node": 0}},
    "resources.gpu": {"resources": {"gpus_per_node": 1, "gpu": "H100"}},
    "resources.processes_per_node": {"resources": {"processes_per_node": 2}},
    "resources.pool": {"resources": {"pool": "nightly"}},
    "resources.strategy": {"resources": {"gpus_per_node": 4, "strategy": "ddp"}},
    "resources.time_limit": {"resources": {"time_limit": "1h30m"}},
    "resources.stall_limit": {"resources": {"stall_limit": "30m"}},
    "env": {"env": {"NCCL_DEBUG": "INFO"}},
    "secrets": {"secrets": ["WANDB_API_KEY"]},
    "retry": {"retry": {"max_attempts": 5, "on": ["node_lost", "crashed", "stalled", "oom"]}},
    "retry.max_attempts": {"retry": {"max_attempts": 1}},
    "retry.on": {"retry": {"on": ["node_lost"]}},
    "retry.backoff": {"retry": {"backoff": "30s"}},
    "resume_from": {"resume_from": {"job": JOB}},
    "resume_from.job": {"resume_from": {"job": JOB}},
    "resume_from.checkpoint": {"resume_from": {"job": JOB, "checkpoint": "best"}},
    "resume_from.path": {"resume_from": {"path": "models://run/checkpoint-500"}},
    "resume_from.mode": {"resume_from": {"job": JOB, "mode": "weights"}},
    "name": {"name": "first run"},
    "project": {"project": "vision"},
    "tags": {"tags": ["demo", "sweep-3"]},
    "metadata": {"metadata": {"ticket": 512, "owner": "vision team"}},
    "priority": {"priority": 20},
}
"""The part that each example adds to the smallest spec, by the field that the example shows."""

STRATEGY_EXAMPLES: dict[str, Json] = {
    "single": {"type": "single"},
    "ddp": {"type": "ddp"},
    "fsdp": {"type": "fsdp", "config": {"reshard_after_forward": True}},
    "deepspeed": {"type": "deepspeed", "config": {"zero_optimization": {"stage": 2}}},
    "accelerate": {
        "type": "accelerate",
        "config": {"distributed_type": "MULTI_GPU", "num_processes": 2, "mixed_precision": "bf16"},
    },
}

SHORT_FORMS: list[tuple[Json, str]] = [
    ({"model": "toy/mlp"}, "model"),
    ({"data": "toy/regression"}, "data.train"),
    ({"data": "data://rows.csv"}, "data.train"),
    ({"data": {"train": "data://rows.jsonl", "eval": "data://dev.parquet"}}, "data.eval"),
    ({"data": "hub://stanfordnlp/sst2"}, "data.train"),
    ({"resources": {"processes_per_node": 2}}, "resources.strategy"),
    ({"resources": {"processes_per_node": 2, "strategy": "fsdp"}}, "resources.strategy"),
    ({"resources": {"time_limit": "1h30m"}}, "resources.time_limit"),
    ({"training": {"report_to": "tensorboard"}}, "report_to"),
    ({"training": {"warmup_ratio": 0.1}}, "training.warmup_steps"),
    ({"trainer": "trl/sft", "training": {"max_length": 512}}, "trainer.args.max_length"),
    ({"training": {"resume_from_checkpoint": "models://run/checkpoint-500"}}, "resume_from.path"),
]
"""A short spec, and the field of the stored spec that its short form becomes."""


def spec_page(notice: str) -> str:
    sections = [line for title, names in INTENTS.items() for line in section(title, names)]
    if stale_examples := set(EXAMPLES) - set(page_fields()):
        raise ValueError(f"docs/spec_page.py has examples of {sorted(stale_examples)}, and a spec has no such fields")
    return "\n".join(
        [
            "# The job spec, field by field",
            notice,
            "A job spec is the JSON object that `POST /jobs` takes. The smallest whole spec names a model and its",
            "data:\n",
            *block(checked({}, "")),
            "\nEvery other field has a default. An unknown field or a wrong value is refused with its place in the",
            "spec. `GET /jobs/{id}/spec` shows the stored spec with every default. `GET /schema/job` is the",
            "JSON Schema.",
            "Words that you do not know are in the [glossary](glossary.md).",
            "\nEach example below is added to the smallest spec. An example with `loop` replaces `model` and `data`.",
            "All examples were checked when this page was made.",
            "\n## Contents\n",
            *(f"- [{title}](#{anchor(title)}): {', '.join(map(link, names))}" for title, names in INTENTS.items()),
            f"- [Short forms](#{anchor('Short forms')})",
            *sections,
            *short_forms(),
            "",
        ]
    )


def section(title: str, names: tuple[str, ...]) -> list[str]:
    lines = [f"\n## {title}"]
    for name in names:
        lines += field(name, JobSpec)
        if name in MORE:
            lines += ["", MORE[name]]
        for place, group in INSIDE.get(name, {}).items():
            for inner in group.model_fields:
                lines += field(f"{place}.{inner}", group)
        lines += strategies() if name == "resources" else []
    return lines


def page_fields() -> list[str]:
    """Returns the fields on the page. Raises ValueError if the page leaves out a field of the spec."""
    top = [name for names in INTENTS.values() for name in names]
    places = {place: group for groups_of_field in INSIDE.values() for place, group in groups_of_field.items()}
    missing_names = set(JobSpec.model_fields) - set(top) | {group.__name__ for group in groups() - set(places.values())}
    if missing_names:
        raise ValueError(f"docs/spec_page.py leaves out {sorted(missing_names)}: add them to INTENTS or INSIDE")
    return [*top, *(f"{place}.{name}" for place, group in places.items() for name in group.model_fields)]


def groups() -> set[type[Group]]:
    """The models that a spec is made of, except the spec itself and the strategies."""
    names = {name.removesuffix("Object") for name in job()["$defs"]}
    models, unvisited_groups = set(), list(Group.__subclasses__())
    while unvisited_groups:
        group = unvisited_groups.pop()
        unvisited_groups += group.__subclasses__()
        models |= {group} if group.__name__ in names else set()
    return models - set(STRATEGIES.values())


def field(name: str, group: type[Group]) -> list[str]:
    if name not in EXAMPLES:
        raise ValueError(f"add an example of {name} to docs/spec_page.py")
    properties, required = described(group)
    own_name = name.rpartition(".")[2]
    default = "Required" if own_name in required else f"Default: `{json.dumps(default_of(group, own_name))}`"
    return [
        f"\n### `{name}`\n",
        one_line(properties[own_name]["description"]),
        f"\n- Type: {words(properties[own_name])}",
        f"- {default}\n",
        *block(checked(EXAMPLES[name], name)),
    ]


@cache
def job() -> Json:
    return job_schema()


def described(group: type[Group]) -> tuple[Json, list[str]]:
    schema = job()
    if group is not JobSpec:
        definitions = schema["$defs"]
        schema = definitions.get(f"{group.__name__}Object") or definitions[group.__name__]
    return schema["properties"], schema.get("required", [])


def default_of(group: type[Group], name: str) -> Any:
    """The field's default as JSON, or {} for an object whose fields have defaults of their own."""
    value = group.model_fields[name].get_default(call_default_factory=True)
    if isinstance(value, Group) or name == "training":
        return value.model_dump(mode="json") if name == "strategy" else {}
    return list(value) if isinstance(value, tuple) else value


def strategies() -> list[str]:
    lines = []
    for name, group in STRATEGIES.items():
        value = STRATEGY_EXAMPLES[name]
        many = {} if name in ("single", "accelerate") else {"processes_per_node": 2}
        example = {"resources": {**many, "strategy": value}}
        properties, required = described(group)
        lines += [f"\n### The strategy `{name}`\n", one_line(job()["$defs"][group.__name__]["description"]), ""]
        for inner in properties:
            default = "required" if inner in required else f"default `{json.dumps(default_of(group, inner))}`"
            meaning = one_line(properties[inner].get("description")) or "The strategy's name."
            lines += [f"- `{inner}`: {meaning} Type: {words(properties[inner])}; {default}."]
        lines += ["", *block(checked(example, "" if name == "single" else "resources.strategy"))]
    return lines


def short_forms() -> list[str]:
    rows = []
    for short_spec, place in SHORT_FORMS:
        stored = at(place, JobSpec.parse({**SMALLEST, **checked(short_spec, "")}).as_json())
        rows.append(f"| `{json.dumps(short_spec)}` | `{place}` is `{json.dumps(stored)}` |")
    readers = ", ".join(f"`{suffix}` by `{reader}`" for suffix, reader in READERS.items())
    return [
        "\n## Short forms\n",
        "A spec may be written short. The stored spec has the long form.\n",
        "| written | stored |",
        "|---|---|",
        *rows,
        f"\nA path alone is read by its suffix: {readers}.",
        "An argument such as `report_to` may be written in `training` or in its own field.",
        "Two different values are refused.",
    ]


def checked(example: Json, name: str) -> Json:
    """Returns what the page shows for an example, or raises if a job with that example would be refused."""
    spec = example if "loop" in example else {**SMALLEST, **example}
    try:
        parsed = JobSpec.parse(spec, catalogue())
    except InvalidSpec as invalid:
        details = "; ".join(f"{problem.pointer}: {problem.detail}" for problem in invalid.problems)
        raise ValueError(f"the example of {name or example} on docs/reference/spec.md is refused: {details}") from None
    if name and at(name, long_form(example).document) is None:
        raise ValueError(f"the example of {name} on docs/reference/spec.md does not set it")
    if name and at(name, parsed.as_json()) == at(name, smallest()):
        raise ValueError(f"the example of {name} on docs/reference/spec.md shows only its default")
    return example or SMALLEST


@cache
def smallest() -> Json:
    return JobSpec.parse(SMALLEST).as_json()


@cache
def catalogue() -> Catalogue:
    """The built-in components, as if every library that they need were installed."""
    with libraries():
        return Catalogue.of(component.model_copy(update={"needs": ""}) for component in describe_all())


@contextmanager
def libraries() -> Iterator[None]:
    """Lets Python find TRL among the libraries of tests, because its source has the arguments of its trainers."""
    folder = str(Path(sys.prefix, "libraries"))
    sys.path.append(folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(folder)


def at(name: str, document: Any) -> Any:
    """The value of a field such as `optimizers[0].args`; None if the document does not have the field."""
    for part in name.replace("[", ".").replace("]", "").split("."):
        if isinstance(document, list | tuple):
            document = document[int(part)] if len(document) > int(part) else None
        else:
            document = document.get(part) if isinstance(document, dict) else None
    return document


OBJECTS = {
    "Component": "a component",
    "Schedule": "a component",
    "Data": "a component, a path, or an object",
    "Script": "an object with `script`",
    "JsonValue": "any JSON value",
    "TrainingArguments": "an object",
}


def words(schema: Json) -> str:
    """The type that a JSON Schema describes, in plain words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        target = job()["$defs"][name]
        return OBJECTS.get(name) or (words(target) if "enum" in target else "an object")
    if options := schema.get("anyOf") or schema.get("oneOf"):
        texts = list(dict.fromkeys(words(option) for option in options))
        if any("a duration" in option for option in texts):
            texts = [option for option in texts if option != "a number"]
        return " or ".join(texts).replace(" or null", ", or null")
    if "enum" in schema:
        return "one of " + ", ".join(f'`"{value}"`' for value in schema["enum"])
    if "const" in schema:
        return f'`"{schema["const"]}"`'
    kind = schema.get("type")
    if kind == "string":
        return text(schema)
    if kind in ("integer", "number"):
        return number(schema)
    if kind == "array":
        bounds = f"; at most {schema['maxItems']} entries" if "maxItems" in schema else ""
        return f"a list, each entry {words(schema['items'])}{bounds}"
    if kind == "object":
        return mapping(schema)
    return {"null": "null", "boolean": "true or false"}[str(kind)]


def text(schema: Json) -> str:
    requirement = PATTERNS.get(schema.get("pattern", ""))
    most = f"at most {schema['maxLength']} characters" if "maxLength" in schema else ""
    if requirement is None:
        is_duration = "[dhms]" in schema.get("pattern", "")
        return 'a duration such as `"4h"`, or seconds' if is_duration else f"text ({most})" if most else "text"
    if not requirement.startswith("must be "):
        return "a component's name"
    meant = requirement.removeprefix("must be ")
    return f"text ({meant}; {most})" if schema["maxLength"] in (64, 128) and "sha256" not in meant else meant


def number(schema: Json) -> str:
    kind = "a whole number" if schema["type"] == "integer" else "a number"
    if "maximum" in schema:
        return f"{kind}, {schema['minimum']} to {schema['maximum']}"
    if "minimum" in schema:
        return f"{kind}, at least {schema['minimum']}"
    return f"{kind} above {schema['exclusiveMinimum']}" if "exclusiveMinimum" in schema else kind


def mapping(schema: Json) -> str:
    bounds = f"; at most {schema['maxProperties']} entries" if "maxProperties" in schema else ""
    values = list(schema.get("patternProperties", {}).values())
    return f"an object, each value {words(values[0])}{bounds}" if values else f"a JSON object{bounds}"


def block(example: Json) -> list[str]:
    return ["```json", json.dumps(example, ensure_ascii=False), "```"]


def link(name: str) -> str:
    return f"[`{name}`](#{anchor(name)})"


def anchor(title: str) -> str:
    """The anchor that a heading gets on a rendered page."""
    return "".join(letter for letter in title.lower() if letter.isalnum() or letter in "_- ").replace(" ", "-")
