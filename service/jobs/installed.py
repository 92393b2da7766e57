"""Compares the components, packages and secrets that a job needs with the catalogues that the nodes announce.

For placement, the needs are texts:

    models/hf/causal-lm     a component, in its group
    packages/einops>=0.8    a package, as in `code.requires`
    packages/a|b            one of two packages
    secrets/wandb           the name of a secret
    hubs/FOOTPLATE_HUB=on   the setting with which a node fetches from a hub

Placement uses these texts to choose among nodes with different catalogues. If no node has a name, the POST is refused
(`problems_missing_everywhere`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import lru_cache

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion
from pydantic import ValidationError

from footplate.contract.arguments.libraries import BITSANDBYTES, DEEPSPEED, LIGER, OPTIMS, PEFT, TRACKERS, Library
from footplate.contract.components import GROUPS, HUB_ON, HUBS, PACKAGES, SECRETS, Catalogue
from footplate.contract.environment import unknown_secrets
from footplate.contract.errors import Problem, did_you_mean
from footplate.contract.files import on_hub
from footplate.contract.spec import JobSpec

log = logging.getLogger("footplate.control")

EITHER = "|"
MOST_KEPT = 4096


def read_catalogue(body: object) -> Catalogue | None:
    """Returns a catalogue as a node has sent it. Returns None if it cannot be read, because of the node's version."""
    try:
        return Catalogue.model_validate(body)
    except ValidationError as error:
        log.warning(
            "the catalogue that a node sent cannot be read, so what the node has installed is not checked: %s", error
        )
        return None


def needs_of(spec: JobSpec) -> Iterator[str]:
    """Yields the needs of a spec as texts."""
    for _, group, component in spec.components:
        if group in GROUPS and ":" not in component.use:
            yield f"{group}/{component.use}"
    for text in spec.code.requires if spec.code else ():
        yield f"{PACKAGES}/{text}"
    for _, _, library in libraries_of(spec):
        yield f"{PACKAGES}/{EITHER.join(library.packages)}"
    for name in spec.secrets:
        yield f"{SECRETS}/{name}"
    if any(on_hub(spec.texts)):
        yield f"{HUBS}/{HUB_ON}"


def libraries_of(spec: JobSpec) -> Iterator[tuple[str, str, Library]]:
    """Yields a library for each setting of the spec that needs one, such as a tracker or an optimizer.

    A tuple has the pointer of the setting, a name of the setting for people, and the library.
    """
    if spec.resources.strategy.type == "deepspeed":
        yield "/resources/strategy/type", "deepspeed", DEEPSPEED
    for index, name in enumerate(spec.report_to):
        if name in TRACKERS:
            yield f"/report_to/{index}", name, TRACKERS[name]
    if spec.training.optim in OPTIMS and spec.optimizers is None:
        yield "/training/optim", spec.training.optim, OPTIMS[spec.training.optim]
    if spec.training.use_liger_kernel:
        yield "/training/use_liger_kernel", "Liger's kernels", LIGER
    if spec.model is not None and spec.model.use.startswith("hf/"):
        if spec.model.args.get("peft"):
            yield "/model/args/peft", "an adapter", PEFT
        if spec.model.args.get("quantization"):
            yield "/model/args/quantization", "quantization", BITSANDBYTES


class Installed:
    """The contents of one catalogue. Results are cached, because every pass over the queue needs them."""

    def __init__(self, catalogue: Catalogue | None) -> None:
        """Takes a catalogue, or None if the node's catalogue could not be read."""

        @lru_cache(MOST_KEPT)
        def missing_needs(needs: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(_missing(needs, catalogue)) if catalogue else ()

        self.missing_needs = missing_needs


def _missing(needs: Sequence[str], catalogue: Catalogue) -> Iterator[str]:
    """Yields a text for people about each needed component, package, secret or hub that the catalogue lacks."""
    for need in needs:
        group, _, name = need.partition("/")
        if group == HUBS:
            if catalogue.get(HUBS, name) is None:
                yield name
        elif group in (PACKAGES, SECRETS):
            if not _has(catalogue, group, name):
                yield f"{group.removesuffix('s')} {name.replace(EITHER, ' or ')}"
        elif (member := catalogue.get(group, name)) is None or member.needs:
            # POST may have accepted a wrong name, if no node had announced its components by then.
            how = member.needs if member else did_you_mean(name, catalogue.known(group))
            yield f"{GROUPS[group]} {name}" + (f" ({how})" if how else "")


def _has(catalogue: Catalogue, group: str, name: str) -> bool:
    if group == SECRETS:
        return catalogue.get(SECRETS, name) is not None
    return any(has_package(catalogue, Requirement(text)) for text in name.split(EITHER))


def has_package(catalogue: Catalogue, need: Requirement) -> bool:
    package = catalogue.get(PACKAGES, canonicalize_name(need.name))
    try:
        return package is not None and need.specifier.contains(package.summary, prereleases=True)
    except InvalidVersion:
        return False


# Needs that no node fulfils, at POST ----------------------------------------------------------------------------------


def problems_missing_everywhere(spec: JobSpec, catalogues: Sequence[Catalogue]) -> list[Problem]:
    """Returns problems for packages, libraries and secrets that the spec needs and that no node has.

    All packages must be on one node, and so must all secrets.
    """
    requirements = [_parsed(index, text) for index, text in enumerate(spec.code.requires if spec.code else ())]
    problems = [item for item in requirements if isinstance(item, Problem)]
    packages = ([*_missing_packages(requirements, node), *_missing_libraries(spec, node)] for node in catalogues)
    secrets = (unknown_secrets(spec.secrets, node.known(SECRETS)) for node in catalogues)
    return [*problems, *min(packages, key=len, default=[]), *min(secrets, key=len, default=[])]


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
        detail = "must have only a package's name and versions, because Footplate does not install packages"
        return Problem(where, "not_a_requirement", detail, f'"{requirement.name}{requirement.specifier}"')
    return requirement


def _missing_packages(requirements: Sequence[Requirement | Problem], node: Catalogue) -> Iterator[Problem]:
    for index, need in enumerate(requirements):
        if isinstance(need, Problem) or has_package(node, need):
            continue
        name = canonicalize_name(need.name)
        package = node.get(PACKAGES, name)
        hint = did_you_mean(name, node.known(PACKAGES)) if package is None else None
        detail = f"no node has {need.name}" if package is None else f"no node has {need}: there is {package.summary}"
        how = "install it on the nodes, or put it into the bundle and leave it out here"
        yield Problem(f"/code/requires/{index}", "package_missing", detail, hint or how)


def _missing_libraries(spec: JobSpec, node: Catalogue) -> Iterator[Problem]:
    """Yields a problem for each library that the spec needs and `node` lacks, for example for a tracker."""
    for pointer, subject, library in libraries_of(spec):
        if not any(has_package(node, Requirement(text)) for text in library.packages):
            detail = f"{subject} needs the package {' or '.join(library.packages)}, and no node has it"
            how = f"run `pip install {library.install}` on a node, and restart its worker"
            yield Problem(pointer, "package_missing", detail, how)
