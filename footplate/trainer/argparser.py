"""HfArgumentParser: command lines, dicts, JSON and YAML to dataclasses, by their type hints."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import types
from argparse import SUPPRESS, ArgumentDefaultsHelpFormatter, ArgumentParser, ArgumentTypeError, _ArgumentGroup
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from footplate.contract import arguments as contract_arguments
from footplate.contract.arguments.help_texts import meanings
from footplate.contract.arguments.legacy import LEGACY
from footplate.contract.errors import did_you_mean

_TRUE, _FALSE = ("yes", "true", "t", "y", "1"), ("no", "false", "f", "n", "0")


def string_to_bool(value: bool | str) -> bool:
    if isinstance(value, bool):
        return value
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise ArgumentTypeError(
        f"Truthy value expected: got {value} but expected one of yes/no, true/false, t/f, y/n, 1/0 (case insensitive)."
    )


def HfArg(
    *,
    aliases: str | list[str] | None = None,
    help: str | None = None,
    default: Any = dataclasses.MISSING,
    default_factory: Any = dataclasses.MISSING,
    metadata: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """A dataclass field with further names and a help text on the command line."""
    told = {**(metadata or {})}
    if aliases is not None:
        told["aliases"] = aliases
    if help is not None:
        told["help"] = help
    return dataclasses.field(metadata=told, default=default, default_factory=default_factory, **kwargs)


class HfArgumentParser(ArgumentParser):
    """An ArgumentParser that is filled by dataclasses: one option per field, by its hint, default and help."""

    def __init__(self, dataclass_types: Any = None, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", ArgumentDefaultsHelpFormatter)
        super().__init__(**kwargs)
        given = [] if dataclass_types is None else dataclass_types
        single = dataclasses.is_dataclass(given) or not isinstance(given, Iterable)
        self.dataclass_types: list[Any] = [given] if single else list(given)
        for kind in self.dataclass_types:
            self._add_dataclass_arguments(kind)

    def _add_dataclass_arguments(self, kind: Any) -> None:
        name = getattr(kind, "_argument_group_name", None)
        group = self.add_argument_group(name) if name else self
        try:
            hints = get_type_hints(kind)
        except NameError as error:
            raise RuntimeError(
                f"Type resolution failed for {kind}. Try declaring the class in global scope or removing line of "
                "`from __future__ import annotations` which opts in Postponed Evaluation of Annotations (PEP 563)"
            ) from error
        for field in dataclasses.fields(kind):
            if field.init:
                _add_option(group, field, hints[field.name], _help(kind, field))
        for older in _further_names(kind):
            _add_further_option(group, older)

    def parse_args_into_dataclasses(
        self,
        args: list[str] | None = None,
        return_remaining_strings: bool = False,
        look_for_args_file: bool = True,
        args_filename: str | None = None,
        args_file_flag: str | None = None,
    ) -> tuple[Any, ...]:
        """An object of each dataclass, then a namespace of what else was added; last, if asked for, what is left over.

        A file of arguments beside the script (`.args`), or named, comes first: the command line wins.
        """
        files: list[Path] = []
        if args_filename:
            files.append(Path(args_filename))
        elif look_for_args_file and sys.argv:
            files.append(Path(sys.argv[0]).with_suffix(".args"))
        if args_file_flag:
            named, args = _files_named_by(args_file_flag, args)
            files += named
        from_files = [word for file in files if file.exists() for word in file.read_text().split()]
        namespace, left = self.parse_known_args(from_files + (sys.argv[1:] if args is None else list(args)))
        made = [_made_of(kind, namespace) for kind in self.dataclass_types]
        further = [namespace] if vars(namespace) else []
        if return_remaining_strings:
            return (*made, *further, left)
        if left:
            raise ValueError(
                f"Some specified arguments are not used by the HfArgumentParser: {left}{self._nearest(left)}"
            )
        return (*made, *further)

    def _nearest(self, left: Iterable[str]) -> str:
        first = next((word for word in left if word.startswith("--")), "")
        hint = did_you_mean(first.split("=")[0], self._option_string_actions) if first else None
        return f" ({hint})" if hint else ""

    def parse_dict(self, args: Mapping[str, Any], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        left, made = set(args), []
        for kind in self.dataclass_types:
            taken = {name: args[name] for name in (*_fields(kind), *_further_names(kind)) if name in args}
            left -= set(taken)
            made.append(kind(**taken))
        if left and not allow_extra_keys:
            known = [name for kind in self.dataclass_types for name in _fields(kind)]
            hint = did_you_mean(min(left), known)
            near = f" ({hint})" if hint else ""
            raise ValueError(f"Some keys are not used by the HfArgumentParser: {sorted(left)}{near}")
        return tuple(made)

    def parse_json_file(self, json_file: Any, allow_extra_keys: bool = False) -> tuple[Any, ...]:
        return self.parse_dict(json.loads(Path(json_file).read_text(encoding="utf-8")), allow_extra_keys)

    def parse_yaml_file(self, yaml_file: Any, allow_extra_keys: bool = False) -> tuple[Any, ...]:
        from importlib import import_module

        yaml = import_module("yaml")
        return self.parse_dict(yaml.safe_load(Path(yaml_file).read_text(encoding="utf-8")), allow_extra_keys)


def _files_named_by(flag: str, args: list[str] | None) -> tuple[list[Path], list[str]]:
    finder = ArgumentParser(add_help=False)
    finder.add_argument(flag, type=Path, action="append", dest="files")
    found, rest = finder.parse_known_args(args)
    return found.files or [], rest


def _made_of(kind: Any, namespace: Any) -> Any:
    """Defaults are left to the class, so that an older name does not meet a new one that nobody wrote."""
    values = vars(namespace)
    taken = {name: values.pop(name) for name in (*_fields(kind), *_further_names(kind)) if name in values}
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in taken.items() if not _is_same(value, defaults.get(name, _NONE))})


_NONE = object()


def _is_same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)


def _fields(kind: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if field.init]


def _further_names(kind: Any) -> list[str]:
    """What is no field and yet understood: older names, which the class maps or declines with a word of its own."""
    if not issubclass(kind, contract_arguments.TrainingArguments):
        return []
    return [name for name in (*LEGACY, *contract_arguments.NOT_YET) if name not in _fields(kind)]


def _add_further_option(group: ArgumentParser | _ArgumentGroup, name: str) -> None:
    """Not shown, and without a default: who does not write it says nothing."""
    options: dict[str, Any] = {"dest": name, "nargs": "?", "const": True, "type": _loose, "default": SUPPRESS}
    group.add_argument(f"--{name}", f"--{name.replace('_', '-')}", **options, help=SUPPRESS)


def _loose(text: str) -> Any:
    """A number, a truth or JSON where it looks like one; text otherwise."""
    low = text.lower()
    if low in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[low]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _help(kind: Any, field: Any) -> str | None:
    """As the field's metadata has it, or what stands under the field in its source."""
    said = field.metadata.get("help") or meanings(kind).get(field.name)
    # argparse reads % as a place to fill.
    return " ".join(said.split()).replace("%", "%%") if said else said


