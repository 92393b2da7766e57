"""The verb `webhooks`: manages URLs that are called when jobs change their state."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from footplate.cli.context import Given, UsageError, Verbs, add_part, add_verb, client_of, count, say_deleted, show
from footplate.cli.text import age, say, say_json, short, tell

if TYPE_CHECKING:
    from footplate.sdk.models import Delivery, NewWebhook, Webhook

DEFAULT_LIMIT = 20


def add_verbs(verbs: Verbs) -> None:
    hooks = add_verb(verbs, "webhooks", run_list, "URLs that receive a request when jobs change their state")
    parts = hooks.add_subparsers(metavar="create | update | rotate | test | deliveries | delete", title="parts")
    create = add_part(parts, "create", run_create, "add a webhook, and print its secret: it is shown once")
    create.add_argument("to", metavar="URL", help="where to POST")
    create.add_argument(
        "--format",
        choices=("footplate", "openai"),
        help="the form of the requests (footplate); openai: the end of jobs only",
    )
    update = add_part(parts, "update", run_update, "change the URL, the states or the tags, or disable the webhook")
    update.add_argument("--to", metavar="URL", help="where to POST from now on")
    for parser, further in ((create, ""), (update, "; all removes the filter")):
        parser.add_argument("--state", help=f"only if a job reaches this state, or one of several with commas{further}")
        parser.add_argument("--tag", help=f"only if it has this tag, or one of several with commas{further}")
        parser.add_argument("--description", help="a text for people")
    switch = update.add_mutually_exclusive_group()
    switch.add_argument(
        "--enable", dest="enabled", action="store_true", default=None, help="send requests again, from now on"
    )
    switch.add_argument("--disable", dest="enabled", action="store_false", help="send nothing more, nor what waits")
    rotate = add_part(parts, "rotate", run_rotate, "make another secret, and print it")
    rotate.add_argument(
        "--overlap", default="24h", metavar="TIME", help="how long the old secret also signs (24h); 0 ends it now"
    )
    test = add_part(parts, "test", run_test, "send a ping")
    deliveries = add_part(parts, "deliveries", run_deliveries, "list requests to a webhook and their results")
    deliveries.add_argument(
        "--limit", type=count, default=DEFAULT_LIMIT, help=f"the most to list ({DEFAULT_LIMIT}); 0 is all"
    )
    delete = add_part(parts, "delete", run_delete, "delete a webhook and its deliveries")
    for parser in (update, rotate, test, deliveries, delete):
        parser.add_argument("webhook", metavar="WEBHOOK", help="an id, as the list has them")


def run_list(given: Given) -> int:
    head = ("WEBHOOK", "URL", "FORMAT", "STATES", "TAGS", "AGE", "HOW")
    return show(given, client_of(given).webhooks.list(), head, _row, empty="there is no webhook yet")


def _row(one: Webhook) -> tuple[object, ...]:
    states, tags = (" ".join(some) if some else "all" for some in (one.states, one.tags))
    return one.id, one.url, one.format, states, tags, age(one.created_at), _how(one)


def _how(one: Webhook) -> str:
    if not one.enabled:
        return f"disabled: {one.disabled_why}"
    return f"fails since {one.failing_since}" if one.failing_since else "well"


def run_create(given: Given) -> int:
    made = client_of(given).webhooks.create(given.to, **_wanted(given, "state", "tag", "description", "format"))
    return _show_secret(made, given)


def run_rotate(given: Given) -> int:
    overlap = 0 if given.overlap == "0" else given.overlap
    return _show_secret(client_of(given).webhooks.rotate(given.webhook, overlap=overlap), given)


def _show_secret(made: NewWebhook, given: Given) -> int:
    if given.json:
        say_json(made.model_dump(mode="json"))
        return 0
    print(made.secret, flush=True)
    # On stderr, because a script may want only the secret from stdout.
    tell(f"{made.id} signs with it; this is the only time that it is shown")
    if made.old_secret_until:
        tell(f"the secret before also signs until {made.old_secret_until}")
    return 0


def run_update(given: Given) -> int:
    changes = _wanted(given, "to", "state", "tag", "description", "enabled")
    if not changes:
        hint = "--to URL, --state, --tag, --description, --enable or --disable"
        raise UsageError("no change is given", hint=hint)
    made = client_of(given).webhooks.update(given.webhook, **changes)
    say_json(made.model_dump(mode="json")) if given.json else say(f"{made.id} {made.url} ({_how(made)})")
    return 0


def _wanted(given: Given, *names: str) -> dict[str, Any]:
    """Returns the given options under the API's names."""
    fields = {name: value for name in names if (value := getattr(given, name)) is not None}
    if "to" in fields:  # The option --url is the service's address.
        fields["url"] = fields.pop("to")
    for name in ("state", "tag"):
        if name in fields:
            words = fields.pop(name)
            fields[f"{name}s"] = None if words == "all" else words.split(",")
    return fields


def run_test(given: Given) -> int:
    sent = client_of(given).webhooks.test(given.webhook)
    if given.json:
        say_json(sent.model_dump(mode="json"))
    else:
        say(f"{sent.id} is on its way; `footplate webhooks deliveries {given.webhook}` shows the result")
    return 0


def run_deliveries(given: Given) -> int:
    deliveries = islice(client_of(given).webhooks.deliveries(given.webhook), given.limit or None)
    head = ("DELIVERY", "TYPE", "JOB", "STATUS", "TRIES", "AGE", "ANSWER")
    return show(given, deliveries, head, _delivery_row, empty="nothing was sent to this webhook yet")


def _delivery_row(one: Delivery) -> tuple[object, ...]:
    job = short(one.job) if one.job else ""
    return one.id, one.type, job, one.status, one.tries, age(one.created_at), one.error or one.http_status


def run_delete(given: Given) -> int:
    client_of(given).webhooks.delete(given.webhook)
    say_deleted(given, given.webhook)
    return 0
