"""The user's own code on a node: checked, unpacked where nobody writes, and imported by one training process alone.

    opened(sha256, artifacts, scratch)   once per training process: from here on `module:Attr` is found in its bundle
    own(group, name).load()              what makes the part, like an entry point's

What is wrong with the code is said as an OwnCodeError, with the lines of the user's own files and none of ours.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from packaging.requirements import Requirement

import footplate
from footplate.contract import layout
from footplate.contract.errors import FootplateError, OwnCodeError, did_you_mean
from footplate.contract.host.bundle_files import FOLDER, Bundle, unpack

TAKEN_AS_THEY_ARE = frozenset({"collators", "losses", "compute_metrics"})
"""Of these groups a function is the part itself; of others it makes the part."""
MADE_BY_THE_TRAINER = frozenset({"optimizers", "schedules"})
"""Of these it is the class that counts: it is made once there are parameters."""
TRACE_CHARS = 6000
OUR_PROGRAMS = frozenset({"service", "worker", "migrations"})
OUR_FOLDER = Path(footplate.__file__).resolve().parents[1]


_opened: Bundle | None = None


def opened(
    sha256: str, artifacts: Path, scratch: Path, place: Callable[[Bundle], Bundle] = lambda unpacked: unpacked
) -> Bundle:
    """Unpacks this process's bundle, puts it in its place, and lets Python find it."""
    return use(place(unpack(sha256, artifacts / layout.bundle_file(sha256), scratch / FOLDER)))


def use(bundle: Bundle) -> Bundle:
    """From here on Python finds it."""
    global _opened
    _opened = bundle
    # The folder is read-only, and what Python would write there is of no use to anybody.
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(bundle.folder))
    sys.meta_path.insert(0, _users_packages)
    importlib.invalidate_caches()
    return bundle


class _UsersPackages(MetaPathFinder):
    """Finds a user's folder `worker/` or `service/` that has no `__init__.py`, although ours of that name has one.

    Python prefers a package with `__init__.py` anywhere on the path to a folder without one.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in OUR_PROGRAMS:
            return None
        folders = [entry for entry in sys.path if Path(entry or ".").resolve() != OUR_FOLDER]
        return PathFinder.find_spec(fullname, folders)


_users_packages = _UsersPackages()


def require(requirements: Iterable[str]) -> None:
    """The packages that it said it needs, as they are on this node."""
    for text in requirements:
        need = Requirement(text)
        try:
            version = metadata.version(need.name)
        except metadata.PackageNotFoundError as error:
            raise OwnCodeError(f"code.requires names {text}, and this node has no {need.name}") from error
        if not need.specifier.contains(version, prereleases=True):
            raise OwnCodeError(f"code.requires names {text}, and this node has {version}")


def close() -> None:
    """For tests: this process has no bundle any more."""
    global _opened
    if _opened is not None:
        with suppress(ValueError):
            sys.path.remove(str(_opened.folder))
            sys.meta_path.remove(_users_packages)
        for name, module in list(sys.modules.items()):
            if _is_below(getattr(module, "__file__", None), _opened.folder):
                del sys.modules[name]
    _opened = None


@dataclass(frozen=True, slots=True)
class Own:
    """`module:Attr` of this process's bundle, not yet imported. It loads as an entry point does."""

    group: str
    name: str

    def load(self) -> Callable[..., Any]:
        """What makes the part of its arguments."""
        target = attribute(self.name)
        if not callable(target):
            raise OwnCodeError(f"{self.name} is {_kind(target)}, and a class or a function is needed")
        if self.group in MADE_BY_THE_TRAINER:
            return cast(Callable[..., Any], target)
        takes_arguments = inspect.isclass(target) or self.group not in TAKEN_AS_THEY_ARE
        return _checked(self.name, target) if takes_arguments else _as_it_is(self.name, target)


def own(group: str, name: str) -> Own:
    return Own(group, name)


def attribute(name: str) -> Any:
    """The thing itself, imported."""
    module_name, _, wanted = name.partition(":")
    module = _imported(module_name, name)
    if not hasattr(module, wanted):
        public = [one for one in vars(module) if not one.startswith("_")]
        defined = [one for one in public if getattr(vars(module)[one], "__module__", module_name) == module_name]
        raise OwnCodeError(
            f"{module_name} has no {wanted!r}; it defines: {', '.join(defined[:20]) or 'nothing'}",
            hint=did_you_mean(wanted, public),
        )
    return getattr(module, wanted)


