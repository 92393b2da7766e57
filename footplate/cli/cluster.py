"""The verbs `nodes` and `components`: where jobs can run, and what a spec may name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from footplate.cli.context import Options, UsageError, Verbs, add_verb, client_of, not_empty, print_deleted, show
from footplate.cli.text import age, print_lines, short
from footplate.contract.errors import did_you_mean
from footplate.errors import not_found

if TYPE_CHECKING:
    from footplate.sdk.models import Component, Node


def add_verbs(verbs: Verbs) -> None:
    nodes = add_verb(verbs, "nodes", run_nodes, "list the nodes and the jobs that run on them")
    actions = nodes.add_mutually_exclusive_group()
    actions.add_argument(
        "--drain", metavar="NODE", type=not_empty, help="start no more attempts on this node; its jobs move elsewhere"
    )
    actions.add_argument("--undrain", metavar="NODE", type=not_empty, help="start attempts on this node again")
    actions.add_argument(
        "--remove", metavar="NODE", type=not_empty, help="forget this node, which is lost and will not come back"
    )
    components = add_verb(verbs, "components", run_components, "list the components that a spec may name")
    components.add_argument(
        "name", metavar="NAME", nargs="?", type=not_empty, help="a group, or a component to see its arguments"
    )


def run_nodes(options: Options) -> int:
    client = client_of(options)
    nodes = client.nodes()
    if node_name := options.drain or options.undrain:
        nodes = [client.drain(_node_named(nodes, node_name).id, drain=options.drain is not None)]
    if options.remove:
        client.remove_node(_node_named(nodes, options.remove).id)
        return print_deleted(options, options.remove)
    head = ("NODE", "STATE", "SLOTS", "GPUS", "POOL", "JOBS", "SEEN", "WHY")
    empty_text = "no node has announced itself yet; `footplate up` or `python -m worker` starts one"
    return show(options, nodes, head, _node_row, empty_text)


def _node_named(nodes: Sequence[Node], word: str) -> Node:
    """Returns the node with this name or id."""
    matches = [node for node in nodes if word in (node.name, node.id)]
    if not matches:
        names = ", ".join(node.name for node in nodes) or "none"
        raise not_found(f"no node is called {word!r}; known: {names}", "footplate nodes lists them")
    if len(matches) > 1:
        ids = ", ".join(node.id for node in matches)
        raise UsageError(f"{len(matches)} nodes are called {word!r}", hint=f"use an id: {ids}")
    return matches[0]


def _node_row(node: Node) -> tuple[object, ...]:
    jobs = " ".join(map(short, node.jobs))
    slots = f"{node.slots_used}/{node.slots}"
    return node.name, node.state, slots, len(node.gpus), node.pool, jobs, age(node.seen_at), node.message


def run_components(options: Options) -> int:
    components = [component for group in client_of(options).components().values() for component in group.values()]
    matches = [component for component in components if options.name in (None, component.name, component.group)]
    if components and not matches:
        names = {name for component in components for name in (component.name, component.group)}
        detail = f"no component and no group is called {options.name!r}"
        hint = did_you_mean(options.name, names) or "footplate components lists all of them"
        raise not_found(detail, hint)
    head, empty_text = ("GROUP", "NAME", "WHAT IT IS"), "no node has announced its components yet"
    show(options, matches, head, component_row, empty_text)
    if options.name and len(matches) == 1 and not options.json:
        print_lines("", *argument_lines(matches[0]))
    return 0


def component_row(component: Component) -> tuple[object, ...]:
    needs = f" No node has {component.needs}." if component.needs else ""
    return component.group, component.name, component.summary + needs


def argument_lines(component: Component) -> Iterator[str]:
    """Yields a line for each argument, with its default as a spec writes it."""
    for name, schema in component.args.get("properties", {}).items():
        default = f" = {json.dumps(schema['default'])}" if "default" in schema else ""
        types = [part.get("type", "") for part in schema.get("anyOf", [schema])]
        yield f"  {name}{default}  {' or '.join(filter(None, types))}  {schema.get('description', '')}".rstrip()
