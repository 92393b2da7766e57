"""Makes components of classes and functions, such as a library's, with the arguments that a spec may set."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def component(
    target: Callable[..., Any], summary: str, /, *, defaults: Mapping[str, Any] | None = None, **arguments: Any
) -> Callable[..., Any]:
    """Returns a component that calls `target` with these arguments. Each has its type and meaning as `Annotated`.

    An argument has the target's own default, unless `defaults` has another one. Parameters of the target that have no
    default and are not among `arguments` get parts of the job, such as the parameters for an optimizer.
    """
    own = inspect.signature(target).parameters
    defaults = {name: own[name].default for name in arguments} | dict(defaults or {})
    parts = [
        parameter.replace(kind=parameter.POSITIONAL_ONLY, annotation=Any)
        for name, parameter in own.items()
        if parameter.default is parameter.empty and name not in arguments
    ]
    named = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=annotation)
        for name, annotation in arguments.items()
    ]
    signature = inspect.Signature([*parts, *named])

    def made(*parts: Any, **args: Any) -> Any:
        bound = signature.bind(*parts, **args)
        bound.apply_defaults()
        return target(*bound.args, **bound.kwargs)

    vars(made)["__signature__"] = signature
    made.__doc__ = summary
    return made