def _imported(module: str, name: str) -> Any:
    bundle = the_bundle(name)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(error.name + ".")):
            known = bundle.modules
            text = f"the bundle has no module {module!r}; there is: {', '.join(known[:20]) or 'none'}"
            raise OwnCodeError(text, hint=did_you_mean(module, known)) from error
        hint = f"name it in code.requires, and take a node that has {error.name!r}, or put it into the bundle"
        raise OwnCodeError(f"importing {module} failed: {error}", hint=hint, trace=trace_of(error)) from error
    except FootplateError:
        raise
    except (Exception, SystemExit) as error:
        raise OwnCodeError(f"importing {module} failed: {where(error)}", trace=trace_of(error)) from error
    if not _is_ours(found, bundle):
        hint = f"call it otherwise, for example my_{module}"
        raise OwnCodeError(f"{module!r} is also the name of a module that is installed on this node", hint=hint)
    return found


def the_bundle(name: str) -> Bundle:
    if _opened is None:
        raise OwnCodeError(f"{name} is code of your own, and the job has no bundle", hint="add code.bundle")
    return _opened


def _is_ours(module: Any, bundle: Bundle) -> bool:
    file = getattr(module, "__file__", None)
    places = [file] if file else list(getattr(module, "__path__", []))
    return any(_is_below(place, bundle.folder) for place in places)


def _is_below(place: str | None, folder: Path) -> bool:
    return place is not None and Path(place).is_relative_to(folder)


def _checked(name: str, target: Callable[..., Any]) -> Callable[..., Any]:
    """The same, but arguments that do not fit are told by its own signature."""

    @functools.wraps(target, updated=())
    def called(*handed: Any, **args: Any) -> Any:
        _fits(name, target, handed, args)
        return target(*handed, **args)

    return called


def _as_it_is(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The part is the function, with these of its arguments fixed."""

    def fixed(**args: Any) -> Any:
        return functools.partial(function, **_known(name, function, args)) if args else function

    return fixed


def _fits(name: str, target: Callable[..., Any], handed: tuple[Any, ...], args: dict[str, Any]) -> None:
    signature = _signature(target)
    if signature is None:
        return
    _known(name, target, args)
    try:
        signature.bind(*handed, **args)
    except TypeError as error:
        raise OwnCodeError(f"{name}{signature} cannot be called with {_some(args)}: {error}") from None


def _known(name: str, target: Callable[..., Any], args: dict[str, Any]) -> dict[str, Any]:
    signature = _signature(target)
    if signature is None or any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values()):
        return args
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    takes = [one.name for one in signature.parameters.values() if one.kind in by_name]
    for wrong in args.keys() - set(takes):
        raise OwnCodeError(
            f"{name} takes no argument {wrong!r}; it takes: {', '.join(takes) or 'none'}",
            hint=did_you_mean(wrong, takes),
        )
    return args


def _signature(target: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(target)
    except (TypeError, ValueError):
        return None


def _some(args: dict[str, Any]) -> str:
    return ", ".join(args) or "no arguments"


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


# What went wrong in the user's own files.


def where(error: BaseException) -> str:
    """`net.py, line 3: SyntaxError: …`: the deepest place in the bundle."""
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, SyntaxError):
        return f"{_short(error.filename or '?')}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    mine = [one for one in traceback.extract_tb(error.__traceback__) if _in_bundle(one.filename)]
    return f"{_short(mine[-1].filename)}, line {mine[-1].lineno}: {said}" if mine else said


def trace_of(error: BaseException) -> str:
    """As Python would have printed it, from the first line of the user's own on."""
    frames = traceback.extract_tb(error.__traceback__)
    first = next((index for index, one in enumerate(frames) if _in_bundle(one.filename)), len(frames))
    lines = traceback.format_list(frames[first:]) if first < len(frames) else []
    head = ["Traceback (most recent call last):\n"] if lines else []
    text = "".join([*head, *lines, *traceback.format_exception_only(error)])
    return text.replace(f"{_opened.folder}/" if _opened else "\0", "")[-TRACE_CHARS:]


def _in_bundle(filename: str) -> bool:
    return _opened is not None and _is_below(filename, _opened.folder)


def _short(filename: str) -> str:
    return str(Path(filename).relative_to(_opened.folder)) if _opened and _in_bundle(filename) else filename
