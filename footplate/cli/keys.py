"""The verb `keys`: creates, lists and deletes keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from footplate.cli.context import Given, Verbs, add_part, add_verb, client_of, say_deleted, show
from footplate.cli.text import age, say_json, tell

if TYPE_CHECKING:
    from footplate.sdk.models import Key


def add_verbs(verbs: Verbs) -> None:
    keys = add_verb(verbs, "keys", run_list, "list the keys of your project, make one, or delete one")
    parts = keys.add_subparsers(metavar="create | delete", title="parts")
    create = add_part(parts, "create", run_create, "make a key, and print it: it is shown once")
    create.add_argument("name", metavar="NAME", help="a text for people: its owner or its purpose")
    create.add_argument("--project", required=True, help="the project that it belongs to; * is every project")
    create.add_argument(
        "--scope",
        dest="scopes",
        action="append",
        choices=("read", "submit", "code", "admin"),
        help="what it may do; may be repeated; else read and submit",
    )
    create.add_argument("--expires-in", metavar="TIME", help="as in 90d; else it is good until it is deleted")
    delete = add_part(parts, "delete", run_delete, "delete keys, which are refused from now on")
    delete.add_argument("keys", metavar="KEY", nargs="+", help="an id, as the list has them")


def run_list(given: Given) -> int:
    head = ("KEY", "BEGINS", "NAME", "PROJECT", "SCOPES", "AGE", "USED", "EXPIRES")
    empty = "no key was made yet; the one that the service may be started with is not listed"
    return show(given, client_of(given).keys.list(), head, _row, empty=empty)


def _row(one: Key) -> tuple[object, ...]:
    used = f"{age(one.last_used_at)} ago" if one.last_used_at else "never"
    return one.id, one.prefix, one.name, one.project, " ".join(one.scopes), age(one.created_at), used, one.expires_at


def run_create(given: Given) -> int:
    wanted = {"scopes": given.scopes} if given.scopes else {}
    made = client_of(given).keys.create(given.name, given.project, expires_in=given.expires_in, **wanted)
    if given.json:
        say_json(made.model_dump(mode="json"))
        return 0
    print(made.key, flush=True)
    # On stderr, because a script may want only the key from stdout.
    tell(f"{made.id} of {made.project!r} may {', '.join(made.scopes)}; this is the only time that it is shown")
    return 0


def run_delete(given: Given) -> int:
    client = client_of(given)
    for key in given.keys:
        client.keys.delete(key)
        say_deleted(given, key)
    return 0
