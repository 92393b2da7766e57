"""Let go of an uploaded file, and hold those that a spec names. Of what lies on a hub: whether anybody fetches it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sqlalchemy import Connection

from footplate.contract.components import HUB_ON, HUBS, Catalogue
from footplate.contract.errors import FootplateError, InvalidSpec, NotFound, Problem
from footplate.contract.files import Said, by_url, named_in, on_hub, shown
from footplate.contract.ids import FileId
from footplate.contract.outbound import Allowed, read_url
from service.settings import ServiceSettings
from service.store import files, jobs


class FileInUse(FootplateError):
    code = "file_in_use"
    status = 409
    title = "The file is needed"


def drop(conn: Connection, project: str, file: FileId, remove: Callable[[], None]) -> None:
    """Not while a job that is not over needs it. `remove` takes the file, once it is no project's any more."""
    if (job := jobs.under_way_with(conn, project, f'"{file}"')) is not None:
        raise FileInUse(f"job {job} needs this file and is not over", hint="cancel it, or wait for its end")
    if files.SHELF.remove(conn, project, file):
        remove()


def check(conn: Connection, project: str, arguments: Iterable[Said], *, hold: bool = False) -> list[Problem]:
    """What a spec names and its project does not have."""
    problems = []
    for pointer, file in named_in(arguments):
        try:
            files.SHELF.get(conn, project, file, hold=hold)
        except NotFound as error:
            problems.append(Problem(pointer, "unknown_file", error.message, error.hint))
    return problems


def hold(conn: Connection, project: str, arguments: Iterable[Said]) -> None:
    """In the transaction that writes the job: nobody takes its files away meanwhile. Raises InvalidSpec."""
    if problems := check(conn, project, arguments, hold=True):
        raise InvalidSpec(problems)


def not_fetched(settings: ServiceSettings, told: Sequence[Catalogue], arguments: Iterable[Said]) -> list[Problem]:
    """What a spec names on a hub, where the operator lets nobody fetch it, or no node does."""
    if settings.hub == "off":
        because = "this service lets no job fetch from a hub"
    elif told and not any(one.get(HUBS, HUB_ON) for one in told):
        because = "no node fetches from a hub"
    else:
        return []
    named = on_hub(arguments)
    return [Problem(pointer, "hub_is_off", f"{name[:200]}: {because}", HOW_TO_TURN_ON) for pointer, name in named]


def not_listed(settings: ServiceSettings, arguments: Iterable[Said]) -> list[Problem]:
    """What a spec names by a URL of a host that the operator does not list. Its address is looked at by the node."""
    allowed, problems = Allowed.of(settings.stores_allow), []
    for pointer, url in by_url(arguments):
        host = read_url(url).host
        if not allowed.lists(host):
            detail = f"{shown(url)}: this service lets no job fetch from {host}"
            hint = (
                f"the operator allows it with FOOTPLATE_STORES_ALLOW={host}, on service and nodes; data:// needs none"
            )
            problems.append(Problem(pointer, "store_not_allowed", detail, hint))
    return problems


HOW_TO_TURN_ON = f"the operator allows it with {HUB_ON}, on service and nodes; data:// and models:// need nothing"
