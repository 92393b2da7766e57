"""The verbs `submit` and `validate`, which read a spec from a file, from stdin or from the command line."""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, ClassVar

from footplate.cli.context import Options, UsageError, Verbs, add_changes, add_verb, client_of, not_empty, print_result
from footplate.cli.text import clean, print_json, print_message, short
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
    submit.add_argument("--name", help="the job's name")
    submit.add_argument("--tag", action="append", default=[], metavar="TAG", help="a tag of the job; may be repeated")
    submit.add_argument("--watch", action="store_true", help="watch the job until it ends")
    validate = add_verb(verbs, "validate", run_validate, "check a spec as submit does, without creating a job")
    _add_spec(validate)


def _add_spec(parser: Any) -> None:
    parser.add_argument("spec", metavar="SPEC", help="a JSON or YAML file, - for stdin, or JSON text")
    add_changes(parser, "set one value of the spec, such as training.max_steps=50; a value that is not JSON is a text")
    parser.add_argument(
        "--code", metavar="DIR", type=not_empty, help="a folder or a .py file with your own code, which the spec names"
    )


def run_submit(options: Options) -> int:
    spec = read_spec(options.spec, options.changes)
    if options.name is not None:
        spec["name"] = options.name
    if options.tag:
        tags = spec.get("tags") or []
        if not isinstance(tags, list):
            raise UsageError(f"tags must be a list, and the spec has {json.dumps(tags)}", hint='for example ["demo"]')
        spec["tags"] = [*tags, *options.tag]
    client = client_of(options)
    _upload_code(client, options, spec)
    # The placement is requested before the job exists, because later the job itself would occupy slots.
    placement = None if options.json else client.jobs.validate(spec).placement
    job = client.jobs.create(spec)
    if options.json:
        print_json(job.info)
    else:
        for line in _warning_lines(job.info.warnings):
            print(clean(line), file=sys.stderr, flush=True)
        print(job.id, flush=True)
        if placement is not None and (placement.waits or not options.watch):
            print_message(f"{placement.message}; `footplate watch {short(job.id)}` shows its progress")
    return watch_job(job, after=0, as_json=options.json) if options.watch else 0


def run_validate(options: Options) -> int:
    client, spec = client_of(options), read_spec(options.spec, options.changes)
    _upload_code(client, options, spec)
    validation = client.jobs.validate(spec)
    steps = "as many steps as the data has" if validation.steps is None else f"{validation.steps} steps"
    text = f"valid: {steps}; {validation.placement.message}"
    return print_result(options, validation, text, *_warning_lines(validation.warnings))


def _warning_lines(warnings: Sequence[SpecWarning]) -> list[str]:
    return [f"warning: {warning.pointer}: {warning.detail}" for warning in warnings]


def _upload_code(client: Client, options: Options, spec: dict[str, Any]) -> None:
    """Uploads the folder or file of `--code`, and sets `code.bundle` in the spec, as `--set` replaces a value."""
    if options.code is None:
        return
    code = spec.get("code") or {}
    if not isinstance(code, dict):
        raise UsageError("the spec's code is not an object", hint='it looks like {"requires": ["einops>=0.8"]}')
    spec["code"] = {**code, "bundle": client.bundles.upload(options.code).sha256}


def read_spec(word: str, changes: list[str]) -> dict[str, Any]:
    """Returns the spec in a file, on stdin or in the word itself, with the values of `--set`."""
    spec = _parsed(word)
    if not isinstance(spec, dict):
        raise UsageError(
            f"{word[:500]!r} does not hold a spec: a spec must be an object", hint=f"for example {EXAMPLE}"
        )
    return set_values(spec, changes)


def _parsed(word: str) -> Any:
    if not word.strip():
        raise UsageError("no spec is named", hint=f"name a file, - for stdin, or JSON text: {EXAMPLE}")
    if word == "-":
        return read_json(sys.stdin.buffer.read())
    if word.lstrip().startswith("{"):
        return read_json(word.encode())
    path = Path(word)
    if path.suffix == ".py":
        raise UsageError(
            f"{word!r} is a script, not a spec",
            hint=f"""run it with footplate submit '{{"loop": {{"script": "{path.name}"}}}}' --code {quote(word)}""",
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the spec {word!r} cannot be read: {error.strerror}", hint=f"a spec looks like {EXAMPLE}"
        ) from error
    return _yaml(path, content) if path.suffix in (".yaml", ".yml") else read_json(content)


def _yaml(path: Path, content: bytes) -> Any:
    if find_spec("yaml") is None:
        raise UsageError(f"{path} is YAML, and no YAML reader is installed", hint="pip install pyyaml, or write JSON")
    yaml = import_module("yaml")
    try:
        return yaml.load(content, _yaml_loader(yaml))
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}") from error


def _yaml_loader(yaml: Any) -> Any:
    """Returns a loader that reads values as JSON does, and refuses a repeated key.

    PyYAML follows YAML 1.1. It reads 2e-5 as a text, `no` as false, 2026-01-31 as a date, and 4:30 as a number.
    """

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            names = set()
            for key in [key for key, _ in node.value if isinstance(key.value, str)]:
                if key.value in names:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is there twice", key.start_mark)
                names.add(key.value)
            return super().construct_mapping(node, deep=deep)

    for tag, pattern in YAML_VALUES.items():
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), None)
    return Loader


YAML_VALUES = {
    "null": r"(?:null|~|)$", "bool": r"(?:true|false)$", "merge": r"<<$", "int": r"-?(?:0|[1-9][0-9]*)$",
    "float": r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$",
}  # fmt: skip
"""The YAML values without quotes that are not texts, each with its pattern. The first pattern that matches decides."""


def set_values(
    fields: dict[str, Any], changes: Sequence[str], example: str = "training.max_steps=50"
) -> dict[str, Any]:
    """Applies the values of `--set` to the fields, and returns them."""
    for change in changes:
        _set_value(fields, change, example)
    return fields


def _set_value(spec: dict[str, Any], change: str, example: str) -> None:
    """Applies one `--set` to the spec: a path of names with dots, `=` and a value. Missing objects are created."""
    path, separator, text = change.partition("=")
    *parents, last_name = path.split(".")
    if not separator or not all([*parents, last_name]):
        raise UsageError(f"--set {change!r} has no name or no value", hint=f"it looks like --set {example}")
    parent: Any = spec
    for depth, name in enumerate(parents):
        child = parent.setdefault(name, {})
        if not isinstance(child, dict):
            path_to_child = ".".join(parents[: depth + 1])
            if isinstance(child, list):
                raise UsageError(
                    f"--set {path}: {path_to_child} is a list, and --set cannot change one entry of it",
                    hint=f"change the spec, or give the whole list: --set '{path_to_child}=[…]'",
                )
            raise UsageError(
                f"--set {path}: {path_to_child} is {json.dumps(child)}, which is not an object",
                hint=f"write {path_to_child} as an object in the spec",
            )
        parent = child
    parent[last_name] = parsed_or_text(text)


def parsed_or_text(text: str) -> Any:
    """Returns the parsed text if it is JSON, else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