def _add_option(group: ArgumentParser | _ArgumentGroup, field: Any, hint: Any, told: str | None) -> None:
    names = [f"--{field.name}", *([f"--{field.name.replace('_', '-')}"] if "_" in field.name else [])]
    aliases = field.metadata.get("aliases", [])
    names += [aliases] if isinstance(aliases, str) else list(aliases)
    further = {key: value for key, value in field.metadata.items() if key not in ("aliases", "help")}
    options: dict[str, Any] = {**further, **_reading(hint), "dest": field.name, "help": told}
    default = field.default if field.default is not dataclasses.MISSING else None
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    if _is_flag(hint, field):
        default = False if field.default is dataclasses.MISSING else field.default
        options |= {"nargs": "?", "const": True}
    elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        options["required"] = True
    group.add_argument(*names, **options, default=default)
    if field.default is True and _is_flag(hint, field):
        # After the field's own, which has the same destination and sets its default.
        no = [f"--no_{field.name}", f"--no-{field.name.replace('_', '-')}"]
        group.add_argument(*no, action="store_false", dest=field.name, default=True, help=told)


def _is_flag(hint: Any, field: Any) -> bool:
    """`--flag` alone means True. Of one that may be None too, only where it has a default that says yes or no."""
    members = _members(hint)
    return members == [bool] and (type(None) not in _all(hint) or isinstance(field.default, bool))


def _reading(hint: Any) -> dict[str, Any]:
    """How argparse reads a value of this hint: its type, its choices, whether it may be several words."""
    members = _members(hint)
    lists = [each for each in members if get_origin(each) in (list, tuple) or each in (list, tuple)]
    if lists and len(members) == 1:
        inside = get_args(lists[0])
        return {"nargs": "+", "type": _reader([inside[0] if inside else str])}
    if len(members) == 1 and (choices := _choices(members[0])) is not None:
        return {"type": _choice(choices), "choices": choices}
    return {"type": _reader([each for each in members if each not in lists])}


def _all(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _members(hint: Any) -> list[Any]:
    """The kinds that a value may be of, without None."""
    return [each for each in _all(hint) if each is not type(None)]


def _choices(kind: Any) -> list[Any] | None:
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [each.value for each in kind] if isinstance(kind, type) and issubclass(kind, Enum) else None


def _choice(choices: list[Any]) -> Callable[[str], Any]:
    by_text = {str(each): each for each in choices}
    return lambda text: by_text.get(text, text)


def _reader(kinds: list[Any]) -> Callable[[str], Any]:
    """Tries the kinds in turn, the pickier ones first; text takes anything."""
    return functools.partial(_read, sorted(kinds, key=lambda kind: _PICKY.get(_plain(kind), 5)))


_PICKY = {bool: 0, int: 1, float: 2, dict: 3, str: 8, Path: 9}


def _plain(kind: Any) -> Any:
    return get_origin(kind) or kind


def _read(kinds: list[Any], text: str) -> Any:
    problem: Exception | None = None
    for kind in kinds:
        try:
            return _as(_plain(kind), kind, text)
        except (ValueError, TypeError, ArgumentTypeError) as error:
            problem = error
    raise ArgumentTypeError(str(problem))


def _as(plain: Any, kind: Any, text: str) -> Any:
    if plain is bool:
        return string_to_bool(text)
    if plain is dict:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError(f"{text} is JSON, and no object")
        return found
    choices = _choices(kind)
    if choices is not None:
        if text not in map(str, choices):
            raise ValueError(f"{text!r} is none of {', '.join(map(str, choices))}")
        return _choice(choices)(text)
    return plain(text) if callable(plain) and plain is not Any else text
