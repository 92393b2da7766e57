"""Deletes uploaded files, locks those that a spec names, and checks whether names on a hub can be fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sqlalchemy import Connection

from footplate.contract.components import HUB_ON, HUBS, Catalogue
from footplate.contract.errors import FootplateError, InvalidSpec, NotFound, Problem
from footplate.contract.files import ArgumentText, by_url, named_in, on_hub, shown
from footplate.contract.ids import FileId
from footplate.contract.outbound import Allowed, read_url
from service.settings import ServiceSettings
from service.store import files, jobs


class FileInUse(FootplateError):
    code = "file_in_use"
    status = 409
    title = "The file is needed"


def drop(conn: Connection, project: str, file: FileId, remove: Callable[[], None]) -> None:
    """Deletes a file that no unfinished job needs. `remove` deletes it if no other project has it."""
    if (job := jobs.under_way_with(conn, project, f'"{file}"')) is not None:
        raise FileInUse(f"job {job} needs this file and is not over", hint="cancel it, or wait for its end")
    if files.SHELF.remove(conn, project, file):
        remove()


def check(conn: Connection, project: str, arguments: Iterable[ArgumentText], *, hold: bool = False) -> list[Problem]:
    """Returns a problem for each uploaded file in the spec that its project does not have."""
    problems = []
    for pointer, file in named_in(arguments):
        try:
            files.SHELF.get(conn, project, file, hold=hold)
        except NotFound as error:
            problems.append(Problem(pointer, "unknown_file", error.message, error.hint))
    return problems


def hold(conn: Connection, project: str, arguments: Iterable[ArgumentText]) -> None:
    """Locks the spec's files in the transaction that writes the job, so that they stay. Raises InvalidSpec."""
    if problems := check(conn, project, arguments, hold=True):
        raise InvalidSpec(problems)


def not_fetched(
    settings: ServiceSettings, catalogues: Sequence[Catalogue], arguments: Iterable[ArgumentText]
) -> list[Problem]:
    """Returns problems for names on a hub if the operator or all nodes do not allow to fetch them."""
    if settings.hub == "off":
        because = "this service lets no job fetch from a hub"
    elif catalogues and not any(catalogue.get(HUBS, HUB_ON) for catalogue in catalogues):
        because = "no node fetches from a hub"
    else:
        return []
    named = on_hub(arguments)
    return [Problem(pointer, "hub_is_off", f"{name[:200]}: {because}", HOW_TO_TURN_ON) for pointer, name in named]


def not_listed(settings: ServiceSettings, arguments: Iterable[ArgumentText]) -> list[Problem]:
    """Returns problems for URLs whose host the operator does not list. The node checks the addresses of the host."""
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
