"""Runs a script or a module with our Trainer in the place of transformers' names: docs/guides/drop-in.md.

python -m footplate.run train.py --learning_rate 1e-4
python -m footplate.run -m trl.scripts.sft --model_name_or_path …
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from footplate.drop_in import install, refusing_a_second_model

USAGE = "usage: python -m footplate.run script.py [arguments], or python -m footplate.run -m module [arguments]"


def main(words: list[str]) -> None:
    """Replaces transformers' Trainer by Footplate's, and then runs a script, or a module after `-m`, as Python does."""
    is_module = words[:1] == ["-m"]
    words = words[is_module:]
    if not words or words[0].startswith("-"):
        raise SystemExit(USAGE)
    if not is_module and not Path(words[0]).exists():
        raise SystemExit(f"python -m footplate.run: there is no file {words[0]}. {USAGE}")
    install()
    sys.argv = words
    with refusing_a_second_model():
        if is_module:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        else:
            # A script imports modules from its own folder. `-m footplate.run` put the current folder here instead.
            sys.path[0] = str(Path(words[0]).resolve().parent)
            runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
