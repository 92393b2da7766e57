"""The verb `keys`: creates, lists and deletes keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from footplate.cli.context import Options, Verbs, add_subcommand, add_verb, client_of, print_deleted, print_secret, show
from footplate.cli.text import age

if TYPE_CHECKING:
    from footplate.sdk.models import Key


def add_verbs(verbs: Verbs) -> None:
    keys = add_verb(verbs, "keys", run_list, "list, create or delete the API keys of your project")
    subcommands = keys.add_subparsers(metavar="create | delete", title="subcommands")
    # "resolve" replaces the verbs' own --project: `--project "*"` can be that of a key, and not that of a request.
    create = add_subcommand(
        subcommands,
        "create",
        run_create,
        "create a key and print it; it is shown only once",
        conflict_handler="resolve",
    )
    create.add_argument("name", metavar="NAME", help="a description of the key, such as its owner or purpose")
    create.add_argument(
        "--project", dest="key_project", metavar="PROJECT", required=True, help="the key's project; * is every project"
    )
    create.add_argument(
        "--scope",
        dest="scopes",
        action="append",
        choices=("read", "submit", "code", "admin"),
        help="a right of the key; may be repeated (default: read and submit)",
    )
    create.add_argument("--expires-in", metavar="TIME", help="a lifetime such as 90d (default: until it is deleted)")
    delete = add_subcommand(subcommands, "delete", run_delete, "delete keys, which the service refuses from now on")
    delete.add_argument("keys", metavar="KEY", nargs="+", help="an id that `footplate keys` lists")


def run_list(options: Options) -> int:
    head = ("KEY", "BEGINS", "NAME", "PROJECT", "SCOPES", "AGE", "USED", "EXPIRES")
    empty_text = "no key was created yet; a key that the service was started with is not listed"
    return show(options, client_of(options).keys.list(), head, _key_row, empty_text)


def _key_row(key: Key) -> tuple[object, ...]:
    used = f"{age(key.last_used_at)} ago" if key.last_used_at else "never"
    return key.id, key.prefix, key.name, key.project, " ".join(key.scopes), age(key.created_at), used, key.expires_at


def run_create(options: Options) -> int:
    scopes = {"scopes": options.scopes} if options.scopes else {}
    key = client_of(options).keys.create(options.name, options.key_project, expires_in=options.expires_in, **scopes)
    messages = [f"{key.id} of {key.project!r} may {', '.join(key.scopes)}; the key is not shown again"]
    if not {"read", "admin"} & set(key.scopes):
        messages.append(
            "without the scope 'read', this key cannot list, watch or download jobs, or upload a folder of code"
        )
    return print_secret(options, key, key.key, *messages)


def run_delete(options: Options) -> int:
    client = client_of(options)
    for key in options.keys:
        client.keys.delete(key)
        print_deleted(options, key)
    return 0
