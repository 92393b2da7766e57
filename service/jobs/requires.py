"""Compares the packages and secrets that a spec needs with those that the nodes announce.

A node of an older version announces neither. Then the job is accepted, and its node reports what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from footplate.contract.components import PACKAGES, SECRETS, Catalogue
from footplate.contract.environment import unknown_secrets
from footplate.contract.errors import Problem, did_you_mean
from footplate.contract.spec import JobSpec
from service.jobs.installed import has_package, libraries_of, meets


def nowhere(spec: JobSpec, catalogues: Sequence[Catalogue]) -> list[Problem]:
    """Returns problems for what no node has, if all nodes have announced what they have."""
    return [*_packages(spec, catalogues), *_libraries(spec, catalogues), *_secrets(spec, catalogues)]


def _libraries(spec: JobSpec, catalogues: Sequence[Catalogue]) -> Iterator[Problem]:
    """Yields problems for libraries of trackers, strategies, optimizers and adapters."""
    if not catalogues or any(catalogue.names(PACKAGES) is None for catalogue in catalogues):
        return
    for pointer, what, library in libraries_of(spec):
        needs = [Requirement(text) for text in library.packages]
        if not any(has_package(catalogue, need) for catalogue in catalogues for need in needs):
            detail = f"{what} needs the package {' or '.join(library.packages)}, and no node has it"
            how = f"pip install {library.install} on a node, and start that again"
            yield Problem(pointer, "package_missing", detail, how)


def _secrets(spec: JobSpec, catalogues: Sequence[Catalogue]) -> list[Problem]:
    announced = [catalogue.names(SECRETS) for catalogue in catalogues]
    if not announced or None in announced:
        return []
    # A job that needs two secrets needs them on the same node.
    wrong = [unknown_secrets(spec.secrets, names or []) for names in announced]
    return min(wrong, key=len)


def _packages(spec: JobSpec, catalogues: Sequence[Catalogue]) -> list[Problem]:
    if spec.code is None or not spec.code.requires:
        return []
    needs = [_parsed(index, text) for index, text in enumerate(spec.code.requires)]
    if misread := [need for need in needs if isinstance(need, Problem)]:
        return misread
    if not catalogues or any(catalogue.names(PACKAGES) is None for catalogue in catalogues):
        return []
    wrong = [list(_unmet([need for need in needs if not isinstance(need, Problem)], node)) for node in catalogues]
    return min(wrong, key=len)


def _parsed(index: int, text: str) -> Requirement | Problem:
    where = f"/code/requires/{index}"
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        why = str(error).partition("\n")[0]
        return Problem(
            where, "not_a_requirement", f"{text[:80]!r} is not a requirement: {why}", 'for example "einops>=0.8"'
        )
    if requirement.url or requirement.marker or requirement.extras:
        detail = "takes a package's name and versions only: nothing is installed"
        return Problem(where, "not_a_requirement", detail, f'"{requirement.name}{requirement.specifier}"')
    return requirement


def _unmet(needs: Sequence[Requirement], node: Catalogue) -> Iterator[Problem]:
    for index, need in enumerate(needs):
        name = canonicalize_name(need.name)
        installed = node.get(PACKAGES, name)
        if installed is None:
            hint = did_you_mean(name, node.names(PACKAGES) or [])
            detail = f"no node has {need.name}"
        elif not meets(need, installed.summary):
            hint, detail = None, f"no node has {need}: there is {installed.summary}"
        else:
            continue
        how = "install it on the nodes, or put it into the bundle and leave it out here"
        yield Problem(f"/code/requires/{index}", "package_missing", detail, hint or how)
