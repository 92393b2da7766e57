"""Makes components from classes and functions, and finds the optional libraries that components need."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def component(
    target: Callable[..., Any], summary: str, /, *, defaults: Mapping[str, Any] | None = None, **arguments: Any
) -> Callable[..., Any]:
    """Returns a component that calls `target` with the arguments that a spec may set.

    `arguments` has each argument's type and meaning as `Annotated`. `defaults` replaces the target's own defaults.
    Parameters of the target that have no default and are not among `arguments` are not set by a spec. They receive
    objects of the job, such as the parameters for an optimizer.
    """
    parameters = inspect.signature(target).parameters
    defaults = {name: parameters[name].default for name in arguments} | dict(defaults or {})
    objects = [
        parameter.replace(kind=parameter.POSITIONAL_ONLY, annotation=Any)
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and name not in arguments
    ]
    keywords = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=annotation)
        for name, annotation in arguments.items()
    ]
    signature = inspect.Signature([*objects, *keywords])

    def build(*objects: Any, **args: Any) -> Any:
        bound = signature.bind(*objects, **args)
        bound.apply_defaults()
        return target(*bound.args, **bound.kwargs)

    vars(build)["__signature__"] = signature
    build.__doc__ = summary
    return build


def needs(library: str, *, extra: str) -> Callable[[F], F]:
    """Marks a component that needs an optional library, and the extra of footplate that installs the library."""

    def mark(component: F) -> F:
        vars(component)["needs"] = (library, extra)
        return component

    return mark


def missing(component: Any) -> str:
    """Returns the library that a component lacks, such as `transformers (pip install 'footplate[hf]')`, or ""."""
    library, extra = getattr(component, "needs", ("", ""))
    if not library or find_spec(library) is not None:
        return ""
    return f"{library} (pip install 'footplate[{extra}]')"


def imported(library: str) -> Any:
    """Imports a library such as TRL after `footplate.install()`, so that its trainers derive from our Trainer."""
    import footplate

    footplate.install()
    return import_module(library)


def source_of(library: str, *path: str) -> list[ast.stmt]:
    """Returns the statements of a library's module. The list is empty if the library is not installed."""
    package = find_spec(library)
    if package is None or not package.submodule_search_locations:
        return []
    return ast.parse(Path(package.submodule_search_locations[0], *path).read_text(encoding="utf-8")).body


def public_names(library: str, *path: str) -> list[str]:
    """Returns `__all__` of a library's module. The list is empty if the library is not installed."""
    for line in source_of(library, *path):
        if isinstance(line, ast.Assign) and getattr(line.targets[0], "id", "") == "__all__":
            return [str(name) for name in ast.literal_eval(line.value)]
    return []
