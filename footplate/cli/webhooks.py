"""The verb `webhooks`: manages URLs to which the service sends a request when jobs change their state."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from footplate.cli.context import (
    Options,
    UsageError,
    Verbs,
    add_subcommand,
    add_verb,
    client_of,
    count,
    print_deleted,
    print_result,
    print_secret,
    show,
)
from footplate.cli.text import age, short

if TYPE_CHECKING:
    from footplate.sdk.models import Delivery, NewWebhook, Webhook

DEFAULT_LIMIT = 20


def add_verbs(verbs: Verbs) -> None:
    hooks = add_verb(verbs, "webhooks", run_list, "list webhooks: URLs that receive a request when jobs change state")
    metavar = "create | update | rotate | test | deliveries | delete"
    subcommands = hooks.add_subparsers(metavar=metavar, title="subcommands")
    create = add_subcommand(
        subcommands, "create", run_create, "add a webhook and print its secret, which is shown once"
    )
    create.add_argument("to", metavar="URL", help="the URL that receives the requests")
    create.add_argument(
        "--format",
        choices=("footplate", "openai"),
        help="the format of the requests (footplate); with openai, only the end of a job sends a request",
    )
    changes = "change the URL, the states or the tags, or disable the webhook"
    update = add_subcommand(subcommands, "update", run_update, changes)
    update.add_argument("--to", metavar="URL", help="the new URL that receives the requests")
    for parser, removal_help in ((create, ""), (update, "; all removes the filter")):
        parser.add_argument(
            "--state", help=f"only jobs that reach this state, or one of several with commas{removal_help}"
        )
        parser.add_argument("--tag", help=f"only jobs with this tag, or one of several with commas{removal_help}")
        parser.add_argument("--description", help="a description of the webhook")
    switch = update.add_mutually_exclusive_group()
    switch.add_argument("--enable", dest="enabled", action="store_true", default=None, help="send requests again")
    switch.add_argument(
        "--disable", dest="enabled", action="store_false", help="send no more requests, not even waiting ones"
    )
    rotate = add_subcommand(subcommands, "rotate", run_rotate, "create a new secret and print it")
    rotate.add_argument(
        "--overlap",
        default="24h",
        metavar="TIME",
        help="how long requests are also signed with the old secret (24h); 0 means not at all",
    )
    test = add_subcommand(subcommands, "test", run_test, "send a test request to a webhook")
    deliveries = add_subcommand(
        subcommands, "deliveries", run_deliveries, "list requests to a webhook and their results"
    )
    deliveries.add_argument(
        "--limit", type=count, default=DEFAULT_LIMIT, help=f"the largest number of requests ({DEFAULT_LIMIT}); 0 is all"
    )
    delete = add_subcommand(subcommands, "delete", run_delete, "delete a webhook and its deliveries")
    for parser in (update, rotate, test, deliveries, delete):
        parser.add_argument("webhook", metavar="WEBHOOK", help="an id that `footplate webhooks` lists")


def run_list(options: Options) -> int:
    head = ("WEBHOOK", "URL", "FORMAT", "STATES", "TAGS", "AGE", "HOW")
    return show(options, client_of(options).webhooks.list(), head, _webhook_row, "there is no webhook yet")


def _webhook_row(webhook: Webhook) -> tuple[object, ...]:
    states, tags = (" ".join(names) if names else "all" for names in (webhook.states, webhook.tags))
    return webhook.id, webhook.url, webhook.format, states, tags, age(webhook.created_at), _status(webhook)


def _status(webhook: Webhook) -> str:
    if not webhook.enabled:
        return f"disabled: {webhook.disabled_why}"
    return f"fails since {webhook.failing_since}" if webhook.failing_since else "well"


def run_create(options: Options) -> int:
    webhook = client_of(options).webhooks.create(
        options.to, **_chosen_fields(options, "state", "tag", "description", "format")
    )
    return _show_secret(webhook, options)


def run_rotate(options: Options) -> int:
    overlap = 0 if options.overlap == "0" else options.overlap
    return _show_secret(client_of(options).webhooks.rotate(options.webhook, overlap=overlap), options)


def _show_secret(webhook: NewWebhook, options: Options) -> int:
    messages = [f"requests of {webhook.id} are signed with this secret, which is not shown again"]
    if webhook.old_secret_until:
        messages.append(f"the old secret also signs until {webhook.old_secret_until}")
    return print_secret(options, webhook, webhook.secret, *messages)


def run_update(options: Options) -> int:
    changes = _chosen_fields(options, "to", "state", "tag", "description", "enabled")
    if not changes:
        hint = "--to URL, --state, --tag, --description, --enable or --disable"
        raise UsageError("the command changes nothing: name at least one option", hint=hint)
    webhook = client_of(options).webhooks.update(options.webhook, **changes)
    return print_result(options, webhook, f"{webhook.id} {webhook.url} ({_status(webhook)})")


def _chosen_fields(options: Options, *names: str) -> dict[str, Any]:
    """Returns the options that were used, under the API's field names."""
    fields = {name: value for name in names if (value := getattr(options, name)) is not None}
    if "to" in fields:  # The option is `--to` and not `--url`, because `--url` is the service's address.
        fields["url"] = fields.pop("to")
    for name in ("state", "tag"):
        if name in fields:
            text = fields.pop(name)
            fields[f"{name}s"] = None if text == "all" else text.split(",")
    return fields


def run_test(options: Options) -> int:
    delivery = client_of(options).webhooks.test(options.webhook)
    text = f"{delivery.id} will be sent; `footplate webhooks deliveries {options.webhook}` shows the result"
    return print_result(options, delivery, text)


def run_deliveries(options: Options) -> int:
    deliveries = islice(client_of(options).webhooks.deliveries(options.webhook), options.limit or None)
    head = ("DELIVERY", "TYPE", "JOB", "STATUS", "TRIES", "AGE", "ANSWER")
    return show(options, deliveries, head, _delivery_row, "nothing was sent to this webhook yet")


def _delivery_row(delivery: Delivery) -> tuple[object, ...]:
    job, answer = short(delivery.job) if delivery.job else "", delivery.error or delivery.http_status
    return delivery.id, delivery.type, job, delivery.status, delivery.tries, age(delivery.created_at), answer


def run_delete(options: Options) -> int:
    client_of(options).webhooks.delete(options.webhook)
    return print_deleted(options, options.webhook)
