"""Checks what a spec refers to: its bundle, uploaded files, names on a hub, URLs and variables.

Bundles and uploaded files belong to projects. They cannot be deleted while an unfinished job needs them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sqlalchemy import Connection

from footplate.contract.bundles import missing_in
from footplate.contract.components import HUB_ON, HUBS, Catalogue
from footplate.contract.environment import refused_env
from footplate.contract.errors import FootplateError, InvalidSpec, NotFound, Problem
from footplate.contract.files import ArgumentText, by_url, named_in, on_hub, shown
from footplate.contract.outbound import Allowed, read_url
from footplate.contract.spec import JobSpec
from service.settings import ServiceSettings
from service.store import jobs
from service.store.content import BUNDLES, FILES, ContentTable

CODE_IS_OFF = "this service does not accept users' code"
HOW_TO_TURN_CODE_ON = "ask the operator to set FOOTPLATE_CODE=on, or use registered components without code of your own"
HOW_TO_TURN_HUBS_ON = f"ask the operator to set {HUB_ON} on service and nodes, or use a path below data:// or models://"


class BundleInUse(FootplateError):
    code = "bundle_in_use"
    status = 409
    title = "The bundle is needed"


class FileInUse(FootplateError):
    code = "file_in_use"
    status = 409
    title = "The file is needed"


def drop(conn: Connection, table: ContentTable[Any], project: str, key: str, remove: Callable[[], None]) -> None:
    """Deletes the row of a bundle or uploaded file, unless an unfinished job needs it.

    Then calls `remove` to delete the content from the artifact store, unless another project has the same content.
    """
    if (job := jobs.under_way_with(conn, project, f'"{key}"')) is not None:
        in_use = FileInUse if table is FILES else BundleInUse
        raise in_use(
            f"this {table.what} cannot be deleted, because job {job} needs it and has not ended",
            hint="cancel the job, or wait until it has ended",
        )
    if table.remove(conn, project, key):
        remove()


def missing_code(conn: Connection, project: str, spec: JobSpec, *, hold: bool = False) -> list[Problem]:
    """Returns a problem for a bundle that the project lacks, or for each name that the bundle does not contain.

    With `hold`, the bundle is locked, and its names are not checked again.
    """
    if spec.code is None:
        return []
    try:
        row = BUNDLES.get(conn, project, spec.code.bundle, hold=hold)
    except NotFound as error:
        return [Problem("/code/bundle", "unknown_bundle", error.message, error.hint)]
    return [] if hold else missing_in(spec, [path for path, _ in json.loads(row.files)])


def missing_files(
    conn: Connection, project: str, arguments: Iterable[ArgumentText], *, hold: bool = False
) -> list[Problem]:
    """Returns a problem for each uploaded file in the spec that its project does not have."""
    problems = []
    for pointer, file in named_in(arguments):
        try:
            FILES.get(conn, project, file, hold=hold)
        except NotFound as error:
            problems.append(Problem(pointer, "unknown_file", error.message, error.hint))
    return problems


def hold(conn: Connection, project: str, spec: JobSpec) -> None:
    """Locks the spec's bundle and files in the transaction that writes the job, so they stay. Raises InvalidSpec."""
    problems = missing_files(conn, project, spec.texts, hold=True) + missing_code(conn, project, spec, hold=True)
    if problems:
        raise InvalidSpec(problems)


def not_allowed(settings: ServiceSettings, spec: JobSpec) -> list[Problem]:
    """Returns problems for code and variables that this operator does not allow."""
    problems = refused_env(spec.env, settings.env_allowed)
    if spec.code is not None and settings.code == "off":
        problems.append(Problem("/code", "code_is_off", CODE_IS_OFF, HOW_TO_TURN_CODE_ON))
    return problems


def not_fetched(
    settings: ServiceSettings, catalogues: Sequence[Catalogue], arguments: Iterable[ArgumentText]
) -> list[Problem]:
    """Returns a problem for each name on a hub if the service, or every node, is configured not to use hubs."""
    if settings.hub == "off":
        because = "this service lets no job fetch from a hub"
    elif catalogues and not any(catalogue.get(HUBS, HUB_ON) for catalogue in catalogues):
        because = "no node fetches from a hub"
    else:
        return []
    names = on_hub(arguments)
    return [Problem(pointer, "hub_is_off", f"{name[:200]}: {because}", HOW_TO_TURN_HUBS_ON) for pointer, name in names]


def not_listed(settings: ServiceSettings, arguments: Iterable[ArgumentText]) -> list[Problem]:
    """Returns problems for URLs whose host the operator does not list. The node checks the addresses of the host."""
    allowed_hosts, problems = Allowed.of(settings.stores_allow), []
    for pointer, url in by_url(arguments):
        host = read_url(url).host
        if not allowed_hosts.lists(host):
            detail = f"{shown(url)}: this service lets no job fetch from {host}"
            hint = (
                f"ask the operator for FOOTPLATE_STORES_ALLOW={host} on service and nodes, or use a file below data://"
            )
            problems.append(Problem(pointer, "store_not_allowed", detail, hint))
    return problems
