"""The verb `completion`: a script for a shell, made from the parser, so that it has all verbs and options.

The script asks `footplate completion jobs` for the ids and names of jobs. A name is text of another user, so no shell
may read it as code: bash's `compgen -W` would run `$(…)` in it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import islice

from footplate.cli.context import Given, Verbs, client_of
from footplate.cli.text import say, short
from footplate.contract.errors import FootplateError

Options = dict[str, list[str]]
OFFERED = 100
"""The newest jobs whose ids and names are offered."""
JOBS = frozenset({"job", "jobs", "a", "b"})
"""The destinations of arguments that name a job."""


def add_verbs(verbs: Verbs) -> None:
    parser = verbs.add_parser("completion", help="what a shell needs to complete verbs, options and jobs")
    parser.add_argument("shell", choices=[*sorted(_SHELLS), "jobs"])
    parser.set_defaults(run=lambda options: run_completion(options, verbs), url=None)


def run_completion(given: Given, verbs: Verbs) -> int:
    if given.shell == "jobs":
        return _print_jobs(given)
    options = {name: _options(parser) for name, parser in verbs.choices.items()}
    print(_SHELLS[given.shell](options, [name for name, parser in verbs.choices.items() if _takes_a_job(parser)]))
    return 0


def _print_jobs(given: Given) -> int:
    """Prints the newest jobs, one word per line. Prints nothing if the service is unreachable."""
    try:
        jobs = [job.info for job in islice(client_of(given, retries=0, timeout=2.0).jobs.list(limit=OFFERED), OFFERED)]
    except FootplateError:
        return 0
    names = dict.fromkeys(job.name for job in jobs if job.name and job.name.isprintable())
    say(*(["@last"] if jobs else []), *names, *(short(job.id) for job in jobs))
    return 0


def _takes_a_job(parser: argparse.ArgumentParser) -> bool:
    return any(action.dest in JOBS and not action.option_strings for action in parser._actions)


def _options(parser: argparse.ArgumentParser) -> list[str]:
    """Returns the parser's options, the names of its parts, and their options."""
    texts = {text for action in parser._actions for text in action.option_strings if text.startswith("--")}
    for name, part in _parts(parser).items():
        texts |= {name, *_options(part)}
    return sorted(texts)


def _parts(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    nested = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return {name: part for action in nested for name, part in action.choices.items()}


def _bash(verbs: Options, with_jobs: list[str]) -> str:
    cases = "\n".join(
        f'    {name}) words="{_matching(options, "--")}" parts="{_matching(options)}";;'
        for name, options in verbs.items()
    )
    return f"""_footplate() {{
  local words parts word
  COMPREPLY=()
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join(verbs)}" -- "$2"))
    return
  elif [ "${{2:0:1}}" = - ]; then
    COMPREPLY=($(compgen -W "$words" -- "$2"))
    return
  elif [ "$COMP_CWORD" -eq 2 ]; then
    COMPREPLY=($(compgen -W "$parts" -- "$2"))
  fi
  case "${{COMP_WORDS[1]}}" in
    {"|".join(with_jobs)})
      while IFS= read -r word; do
        if [[ "$word" == "$2"* ]]; then COMPREPLY+=("$(printf %q "$word")"); fi
      done < <(footplate completion jobs 2>/dev/null);;
  esac
}}
complete -o default -F _footplate footplate"""


def _matching(options: list[str], begin: str = "") -> str:
    return " ".join(option for option in options if option.startswith("--") == bool(begin))


def _zsh(verbs: Options, with_jobs: list[str]) -> str:
    begin = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"
    return begin + _bash(verbs, with_jobs)


def _fish(verbs: Options, with_jobs: list[str]) -> str:
    lines = [f'complete -c footplate -n __fish_use_subcommand -f -a "{" ".join(verbs)}"']
    for name, options in verbs.items():
        seen = f'complete -c footplate -n "__fish_seen_subcommand_from {name}"'
        lines += [
            f"{seen} -l {option[2:]}" if option.startswith("--") else f"{seen} -f -a {option}" for option in options
        ]
    seen = f'complete -c footplate -n "__fish_seen_subcommand_from {" ".join(with_jobs)}"'
    return "\n".join([*lines, f'{seen} -f -a "(footplate completion jobs 2>/dev/null)"'])


_SHELLS: dict[str, Callable[[Options, list[str]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
