"""HfArgumentParser makes dataclasses from command lines, dicts, JSON and YAML, by their type hints."""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from argparse import SUPPRESS, ArgumentDefaultsHelpFormatter, ArgumentParser, ArgumentTypeError, _ArgumentGroup
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from footplate.contract import arguments as contract_arguments
from footplate.contract.arguments.legacy import LEGACY
from footplate.contract.errors import did_you_mean
from footplate.contract.help_texts import meanings

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
    """Returns a dataclass field with further names and a help text on the command line."""
    details = {**(metadata or {})}
    if aliases is not None:
        details["aliases"] = aliases
    if help is not None:
        details["help"] = help
    return dataclasses.field(metadata=details, default=default, default_factory=default_factory, **kwargs)


class HfArgumentParser(ArgumentParser):
    """An ArgumentParser with one option per field of the dataclasses, from its type hint, default and help text."""

    def __init__(self, dataclass_types: Any = None, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", ArgumentDefaultsHelpFormatter)
        super().__init__(**kwargs)
        types = [] if dataclass_types is None else dataclass_types
        single = dataclasses.is_dataclass(types) or not isinstance(types, Iterable)
        self.dataclass_types: list[Any] = [types] if single else list(types)
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
                # The help text in the field's metadata, or the docstring below the field in its source.
                text = field.metadata.get("help") or meanings(kind).get(field.name)
                # argparse formats help texts with %.
                _add_option(
                    group, field, hints[field.name], " ".join(text.split()).replace("%", "%%") if text else text
                )
        # Hidden options without a default, so that an option that is not given has no effect.
        hidden: dict[str, Any] = {"nargs": "?", "const": True, "type": _guessed, "default": SUPPRESS, "help": SUPPRESS}
        for name in _further_names(kind):
            group.add_argument(f"--{name}", f"--{name.replace('_', '-')}", dest=name, **hidden)

    def parse_args_into_dataclasses(
        self,
        args: list[str] | None = None,
        return_remaining_strings: bool = False,
        look_for_args_file: bool = True,
        args_filename: str | None = None,
        args_file_flag: str | None = None,
    ) -> tuple[Any, ...]:
        """Returns an object of each dataclass, then a namespace of other options, then unused words if requested.

        Arguments in a file have less priority than the command line. The file is `args_filename`, the one that the
        option `args_file_flag` names, or the script's path with the suffix `.args`.
        """
        files: list[Path] = []
        if args_filename:
            files.append(Path(args_filename))
        elif look_for_args_file and sys.argv:
            files.append(Path(sys.argv[0]).with_suffix(".args"))
        if args_file_flag:
            finder = ArgumentParser(add_help=False)
            finder.add_argument(args_file_flag, type=Path, action="append", dest="files", default=files)
            parsed, args = finder.parse_known_args(args)
            files = parsed.files
        from_files = [word for file in files if file.exists() for word in file.read_text().split()]
        namespace, unused = self.parse_known_args(from_files + (sys.argv[1:] if args is None else list(args)))
        objects = [_made_of(kind, namespace) for kind in self.dataclass_types]
        further_objects = [namespace] if vars(namespace) else []
        if return_remaining_strings:
            return (*objects, *further_objects, unused)
        if unused:
            raise ValueError(
                f"Some specified arguments are not used by the HfArgumentParser: {unused}{self._nearest(unused)}"
            )
        return (*objects, *further_objects)

    def _nearest(self, unused_words: Iterable[str]) -> str:
        first_option = next((word for word in unused_words if word.startswith("--")), "")
        hint = did_you_mean(first_option.split("=")[0], self._option_string_actions) if first_option else None
        return f" ({hint})" if hint else ""

    def parse_dict(self, args: Mapping[str, Any], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        unused, objects = set(args), []
        for kind in self.dataclass_types:
            values = {name: args[name] for name in (*_fields(kind), *_further_names(kind)) if name in args}
            unused -= set(values)
            objects.append(kind(**values))
        if unused and not allow_extra_keys:
            names = [name for kind in self.dataclass_types for name in _fields(kind)]
            hint = did_you_mean(min(unused), names)
            near = f" ({hint})" if hint else ""
            raise ValueError(f"Some keys are not used by the HfArgumentParser: {sorted(unused)}{near}")
        return tuple(objects)

    def parse_json_file(self, json_file: Any, allow_extra_keys: bool = False) -> tuple[Any, ...]:
        return self.parse_dict(json.loads(Path(json_file).read_text(encoding="utf-8")), allow_extra_keys)

    def parse_yaml_file(self, yaml_file: Any, allow_extra_keys: bool = False) -> tuple[Any, ...]:
        from importlib import import_module

        yaml = import_module("yaml")
        return self.parse_dict(yaml.safe_load(Path(yaml_file).read_text(encoding="utf-8")), allow_extra_keys)


def _made_of(kind: Any, namespace: Any) -> Any:
    """Makes the dataclass from the parsed options. Values equal to their default are left out.

    An older name of an argument would otherwise clash with the default under the present name.
    """
    values = vars(namespace)
    options = {name: values.pop(name) for name in (*_fields(kind), *_further_names(kind)) if name in values}
    for field in dataclasses.fields(kind):
        value = options.get(field.name)
        if type(value) is type(field.default) and value == field.default:
            options.pop(field.name, None)
    return kind(**options)


def _fields(kind: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if field.init]


def _further_names(kind: Any) -> list[str]:
    """Returns older names of TrainingArguments that are not fields. The class maps or refuses them."""
    if not issubclass(kind, contract_arguments.TrainingArguments):
        return []
    return [name for name in (*LEGACY, *contract_arguments.NOT_YET) if name not in _fields(kind)]


def _guessed(text: str) -> Any:
    """Parses a number, a boolean or JSON if the text looks like one, else returns the text."""
    low = text.lower()
    if low in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[low]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _add_option(group: ArgumentParser | _ArgumentGroup, field: Any, hint: Any, help_text: str | None) -> None:
    names = [f"--{field.name}", *([f"--{field.name.replace('_', '-')}"] if "_" in field.name else [])]
    aliases = field.metadata.get("aliases", [])
    names += [aliases] if isinstance(aliases, str) else list(aliases)
    metadata = {key: value for key, value in field.metadata.items() if key not in ("aliases", "help")}
    options: dict[str, Any] = {**metadata, **_reading(hint), "dest": field.name, "help": help_text}
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
        # `--no_flag` comes after `--flag`: both set the same value, and argparse takes the default of the first option.
        no = [f"--no_{field.name}", f"--no-{field.name.replace('_', '-')}"]
        group.add_argument(*no, action="store_false", dest=field.name, default=True, help=help_text)


def _is_flag(hint: Any, field: Any) -> bool:
    """Returns True if `--flag` alone means True. An optional bool needs a default of True or False for that."""
    members = _members(hint)
    return members == [bool] and (type(None) not in _alternatives(hint) or isinstance(field.default, bool))


def _reading(hint: Any) -> dict[str, Any]:
    """Returns argparse's options for values of this hint: type, choices, and nargs for lists."""
    members = _members(hint)
    lists = [member for member in members if get_origin(member) in (list, tuple) or member in (list, tuple)]
    if lists and len(members) == 1:
        inside = get_args(lists[0])
        return {"nargs": "+", "type": _reader([inside[0] if inside else str])}
    if len(members) == 1 and (choices := _choices(members[0])) is not None:
        return {"type": _choice(choices), "choices": choices}
    return {"type": _reader([member for member in members if member not in lists])}


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _members(hint: Any) -> list[Any]:
    """Returns the types that a value may have, without None."""
    return [member for member in _alternatives(hint) if member is not type(None)]


def _choices(kind: Any) -> list[Any] | None:
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [choice.value for choice in kind] if isinstance(kind, type) and issubclass(kind, Enum) else None


def _choice(choices: list[Any]) -> Callable[[str], Any]:
    by_text = {str(choice): choice for choice in choices}
    return lambda text: by_text.get(text, text)


def _reader(kinds: list[Any]) -> Callable[[str], Any]:
    """Returns a function that converts text to the first of these types that accepts it.

    `str` is tried late, because it accepts any text.
    """
    ordered_kinds = sorted(kinds, key=lambda kind: _ORDER_OF_TRIALS.get(get_origin(kind) or kind, 5))

    def read(text: str) -> Any:
        problem: Exception | None = None
        for kind in ordered_kinds:
            try:
                return _parsed(kind, text)
            except (ValueError, TypeError, ArgumentTypeError) as error:
                problem = error
        raise ArgumentTypeError(str(problem))

    return read


_ORDER_OF_TRIALS: dict[Any, int] = {bool: 0, int: 1, float: 2, dict: 3, str: 8, Path: 9}


def _parsed(kind: Any, text: str) -> Any:
    plain = get_origin(kind) or kind
    if plain is bool:
        return string_to_bool(text)
    if plain is dict:
        parsed = json.loads(text)
        if not isinstance(parsed, dict):
            raise ValueError(f"{text} is JSON, but not an object")
        return parsed
    choices = _choices(kind)
    if choices is not None:
        if text not in map(str, choices):
            raise ValueError(f"{text!r} is not one of {', '.join(map(str, choices))}")
        return _choice(choices)(text)
    return plain(text) if callable(plain) and plain is not Any else text
