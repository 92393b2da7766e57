"""Packages and secrets that a spec needs, held against what the nodes announce.

A node that is one version older announces neither; then the job is accepted, and the node that runs it says so.
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


def nowhere(spec: JobSpec, told: Sequence[Catalogue]) -> list[Problem]:
    """What no node has, as far as every one of them has told."""
    return [*_packages(spec, told), *_libraries(spec, told), *_secrets(spec, told)]


def _libraries(spec: JobSpec, told: Sequence[Catalogue]) -> Iterator[Problem]:
    """Libraries of trackers, strategies, optimizers and adapters."""
    if not told or any(one.names(PACKAGES) is None for one in told):
        return
    for pointer, what, library in libraries_of(spec):
        needs = [Requirement(text) for text in library.packages]
        if not any(has_package(one, need) for one in told for need in needs):
            detail = f"{what} needs the package {' or '.join(library.packages)}, and no node has it"
            how = f"pip install {library.install} on a node, and start that again"
            yield Problem(pointer, "package_missing", detail, how)


def _secrets(spec: JobSpec, told: Sequence[Catalogue]) -> list[Problem]:
    announced = [one.names(SECRETS) for one in told]
    if not announced or None in announced:
        return []
    # A job that needs two of them needs them on one node.
    wrong = [unknown_secrets(spec.secrets, names or []) for names in announced]
    return min(wrong, key=len)


def _packages(spec: JobSpec, told: Sequence[Catalogue]) -> list[Problem]:
    if spec.code is None or not spec.code.requires:
        return []
    needs = [_parsed(index, text) for index, text in enumerate(spec.code.requires)]
    if misread := [one for one in needs if isinstance(one, Problem)]:
        return misread
    if not told or any(one.names(PACKAGES) is None for one in told):
        return []
    wrong = [list(_unmet([one for one in needs if not isinstance(one, Problem)], node)) for node in told]
    return min(wrong, key=len)


def _parsed(index: int, text: str) -> Requirement | Problem:
    where = f"/code/requires/{index}"
    try:
        found = Requirement(text)
    except InvalidRequirement as error:
        why = str(error).partition("\n")[0]
        return Problem(
            where, "not_a_requirement", f"{text[:80]!r} is no requirement: {why}", 'for example "einops>=0.8"'
        )
    if found.url or found.marker or found.extras:
        detail = "takes a package's name and versions only: nothing is installed"
        return Problem(where, "not_a_requirement", detail, f'"{found.name}{found.specifier}"')
    return found


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
