"""Deletes a bundle, and checks a spec against the bundle that it names."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection

from footplate.contract.bundles import missing_in
from footplate.contract.environment import refused_env
from footplate.contract.errors import FootplateError, InvalidSpec, NotFound, Problem
from footplate.contract.spec import JobSpec
from service.settings import ServiceSettings
from service.store import bundles, jobs


class BundleInUse(FootplateError):
    code = "bundle_in_use"
    status = 409
    title = "The bundle is needed"


def drop(conn: Connection, project: str, sha256: str, remove: Callable[[], None]) -> None:
    """Deletes a bundle that no unfinished job needs. `remove` deletes the file if no other project has it."""
    if (job := jobs.under_way_with(conn, project, f'"{sha256}"')) is not None:
        raise BundleInUse(f"job {job} needs this bundle and is not over", hint="cancel it, or wait for its end")
    if bundles.SHELF.remove(conn, project, sha256):
        remove()


def check(conn: Connection, project: str, spec: JobSpec) -> list[Problem]:
    """Returns a problem for each name in the spec that its bundle does not contain."""
    if spec.code is None:
        return []
    try:
        row = bundles.SHELF.get(conn, project, spec.code.bundle)
    except NotFound as error:
        return [Problem("/code/bundle", "unknown_bundle", error.message, error.hint)]
    return missing_in(spec.as_json(), row.paths)


def hold(conn: Connection, project: str, spec: JobSpec) -> None:
    """Locks the bundle in the transaction that writes the job, so that it cannot be deleted meanwhile."""
    if spec.code is None:
        return
    try:
        bundles.SHELF.get(conn, project, spec.code.bundle, hold=True)
    except NotFound as error:
        raise InvalidSpec([Problem("/code/bundle", "unknown_bundle", error.message, error.hint)]) from error


def not_allowed(settings: ServiceSettings, spec: JobSpec) -> list[Problem]:
    """Returns problems for everything that this operator does not allow."""
    problems = refused_env(spec.env, settings.env_allowed)
    if spec.code is not None and settings.code == "off":
        problems.append(Problem("/code", "code_is_off", CODE_IS_OFF, HOW_TO_TURN_ON))
    return problems


CODE_IS_OFF = "this service does not accept users' code"
HOW_TO_TURN_ON = "the operator allows it with FOOTPLATE_CODE=on; registered components need none"
