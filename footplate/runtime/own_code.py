"""Runs the user's own code, which only training processes import, from the files of the job's bundle.

    use(bundle)                        once per training process, after which `module:Attr` is found in its bundle
    OwnComponent(group, name).load()   returns the function that makes the part, as an entry point does

A fault of the code is an OwnCodeError, with the lines of the user's own files and none of ours. `described` adds such
lines to any other error that the code led to, and a hint.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from itertools import islice
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, cast

from packaging.requirements import Requirement
from torch import Tensor, nn

import footplate
from footplate.contract.errors import FootplateError, OwnCodeError, did_you_mean
from footplate.contract.events import Failure
from footplate.contract.host.bundle_files import Bundle
from footplate.trainer.batch_errors import is_misfit, shapes_of

TAKEN_AS_THEY_ARE = frozenset({"collators", "losses", "compute_metrics", "rewards"})
"""The groups of components in which a function is used itself. In other groups, the function's result is used."""
MADE_BY_THE_TRAINER = frozenset({"optimizers", "schedules"})
"""The groups whose classes the Trainer calls itself, because the objects need the model's parameters."""
TRACE_CHARS = 6000
MESSAGE_CHARS = 2000
MOST_TENSORS = 8
OUR_PROGRAMS = frozenset({"service", "worker", "migrations", "tests", "bench"})
"""The packages beside `footplate`. Only a checkout has `tests` and `bench`, and an installed wheel has not."""
OUR_FOLDER = Path(footplate.__file__).resolve().parents[1]


_opened: Bundle | None = None


def use(bundle: Bundle) -> Bundle:
    """Makes the modules of a bundle importable in this process, until the process ends."""
    global _opened
    _opened = bundle
    # The folder is read-only, so Python could not write its caches there.
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(bundle.folder))
    sys.meta_path.insert(0, _UsersPackages())
    importlib.invalidate_caches()
    return bundle


def folder() -> Path | None:
    """Returns the folder of this process's bundle, or None if the job has no bundle."""
    return None if _opened is None else _opened.folder


class _UsersPackages(MetaPathFinder):
    """Finds a user's folder `worker/` or `tests/` without an `__init__.py` before Footplate's package of that name.

    Python would prefer Footplate's package, because that has an `__init__.py`.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in OUR_PROGRAMS:
            return None
        folders = [entry for entry in sys.path if Path(entry or ".").resolve() != OUR_FOLDER]
        return PathFinder.find_spec(fullname, folders)


def require(requirements: Iterable[str]) -> None:
    """Raises OwnCodeError if this node lacks a package that the job's code requires."""
    for text in requirements:
        need = Requirement(text)
        try:
            version = metadata.version(need.name)
        except metadata.PackageNotFoundError as error:
            raise OwnCodeError(f"code.requires names {text}, and this node has no {need.name}") from error
        if not need.specifier.contains(version, prereleases=True):
            raise OwnCodeError(f"code.requires names {text}, and this node has {version}")


@dataclass(frozen=True, slots=True)
class OwnComponent:
    """A component `module:Attr` of the job's bundle, imported by `load()`, as an entry point of a plugin is."""

    group: str
    name: str

    def load(self) -> Callable[..., Any]:
        """Imports the name, and returns the function that builds the component from its arguments."""
        target = attribute(self.name)
        if not callable(target):
            raise OwnCodeError(f"{self.name} is a {type(target).__name__}, and a class or a function is needed")
        if self.group in MADE_BY_THE_TRAINER:
            return cast(Callable[..., Any], target)
        takes_arguments = inspect.isclass(target) or self.group not in TAKEN_AS_THEY_ARE
        return _checked(self.name, target) if takes_arguments else _with_arguments_bound(self.name, target)


def attribute(name: str) -> Any:
    """Imports a module of the bundle and returns its attribute. Raises OwnCodeError."""
    module_name, _, attribute_name = name.partition(":")
    module = _imported(module_name, name)
    if not hasattr(module, attribute_name):
        public = [key for key in vars(module) if not key.startswith("_")]
        defined = [key for key in public if getattr(vars(module)[key], "__module__", module_name) == module_name]
        raise OwnCodeError(
            f"{module_name} has no {attribute_name!r}; it defines: {', '.join(defined[:20]) or 'nothing'}",
            hint=did_you_mean(attribute_name, public),
        )
    return getattr(module, attribute_name)


def _imported(module: str, name: str) -> Any:
    if (bundle := _opened) is None:
        raise OwnCodeError(f"{name} is in your own code, and the job has no bundle", hint="add code.bundle")
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(error.name + ".")):
            modules = bundle.modules
            text = f"the bundle has no module {module!r}; there is: {', '.join(modules[:20]) or 'none'}"
            raise OwnCodeError(text, hint=did_you_mean(module, modules)) from error
        text = f"importing {module} failed: {error}"
        raise OwnCodeError(text, hint=missing_module(error), trace=trace_of(error)) from error
    except FootplateError:
        raise
    except (Exception, SystemExit) as error:
        raise OwnCodeError(f"importing {module} failed: {where(error)}", trace=trace_of(error)) from error
    file = getattr(imported, "__file__", None)
    if not any(map(is_own, [file] if file else getattr(imported, "__path__", ()))):
        hint = f"rename your module, for example to my_{module}"
        raise OwnCodeError(f"{module!r} is also the name of a module that is installed on this node", hint=hint)
    return imported


