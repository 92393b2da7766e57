"""`nodes` and `components`: what a job would run on, and what it may name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from footplate.cli.context import Given, NothingThere, UsageError, Verbs, add_verb, client_of
from footplate.cli.text import age, say, say_json, short, table
from footplate.contract.errors import did_you_mean

if TYPE_CHECKING:
    from footplate.sdk.models import Component, Node


ALL = "footplate components has them all"


def add_verbs(verbs: Verbs) -> None:
    nodes = add_verb(verbs, "nodes", run_nodes, "the machines that train, and what they are doing")
    what = nodes.add_mutually_exclusive_group()
    what.add_argument("--drain", metavar="NODE", help="give this one no more work; what it runs goes on elsewhere")
    what.add_argument("--undrain", metavar="NODE", help="give it work again")
    components = add_verb(verbs, "components", run_components, "what a spec may name")
    components.add_argument("name", metavar="NAME", nargs="?", help="a group or a name, to see its arguments")


def run_nodes(given: Given) -> int:
    client = client_of(given)
    found = client.nodes()
    if wanted := given.drain or given.undrain:
        found = [client.drain(_meant(found, wanted).id, drain=given.drain is not None)]
    if given.json:
        for node in found:
            say_json(node.model_dump(mode="json"))
        return 0
    head = ("NODE", "STATE", "SLOTS", "GPUS", "POOL", "JOBS", "SEEN", "WHY")
    table(head, map(_node_row, found), empty="no node has told yet; `footplate up` or `python -m worker` starts one")
    return 0


def _meant(nodes: Sequence[Node], word: str) -> Node:
    """By its name or its id."""
    found = [one for one in nodes if word in (one.name, one.id)]
    if not found:
        known = ", ".join(one.name for one in nodes) or "none"
        raise NothingThere(f"no node is called {word!r}; known: {known}", hint="footplate nodes has their names")
    if len(found) > 1:
        ids = ", ".join(one.id for one in found)
        raise UsageError(f"{len(found)} nodes are called {word!r}", hint=f"an id is one node's alone: {ids}")
    return found[0]


def _node_row(node: Node) -> tuple[object, ...]:
    jobs = " ".join(map(short, node.jobs))
    slots = f"{node.slots_used}/{node.slots}"
    return node.name, node.state, slots, len(node.gpus), node.pool, jobs, age(node.seen_at), node.message


def run_components(given: Given) -> int:
    known = [one for group in client_of(given).components().values() for one in group.values()]
    found = [one for one in known if given.name in (None, one.name, one.group)]
    if known and not found:
        names = {name for one in known for name in (one.name, one.group)}
        raise NothingThere(
            f"no component and no group is called {given.name!r}", hint=did_you_mean(given.name, names) or ALL
        )
    if given.json:
        for one in found:
            say_json(one.model_dump(mode="json"))
        return 0
    table(
        ("GROUP", "NAME", "WHAT IT IS"),
        ((one.group, one.name, one.summary) for one in found),
        empty="no node has told yet what it has",
    )
    if given.name and len(found) == 1:
        say("", *_arguments(found[0]))
    return 0


def _arguments(component: Component) -> Iterator[str]:
    for name, schema in component.args.get("properties", {}).items():
        default = f" = {schema['default']!r}" if "default" in schema else ""
        kind = schema.get("type", "")
        yield f"  {name}{default}  {kind}  {schema.get('description', '')}".rstrip()
