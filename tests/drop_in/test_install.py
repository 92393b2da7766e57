"""Tests of footplate.install(): the names that it replaces, the libraries that it refuses, and the ways to call it.

The program is a process of its own, because this one has imported transformers' Trainer already.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from footplate.contract.environment import refused_env
from footplate.contract.errors import SettingsError
from footplate.drop_in import install_if_asked
from footplate.run import main
from tests.support.template import run_after_imports

INSTALLS = """
import sys, footplate, transformers
from footplate.drop_in import ImportedTooEarly
their_trainer, their_callback = transformers.Trainer, transformers.trainer_callback.TrainerCallback

# A library that was imported before.
library = type(sys)("some_library.trainer")
sys.modules["some_library.trainer"] = library
exec("import transformers\\nclass Own(transformers.Trainer): pass", vars(library))
del their_trainer
try:
    footplate.install()
    raise SystemExit("not refused")
except ImportedTooEarly as error:
    assert str(error).startswith("some_library imported transformers' Trainer or arguments before"), error
del sys.modules["some_library.trainer"], library.Own, library
import gc; gc.collect()

names = footplate.install()
assert names == footplate.install()
assert {"transformers.Trainer", "transformers.trainer.Trainer", "transformers.training_args.ParallelMode"} <= set(names)
from transformers import Seq2SeqTrainingArguments, Trainer, TrainingArguments
from transformers.data.data_collator import DataCollatorWithPadding
from transformers.trainer_callback import TrainerCallback
assert Trainer is footplate.Trainer
assert TrainingArguments is footplate.TrainingArguments
assert Seq2SeqTrainingArguments is footplate.Seq2SeqTrainingArguments
assert TrainerCallback is footplate.TrainerCallback
assert DataCollatorWithPadding is footplate.DataCollatorWithPadding
del Trainer, TrainingArguments, Seq2SeqTrainingArguments

# Hugging Face's own parser reads our arguments, and changes the types of their fields.
from transformers import HfArgumentParser
(args,) = HfArgumentParser(footplate.TrainingArguments).parse_args_into_dataclasses(
    ["--output_dir", sys.argv[1], "--report_to", "none", "--lr_scheduler_kwargs", '{"num_cycles": 1}',
     "--bf16", "false", "--include_num_input_tokens_seen", "true"])
assert args.lr_scheduler_kwargs == {"num_cycles": 1}, args.lr_scheduler_kwargs
assert args.include_num_input_tokens_seen == "all"
footplate.TrainingArguments(sys.argv[1])

# The Trainer's messages come from transformers' loggers, and the script's settings of those hold for them.
import logging
from footplate.trainer.reporting import set_log_level
class Keep(logging.Handler):
    def emit(self, record):
        messages.append((record.name, record.levelname, record.getMessage()))
messages, ours = [], logging.getLogger("footplate.trainer")
logging.getLogger("transformers").addHandler(Keep())
ours.info("not shown at this level")
transformers.logging.set_verbosity_info()
ours.info("step %d", 1)
set_log_level(footplate.TrainingArguments(sys.argv[1], log_level="error"))
ours.warning("not shown at this level")
assert messages == [("transformers.trainer", "INFO", "step 1")], messages

footplate.uninstall()
ours.error("no longer theirs")
assert len(messages) == 1
assert transformers.Trainer.__module__ == transformers.trainer.Trainer.__module__ == "transformers.trainer"
assert transformers.trainer_callback.TrainerCallback is their_callback

# A script of transformers runs on our Trainer, as with `python -m footplate.run train.py --rate 1`.
import runpy
sys.argv[1:] = [sys.argv[2], "--rate", "1"]
runpy.run_module("footplate.run", run_name="__main__")
"""


def test_install_replaces_and_restores_names_and_a_script_runs_on_our_trainer(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("NAME = 'beside'")
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\nfrom beside import NAME\nfrom transformers import Trainer\n"
        "print(__name__, NAME, sys.argv[1:], Trainer.__module__)"
    )

    output = run_after_imports("-c", INSTALLS, str(tmp_path), str(script))

    assert output.splitlines()[-1] == "__main__ beside ['--rate', '1'] footplate.trainer.trainer"


@pytest.mark.parametrize("words", [[], ["--rate"], ["-m"], ["no_such_script.py"]])
def test_a_command_that_names_no_script_is_refused_with_its_usage(words: list[str]) -> None:
    with pytest.raises(SystemExit, match=r"usage: python -m footplate.run script.py"):
        main(words)


def test_a_job_can_request_the_drop_in_by_an_environment_variable() -> None:
    assert refused_env({"FOOTPLATE_DROP_IN": "1"}, allowed="") == []
    install_if_asked({"FOOTPLATE_DROP_IN": "0"})
    with pytest.raises(SettingsError, match="FOOTPLATE_DROP_IN=yes means nothing: 1 runs libraries"):
        install_if_asked({"FOOTPLATE_DROP_IN": "yes"})
