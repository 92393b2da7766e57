"""The tasks, groups and tags that lm-evaluation-harness ships, found without the library's own index.

The library's index parses 15,000 files, which takes 10 seconds. Here, regular expressions find the names.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from footplate.contract.errors import NotBuildable, did_you_mean

LIBRARY = "lm_eval"
RUNS_CODE = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "subprocess",
    "pickle",
    "runpy",
    "ctypes",
    "sympify",
    "parse_expr",
}
"""Calls and imports by which the functions of a task could run code that is in the user's rows."""


@dataclass(frozen=True, slots=True)
class Shipped:
    """The YAML file of each task and of each group by name, and the names of the tasks that have a tag."""

    tasks: dict[str, Path] = field(default_factory=dict)
    groups: dict[str, Path] = field(default_factory=dict)
    tags: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskFile:
    """A task: its name, its YAML file, and the settings with which a group overrides those in the file."""

    name: str
    file: Path
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """A group of tasks and of other groups. `config` says how their metrics are averaged."""

    name: str
    config: Mapping[str, Any]
    members: Sequence[TaskFile | TaskGroup]

    def tasks(self) -> Iterator[TaskFile]:
        """Yields the tasks of this group and of the groups inside it, each task once."""
        task_names: set[str] = set()
        for member in self.members:
            for task in member.tasks() if isinstance(member, TaskGroup) else (member,):
                if task.name not in task_names:
                    task_names.add(task.name)
                    yield task


@cache
def shipped() -> Shipped:
    """Returns the tasks, groups and tags of the installed lm-eval. Without lm-eval, there are none."""
    package = find_spec(LIBRARY)
    library = Shipped()
    if package is None or not package.submodule_search_locations:
        return library
    folders = os.walk(Path(package.submodule_search_locations[0], "tasks"))
    for file in (Path(folder, name) for folder, _, names in folders for name in names if name.endswith(".yaml")):
        text = file.read_bytes()
        if name := _value(_GROUP, text):
            library.groups.setdefault(name, file)
        elif (name := _value(_TASK, text)) and not _IS_CLASS.search(text):
            library.tasks[name] = file
            for tag in _tags_in(file, text):
                library.tags.setdefault(tag, []).append(name)
    return library


def _line_with(key: str) -> re.Pattern[bytes]:
    return re.compile(rb"""^(["']?)%s\1:[ \t]*["']?([^\s"'#\[]+)["']?[ \t]*(?:#.*)?\r?$""" % key.encode(), re.MULTILINE)


_TASK, _GROUP, _TAG, _INCLUDE = map(_line_with, ("task", "group", "tag", "include"))
_TAGS = re.compile(rb"^[\"']?tag[\"']?:[ \t]*\r?\n((?:[ \t]*-[^\n]*\n?)+)", re.MULTILINE)
_IS_CLASS = re.compile(rb"^[\"']?class[\"']?:", re.MULTILINE)
"""A task that is a class has a dataset of its own, so it cannot be evaluated on rows of a job."""


def _value(line: re.Pattern[bytes], text: bytes) -> str | None:
    match = line.search(text)
    return match[2].decode() if match else None


def _tags_in(file: Path, text: bytes) -> list[str]:
    """Returns the tags in a task's file, or in the file that it includes."""
    if tag := _value(_TAG, text):
        return [tag]
    if tag_list := _TAGS.search(text):
        lines = tag_list[1].decode().splitlines()
        return [line.strip().removeprefix("-").strip(" \"'") for line in lines]
    included = _value(_INCLUDE, text)
    return _tags_of_template(file.parent / included) if included else []


@cache
def _tags_of_template(file: Path) -> list[str]:
    return _tags_in(file, file.read_bytes()) if file.is_file() else []


