"""Puts our Trainer in the place of transformers' names, so that libraries for Hugging Face's Trainer run on ours.

A library decides at its import which Trainer it subclasses. So `install()` comes first, and the library after it:

    import footplate; footplate.install()
    from trl import SFTConfig, SFTTrainer
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

from pydantic.dataclasses import rebuild_dataclass

import footplate
from footplate.contract.errors import FootplateError, SettingsError
from footplate.contract.variables import DROP_IN

THEIR_MODULES = (
    "trainer", "trainer_seq2seq", "training_args", "training_args_seq2seq", "trainer_callback", "trainer_utils",
    "trainer_pt_utils", "data.data_collator", "optimization",
)  # fmt: skip
"""The modules of transformers that define the names."""
OUR_MODULES = (
    "footplate.trainer.trainer", "footplate.trainer.seq2seq", "footplate.trainer.arguments",
    "footplate.trainer.accelerator_config", "footplate.trainer.callbacks", "footplate.trainer.collators",
    "footplate.trainer.optimizers", "footplate.trainer.schedules", "footplate.trainer.greedy",
    "footplate.trainer.state",
)  # fmt: skip
"""Every name that `footplate` exports from these modules replaces transformers' name, if transformers has it."""
SUBCLASSED = ("Trainer", "Seq2SeqTrainer", "TrainingArguments", "Seq2SeqTrainingArguments")

SHARDING_FUNCTIONS = ("prepare_deepspeed", "prepare_fsdp")
"""TRL's functions that shard a second model by Accelerate's plugin."""

_originals: list[tuple[ModuleType, str, Any]] = []
"""Each replaced name: its module, the name, and transformers' own object. Empty if nothing is replaced."""


class ImportedTooEarly(FootplateError, ImportError):
    """A library has already imported transformers' Trainer or arguments, so it would not use Footplate's."""

    code = "imported_too_early"
    title = "A library was imported before footplate.install()"


class SecondModel(FootplateError):
    """TRL tried to shard a reference or reward model by a plugin of Accelerate, which our strategies do not set."""

    code = "second_model"
    title = "A second model cannot be sharded"


def install() -> list[str]:
    """Replaces transformers' names by ours, and returns the replaced names, such as `transformers.trainer.Trainer`.

    Raises ImportedTooEarly if a library or the script already holds transformers' Trainer or arguments. A second call
    changes nothing. `uninstall()` restores the names. Until then the Trainer's messages go to transformers' loggers.
    """
    if not _originals:
        modules = _their_modules()
        pairs = dict(_pairs(modules))
        _refuse_early_imports([original for name, (original, _) in pairs.items() if name in SUBCLASSED])
        for kind in (footplate.TrainingArguments, footplate.Seq2SeqTrainingArguments):
            # pydantic reads the types of the fields now, because Hugging Face's HfArgumentParser may change them later.
            rebuild_dataclass(kind)  # type: ignore[arg-type]
        for module in modules:
            for name, (original, replacement) in pairs.items():
                if vars(module).get(name, original) is original and (name in vars(module) or module is modules[0]):
                    _originals.append((module, name, original))
                    setattr(module, name, replacement)
        _messages.start()
    return sorted(f"{module.__name__}.{name}" for module, name, _ in _originals)


def uninstall() -> None:
    """Gives transformers its own names back. Classes that were derived from ours meanwhile stay derived from ours."""
    while _originals:
        module, name, original = _originals.pop()
        setattr(module, name, original)
    _messages.stop()


def install_if_asked(environment: Mapping[str, str] = os.environ) -> None:
    """Installs if the job's `env` has FOOTPLATE_DROP_IN=1."""
    value = environment.get(DROP_IN, "")
    if value not in ("", "0", "1"):
        raise SettingsError(f"{DROP_IN}={value} means nothing: 1 runs libraries on Footplate's Trainer, 0 does not.")
    if value == "1":
        install()


