"""The verbs `submit` and `validate`: read a spec from a file, stdin or words, with `--set` applied to it."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from footplate.cli.context import Given, UsageError, Verbs, add_changes, add_verb, client_of
from footplate.cli.text import clean, say, say_json, short, tell
from footplate.cli.watch import watch_job
from footplate.contract.body import read_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from footplate import Client
    from footplate.sdk.models import SpecWarning

EXAMPLE = '{"model": "toy/mlp", "data": "toy/regression"}'


def add_verbs(verbs: Verbs) -> None:
    submit = add_verb(verbs, "submit", run_submit, "submit a job, and print its id")
    _add_spec(submit)
    submit.add_argument("--name", help="what to call it")
    submit.add_argument("--tag", action="append", default=[], metavar="TAG", help="to find it by; may be repeated")
    submit.add_argument("--watch", action="store_true", help="watch it until it ends")
    validate = add_verb(verbs, "validate", run_validate, "say what submit would, without a job")
    _add_spec(validate)


def _add_spec(parser: Any) -> None:
    parser.add_argument("spec", metavar="SPEC", help="a JSON or YAML file, - for stdin, or JSON itself")
    add_changes(parser, "replace one value, as in training.max_steps=50; v is JSON, or else text")
    parser.add_argument(
        "--code", metavar="DIR", help="your own code, which the spec names things in: a folder or a .py"
    )


def run_submit(given: Given) -> int:
    spec = read(given.spec, given.changes)
    if given.name is not None:
        spec["name"] = given.name
    if given.tag:
        tags = spec.get("tags") or []
        if not isinstance(tags, list):
            raise UsageError(f"the spec's tags are {json.dumps(tags)}", hint='a list, as in ["demo"]')
        spec["tags"] = [*tags, *given.tag]
    client = client_of(given)
    _bring_code(client, given, spec)
    # Asked before, because afterwards the job itself takes the place that it needs.
    placement = None if given.watch or given.json else client.jobs.validate(spec).placement
    job = client.jobs.create(spec)
    if given.json:
        say_json(job.info.model_dump(mode="json"))
    else:
        for line in _lines(job.info.warnings):
            print(clean(line), file=sys.stderr, flush=True)
        print(job.id, flush=True)
        if placement is not None:
            tell(f"{placement.message}; `footplate watch {short(job.id)}` shows it")
    return watch_job(job, after=0, as_json=given.json) if given.watch else 0


def run_validate(given: Given) -> int:
    client, spec = client_of(given), read(given.spec, given.changes)
    _bring_code(client, given, spec)
    validation = client.jobs.validate(spec)
    if given.json:
        say_json(validation.model_dump(mode="json"))
        return 0
    steps = "as many steps as the data has" if validation.steps is None else f"{validation.steps} steps"
    say(f"valid: {steps}; {validation.placement.message}", *_lines(validation.warnings))
    return 0


def _lines(warnings: Sequence[SpecWarning]) -> list[str]:
    return [f"warning: {warning.pointer}: {warning.detail}" for warning in warnings]


def _bring_code(client: Client, given: Given, spec: dict[str, Any]) -> None:
    """Uploads the code that --code names and puts its bundle into the spec. Other fields of `code` stay."""
    if given.code is None:
        return
    code = spec.setdefault("code", {}) or {}
    if not isinstance(code, dict) or "bundle" in code:
        raise UsageError("the spec names its code, and --code does", hint="one of the two")
    spec["code"] = {**code, "bundle": client.bundles.upload(given.code).sha256}


def read(word: str, changes: list[str]) -> dict[str, Any]:
    """Returns the spec that a word names. Raises UsageError, or InvalidSpec with every problem of the JSON."""
    spec = _parsed(word)
    if not isinstance(spec, dict):
        raise UsageError("a spec is an object", hint=f"for example {EXAMPLE}")
    for change in changes:
        put(spec, change)
    return spec


def _parsed(word: str) -> Any:
    if not word.strip():
        raise UsageError("no spec is named", hint=f"a file, - for stdin, or JSON itself: {EXAMPLE}")
    if word == "-":
        return read_json(sys.stdin.buffer.read())
    if word.lstrip().startswith("{"):
        return read_json(word.encode())
    path = Path(word)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the spec {word!r} cannot be read: {error.strerror}", hint=f"a spec looks like {EXAMPLE}"
        ) from error
    return _yaml(path, raw) if path.suffix in (".yaml", ".yml") else read_json(raw)


def _yaml(path: Path, raw: bytes) -> Any:
    if find_spec("yaml") is None:
        raise UsageError(f"{path} is YAML, and no YAML reader is installed", hint="pip install pyyaml, or write JSON")
    yaml = import_module("yaml")
    try:
        return yaml.safe_load(raw)
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}") from error


def put(spec: dict[str, Any], change: str, example: str = "training.max_steps=50") -> None:
    """Sets one value in the spec, and makes missing objects on the way."""
    path, equals, text = change.partition("=")
    *parents, last = path.split(".")
    if not equals or not all([*parents, last]):
        raise UsageError(f"--set {change!r} has no name or no value", hint=f"it looks like --set {example}")
    place: Any = spec
    for depth, name in enumerate(parents):
        below = place.setdefault(name, {})
        if not isinstance(below, dict):
            here = ".".join(parents[: depth + 1])
            raise UsageError(
                f"--set {path}: {here} is {json.dumps(below)}, which has nothing inside",
                hint=f"write {here} as an object in the spec",
            )
        place = below
    place[last] = _value(text)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