def named(name: str) -> TaskFile | TaskGroup:
    """Returns a task or a group. Raises NotBuildable for an unknown name."""
    library = shipped()
    if name in library.groups:
        return _group(name)
    if name in library.tasks:
        return TaskFile(name, library.tasks[name])
    hint = did_you_mean(name, sorted([*library.tasks, *library.groups]))
    if name in library.tags:
        hint = f"it is a tag, so name its tasks: {', '.join(sorted(library.tags[name])[:20])}"
    raise NotBuildable(f"lm-eval ships no task or group {name!r} that can be evaluated on your rows", hint=hint)


def _group(name: str, config: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None) -> TaskGroup:
    """Returns a group, read from its YAML file, or from `config` if another group's file defines it.

    `settings` override those of each task in the group.
    """
    from lm_eval.tasks._factory import GROUP_FIELD_NAMES
    from lm_eval.tasks._yaml_loader import load_yaml

    if config is None:
        require_no_code(shipped().groups[name])
        config = load_yaml(shipped().groups[name])
    group_config = {key: value for key, value in config.items() if key in GROUP_FIELD_NAMES} | {"group": name}
    inherited = {key: value for key, value in config.items() if key not in GROUP_FIELD_NAMES} | dict(settings or {})
    entries = config["task"] if isinstance(config["task"], list) else [config["task"]]
    members = [member for item in entries for member in _members(name, item, inherited)]
    return TaskGroup(name, group_config, members)


def _members(group: str, item: str | Mapping[str, Any], settings: Mapping[str, Any]) -> list[TaskFile | TaskGroup]:
    """Returns the tasks and groups that an entry of a group's list names. An entry is a task, a group or a tag."""
    library = shipped()
    entry = {"task": item} if isinstance(item, str) else item
    item_settings = {**settings, **{key: value for key, value in entry.items() if key not in ("task", "group")}}
    if "group" in entry:
        name = entry["group"]
        return [_group(name, settings=item_settings) if name in library.groups
                else _group(f"{group}::{name}", entry, settings)]  # fmt: skip
    name = entry.get("task", "without a name")
    if name in library.groups:
        return [_group(name, settings=item_settings)]
    if name in library.tasks:
        return [TaskFile(name, library.tasks[name], item_settings)]
    if name not in library.tags:
        raise NotBuildable(
            f"the group {group} contains the task {name!r}, which cannot be evaluated on your rows",
            hint="name one of the group's other tasks instead of the group",
        )
    return [TaskFile(task, library.tasks[task], item_settings) for task in sorted(library.tags[name])]


def require_no_code(file: Path) -> None:
    """Raises NotBuildable if the source of a shipped task calls or imports a name in RUNS_CODE, such as `eval`.

    Such a function could execute text from the user's rows.
    """
    from lm_eval.tasks._yaml_loader import load_yaml

    for folder in sorted({module.parent for module in _modules_in(load_yaml(file, resolve_func=False))}):
        for source in sorted(folder.glob("*.py")):
            for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
                if used := RUNS_CODE & set(names_in(node)):
                    cause = f"{source.name} uses {', '.join(sorted(used))}"
                    raise NotBuildable(
                        f"the task {file.stem} could run code that its rows contain: {cause}",
                        hint='put a copy of the task into a bundle, and name the copy with "yaml"',
                    )


def _modules_in(config: Any) -> Iterator[Path]:
    """Yields the files of the functions in a task, which are texts such as `/tasks/gsm8k/utils.process_docs`."""
    if isinstance(config, str) and config.startswith("/"):
        module = Path(f"{config.rpartition('.')[0]}.py")
        yield from [module] if module.is_file() else []
    elif isinstance(config, dict | list):
        for value in config.values() if isinstance(config, dict) else config:
            yield from _modules_in(value)


def names_in(node: ast.AST) -> Iterator[str]:
    """Yields the name of the called function for a call node, and the names of the modules for an import node."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
        called = ast.unparse(node.func)
        # `re.compile` is harmless, unlike the function `compile`, which is in RUNS_CODE.
        yield "" if called == "re.compile" else called.rpartition(".")[2]
    elif isinstance(node, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module.partition(".")[0]
