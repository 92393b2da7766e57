"""The verb `completion`: a script for a shell, made from the parser, so that it has all verbs and options."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from footplate.cli.context import Given, Verbs

Options = dict[str, list[str]]


def add_verbs(verbs: Verbs) -> None:
    parser = verbs.add_parser("completion", help="what a shell needs to complete verbs and options")
    parser.add_argument("shell", choices=sorted(_SHELLS))
    parser.set_defaults(run=lambda options: run_completion(options, verbs))


def run_completion(given: Given, verbs: Verbs) -> int:
    print(_SHELLS[given.shell]({name: _options(parser) for name, parser in verbs.choices.items()}))
    return 0


def _options(parser: argparse.ArgumentParser) -> list[str]:
    """Returns the parser's options, the names of its parts, and their options."""
    texts = {text for action in parser._actions for text in action.option_strings if text.startswith("--")}
    for name, part in _parts(parser).items():
        texts |= {name, *_options(part)}
    return sorted(texts)


def _parts(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    nested = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return {name: part for action in nested for name, part in action.choices.items()}


def _bash(verbs: Options) -> str:
    cases = "\n".join(
        f'    {name}) words="{_said(options, "--")}" parts="{_said(options)}";;' for name, options in verbs.items()
    )
    return f"""_footplate() {{
  local words parts
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join(verbs)}" -- "$2"))
  elif [ "${{2:0:1}}" = - ]; then
    COMPREPLY=($(compgen -W "$words" -- "$2"))
  elif [ "$COMP_CWORD" -eq 2 ]; then
    COMPREPLY=($(compgen -W "$parts" -- "$2"))
  fi
}}
complete -o default -F _footplate footplate"""


def _said(options: list[str], begin: str = "") -> str:
    return " ".join(option for option in options if option.startswith("--") == bool(begin))


def _zsh(verbs: Options) -> str:
    return f"autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n{_bash(verbs)}"


def _fish(verbs: Options) -> str:
    lines = [f'complete -c footplate -n __fish_use_subcommand -f -a "{" ".join(verbs)}"']
    for name, options in verbs.items():
        seen = f'complete -c footplate -n "__fish_seen_subcommand_from {name}"'
        lines += [
            f"{seen} -l {option[2:]}" if option.startswith("--") else f"{seen} -f -a {option}" for option in options
        ]
    return "\n".join(lines)


_SHELLS: dict[str, Callable[[Options], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