@contextmanager
def refusing_a_second_model() -> Iterator[None]:
    """Raises SecondModel in place of the AttributeError with which TRL fails to shard a second model."""
    try:
        yield
    except AttributeError as error:
        frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
        names = {frame.f_code.co_name for frame in frames if frame.f_globals.get("__name__", "").startswith("trl.")}
        if names.isdisjoint(SHARDING_FUNCTIONS):
            raise
        strategy = "deepspeed" if "prepare_deepspeed" in names else "fsdp"
        raise SecondModel(
            f"TRL keeps a second model (reference or reward), and Footplate's Trainer cannot shard it with {strategy}",
            hint="use DDP, or train an adapter (peft_config): the model without the adapter is then the second model. "
            "GRPO and RLOO need no second model with beta=0",
        ) from error


class _Messages(logging.Handler):
    """Passes the Trainer's messages to transformers' loggers, because a script sets level and handlers there."""

    def start(self) -> None:
        from footplate.trainer.reporting import LEVEL_LOGGERS

        logger = logging.getLogger("footplate.trainer")
        if self not in logger.handlers:
            logger.addHandler(self)
            # Every message is passed on, and transformers' loggers decide which ones are shown.
            logger.setLevel(logging.DEBUG)
            logger.propagate = False
            LEVEL_LOGGERS.append("transformers")

    def stop(self) -> None:
        from footplate.trainer.reporting import LEVEL_LOGGERS

        logger = logging.getLogger("footplate.trainer")
        if self in logger.handlers:
            logger.removeHandler(self)
            logger.setLevel(logging.NOTSET)
            logger.propagate = True
            LEVEL_LOGGERS.remove("transformers")

    def emit(self, record: logging.LogRecord) -> None:
        module = "trainer_callback" if record.module == "callbacks" else "trainer"
        logger = logging.getLogger(f"transformers.{module}")
        if logger.isEnabledFor(record.levelno):
            getattr(logger, record.levelname.lower())(record.getMessage(), exc_info=record.exc_info)


_messages = _Messages()


def _their_modules() -> list[ModuleType]:
    """Returns transformers itself and all of its modules that may hold one of the names."""
    try:
        transformers = import_module("transformers")
    except ImportError as error:
        raise ImportError("footplate.install() needs transformers: pip install 'footplate[hf]'") from error
    for name in THEIR_MODULES:
        import_module(f"transformers.{name}")
    submodules = [module for name, module in list(sys.modules.items()) if name.startswith("transformers.")]
    return [transformers, *submodules]


def _pairs(modules: list[ModuleType]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yields (name, (transformers' object, Footplate's object)) for each public name that both libraries define."""
    defining = [module for module in modules if module.__name__.removeprefix("transformers.") in THEIR_MODULES]
    for module_name in OUR_MODULES:
        trainer_module = import_module(module_name)
        exported = [name for name, home in footplate.home_of().items() if home == module_name]
        for name in (*exported, *_ALSO.get(module_name, ())):
            original = next((vars(module)[name] for module in defining if name in vars(module)), None)
            if original is not None:
                yield name, (original, getattr(trainer_module, name))


_ALSO = {
    # transformers compares a Trainer's mode with its own ParallelMode, to which ours is never equal. It would then not
    # gather values from several processes.
    "footplate.trainer.arguments": ("ParallelMode",),
    "footplate.trainer.callbacks": ("DEFAULT_CALLBACKS", "DEFAULT_PROGRESS_CALLBACK"),
}
"""Further names to replace, which `footplate` does not export."""


def _refuse_early_imports(classes: Iterable[type]) -> None:
    early = sorted({name.partition(".")[0] for kind in classes for name in _holders(kind)} - {"footplate"})
    if not early:
        return
    names = " and ".join("this script" if name == "__main__" else name for name in early)
    raise ImportedTooEarly(
        f"{names} imported transformers' Trainer or arguments before footplate.install(), so Footplate's would not be "
        "used",
        hint="call footplate.install() before such imports, or start the script with python -m footplate.run",
    )


def _holders(kind: type[Any]) -> Iterator[str]:
    """Yields the names of modules outside transformers that hold the class or derive from it."""
    subclass: type[Any]
    for subclass in kind.__subclasses__():
        if subclass.__module__.partition(".")[0] == "transformers":
            yield from _holders(subclass)
        else:
            yield subclass.__module__
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "transformers" and any(value is kind for value in list(vars(module).values())):
            yield name
