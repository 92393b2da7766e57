"""Makes components from classes and functions, such as a library's, with the arguments that a spec may set."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any


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
    named = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=annotation)
        for name, annotation in arguments.items()
    ]
    signature = inspect.Signature([*objects, *named])

    def build(*objects: Any, **args: Any) -> Any:
        bound = signature.bind(*objects, **args)
        bound.apply_defaults()
        return target(*bound.args, **bound.kwargs)

    vars(build)["__signature__"] = signature
    build.__doc__ = summary
    return build