def _checked(name: str, target: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a class or function. Arguments that do not fit its signature raise an OwnCodeError with the signature."""

    @functools.wraps(target, updated=())
    def called(*parts: Any, **args: Any) -> Any:
        if (signature := _signature(target)) is not None:
            _require_parameters(name, target, args)
            try:
                signature.bind(*parts, **args)
            except TypeError as error:
                names = ", ".join(args) or "no arguments"
                raise OwnCodeError(f"{name}{signature} cannot be called with {names}: {error}") from None
        return target(*parts, **args)

    return called


def _with_arguments_bound(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that takes a spec's arguments, and returns the user's function with these arguments bound."""

    def fixed(**args: Any) -> Any:
        _require_parameters(name, function, args)
        return functools.partial(function, **args) if args else function

    return fixed


def _require_parameters(name: str, target: Callable[..., Any], args: dict[str, Any]) -> None:
    """Raises OwnCodeError for an argument that the user's class or function does not have."""
    signature = _signature(target)
    parameters = list(signature.parameters.values()) if signature else []
    if signature is None or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in by_name]
    for wrong in args.keys() - set(names):
        raise OwnCodeError(
            f"{name} takes no argument {wrong!r}; it takes: {', '.join(names) or 'none'}",
            hint=did_you_mean(wrong, names),
        )


def _signature(target: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(target)
    except (TypeError, ValueError):
        return None


# Errors in the user's own files.


def where(error: BaseException) -> str:
    """Returns an error's text with the deepest line in the bundle, as `net.py, line 3: SyntaxError: …`."""
    if isinstance(error, SyntaxError):
        return f"{_short(error.filename or '?')}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    return placed(error, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def placed(error: BaseException, text: str) -> str:
    """Returns the text, with the file and line of the bundle that raised the error in front of it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own(frame.filename)]
    return f"{_short(frames[-1].filename)}, line {frames[-1].lineno}: {text}" if frames else text


def trace_of(error: BaseException) -> str:
    """Returns Python's traceback of an error and of its causes, each from the first line in the user's own files on."""
    described = traceback.TracebackException.from_exception(error)
    cause: traceback.TracebackException | None = described
    while cause is not None:
        frames = cause.stack
        del frames[: next((index for index, frame in enumerate(frames) if is_own(frame.filename)), len(frames))]
        cause = cause.__cause__ or cause.__context__
    text = "".join(described.format())
    return text.replace(f"{_opened.folder}/" if _opened else "\0", "")[-TRACE_CHARS:]


def missing_module(error: ModuleNotFoundError) -> str:
    """Returns the hint for a module that neither the bundle nor the node has."""
    return f"name the package of {error.name!r} in code.requires, install it on a node, or put it into the bundle"


def is_own(filename: str) -> bool:
    """Returns True for a file of the bundle."""
    return _opened is not None and Path(filename).is_relative_to(_opened.folder)


def _short(filename: str) -> str:
    return str(Path(filename).relative_to(_opened.folder)) if _opened and is_own(filename) else filename


def described(error: BaseException, failure: Failure) -> Failure:
    """Adds the place in the bundle, a hint and a traceback to the failure, if code of the bundle led to the error."""
    if isinstance(error, FootplateError) or not list(_users_frames(error)):
        return failure
    hint = failure.hint or _hint(error)
    return failure.model_copy(
        update={
            "message": placed(error, failure.message)[:MESSAGE_CHARS],
            "hint": hint,
            # The hint is often also the last note of the exception. It is removed, because the failure has it already.
            "traceback": trace_of(error).removesuffix(f"{hint}\n"),
        }
    )


def _users_frames(error: BaseException) -> Iterator[FrameType]:
    return (frame for frame, _ in traceback.walk_tb(error.__traceback__) if is_own(frame.f_code.co_filename))


def _hint(error: BaseException) -> str | None:
    if isinstance(error, ModuleNotFoundError):
        return missing_module(error)
    if not is_misfit(error) or "state_dict" in str(error):
        return None
    facts = list(_shapes(error))
    return "; ".join(facts) + ". Change the size of the layer, or the shape of what it gets" if facts else None


def _shapes(error: BaseException) -> Iterator[str]:
    """Yields the shapes of the tensors in the user's deepest function, and the innermost layer with its input."""
    *_, users = _users_frames(error)
    if tensors := dict(islice(_tensors(users.f_locals), MOST_TENSORS)):
        name = users.f_code.co_name
        yield f"{'the script' if name == '<module>' else name} has {shapes_of(tensors)}"
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        layer, layer_input = frame.f_locals.get("self"), frame.f_locals.get("input")
        if isinstance(layer, nn.Module) and isinstance(layer_input, Tensor):
            yield f"{type(layer).__name__}({layer.extra_repr()}) got {tuple(layer_input.shape)} {layer_input.dtype}"
            return


def _tensors(variables: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors among a function's variables, and those of its dicts, such as a batch."""
    for name, value in list(variables.items()):
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, dict) and not name.startswith("__"):
            yield from ((f"{name}[{key!r}]", entry) for key, entry in value.items() if isinstance(entry, Tensor))
