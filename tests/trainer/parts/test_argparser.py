"""Command lines, dicts and files become dataclasses as Hugging Face's parser makes them."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
import transformers
from accelerate.state import PartialState
from transformers.hf_argparser import HfArg as TheirArg
from transformers.trainer_pt_utils import AcceleratorConfig as TheirConfig

from footplate.trainer.accelerator_config import AcceleratorConfig
from footplate.trainer.argparser import HfArg, HfArgumentParser
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.names import SchedulerType
from footplate.trainer.seq2seq import Seq2SeqTrainingArguments
from footplate.trainer.strategies.single import Single


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Model:
    name: str
    depth: int = 3
    rate: float = 0.5
    tied: bool = False
    shuffled: bool = True
    cased: bool | None = None
    colour: Colour = Colour.RED
    kind: Literal["a", "b", 3] = "a"
    limit: int | None = None
    layers: list[int] = field(default_factory=lambda: [1, 2])
    words: list[str] | None = None
    path: str | None = field(default=None, metadata={"help": "100% of it", "aliases": ["--where", "-w"]})


@dataclass
class Data:
    set_name: str = "squad"
    parts: int = 1


LINES = [
    "--name x",
    "--name x --depth 5 --rate 1e-3 --limit 7",
    "--name x --tied --shuffled no --cased true",
    "--name x --tied false --no_shuffled --cased 0",
    "--name x --no-shuffled --colour blue --kind 3",
    "--name x --layers 4 5 6 --words one two",
    "--name x -w /here",
    "--name x --where /there --set-name glue --parts 4",
]


@pytest.mark.parametrize("line", LINES)
def test_a_command_line_is_parsed_as_transformers_parses_it(line: str) -> None:
    mine, theirs = (
        parser([Model, Data]).parse_args_into_dataclasses(line.split(), look_for_args_file=False)
        for parser in (HfArgumentParser, transformers.HfArgumentParser)
    )

    assert len(mine) == len(theirs) == 2
    for first, second in zip(mine, theirs, strict=True):
        first_values, right = ({**vars(item), "colour": getattr(item, "colour", None)} for item in (first, second))
        first_values["colour"], right["colour"] = (
            getattr(value["colour"], "value", value["colour"]) for value in (first_values, right)
        )
        assert first_values == right


@pytest.mark.parametrize("line", ["", "--name x --depth much", "--name x --kind c", "--name x --tied perhaps"])
def test_an_invalid_command_line_is_refused_as_in_transformers(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    for parser in (HfArgumentParser, transformers.HfArgumentParser):
        with pytest.raises(SystemExit):
            parser(Model).parse_args_into_dataclasses(line.split(), look_for_args_file=False)
    assert "error" in capsys.readouterr().err


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        ValueError, match=r"not used by the HfArgumentParser: \['--dpth', '3'\] \(did you mean '--depth'"
    ):
        HfArgumentParser(Model).parse_args_into_dataclasses(["--name", "x", "--dpth", "3"], look_for_args_file=False)
    model, rest = HfArgumentParser(Model).parse_args_into_dataclasses(
        ["--name", "x", "--dpt", "3"], return_remaining_strings=True, look_for_args_file=False
    )
    assert (model.name, rest) == ("x", ["--dpt", "3"])


def test_options_added_to_the_parser_are_returned_in_a_namespace() -> None:
    parser = HfArgumentParser(Data)
    parser.add_argument("--gpu", type=int, default=0)

    data, rest = parser.parse_args_into_dataclasses(["--gpu", "2"], look_for_args_file=False)

    assert (data.parts, rest.gpu) == (1, 2)


def test_arguments_on_the_command_line_override_those_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.args").write_text("--name beside --depth 7")
    (tmp_path / "more.args").write_text("--depth 8")
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py"), "--rate", "2"])
    parser = HfArgumentParser(Model)

    (beside,) = parser.parse_args_into_dataclasses()
    (arguments,) = parser.parse_args_into_dataclasses(["--name", "x"], args_filename=str(tmp_path / "more.args"))
    words = ["--config", str(tmp_path / "more.args"), "--depth", "9"]
    (flagged,) = parser.parse_args_into_dataclasses(words, args_file_flag="--config")

    assert (beside.name, beside.depth, beside.rate) == ("beside", 7, 2.0)
    assert (arguments.name, arguments.depth) == ("x", 8)
    assert (flagged.name, flagged.depth) == ("beside", 9)


def test_arguments_are_parsed_from_dicts_json_and_yaml(tmp_path: Path) -> None:
    values = {"name": "x", "depth": 4, "parts": 2}
    (tmp_path / "a.json").write_text(json.dumps(values))
    (tmp_path / "a.yaml").write_text("name: x\ndepth: 4\nparts: 2\n")
    parser = HfArgumentParser((Model, Data))

    for model, data in (
        parser.parse_dict(values),
        parser.parse_json_file(tmp_path / "a.json"),
        parser.parse_yaml_file(str(tmp_path / "a.yaml")),
    ):
        assert (model.name, model.depth, data.parts) == ("x", 4, 2)
    with pytest.raises(ValueError, match=r"HfArgumentParser.*\['odd'\]"):
        parser.parse_dict({**values, "odd": 1})
    assert parser.parse_dict({**values, "odd": 1}, allow_extra_keys=True)[0].depth == 4


def test_training_arguments_are_parsed_and_their_descriptions_are_the_help() -> None:
    parser = HfArgumentParser(TrainingArguments)
    line = (
        "--output_dir out --learning_rate 3e-4 --lr_scheduler_type cosine --warmup_steps 0.1 --max-steps 7 --bf16 "
        "--eval_strategy steps --optim sgd --optim_args momentum=0.9 --report_to none --label_names a b"
    )
    (args,) = parser.parse_args_into_dataclasses(line.split(), look_for_args_file=False)

    assert (args.learning_rate, args.warmup_steps, args.max_steps, args.bf16) == (3e-4, 0.1, 7, True)
    assert args.lr_scheduler_type is SchedulerType.COSINE
    assert (args.optim_args, args.label_names, args.do_eval) == ("momentum=0.9", ["a", "b"], True)
    assert "The schedule of the learning rate over the steps." in parser.format_help()


def test_older_argument_names_are_accepted_on_the_command_line() -> None:
    parser = HfArgumentParser(TrainingArguments)
    with pytest.warns(FutureWarning, match="evaluation_strategy is an older name"):
        (args,) = parser.parse_args_into_dataclasses(["--evaluation_strategy", "epoch"], look_for_args_file=False)
    assert args.eval_strategy == "epoch"
    assert "evaluation_strategy" not in parser.format_help()
    with pytest.warns(FutureWarning, match="warmup_ratio"):
        (args,) = parser.parse_dict({"warmup_ratio": 0.1})
    assert args.warmup_steps == 0.1


def test_the_arguments_of_seq2seq_training_are_parsed() -> None:
    (args,) = HfArgumentParser(Seq2SeqTrainingArguments).parse_args_into_dataclasses(
        ["--predict_with_generate", "--generation_max_length", "9", "--generation_config", "here"],
        look_for_args_file=False,
    )
    assert (args.predict_with_generate, args.generation_max_length, args.generation_config) == (True, 9, "here")


def test_hf_arg_sets_default_aliases_and_help_of_a_field() -> None:
    def options_class(arg: Any) -> Any:
        @dataclass
        class Options:
            depth: int = arg(default=2, aliases=["-d"], help="how deep")
            parts: list[int] = arg(default_factory=lambda: [1])  # noqa: RUF009

        globals()["Options"] = Options
        return Options

    for arg, parser in ((HfArg, HfArgumentParser), (TheirArg, transformers.HfArgumentParser)):
        (options,) = parser(options_class(arg)).parse_args_into_dataclasses(["-d", "4"], look_for_args_file=False)
        assert (options.depth, options.parts) == (4, [1])


def test_the_accelerator_config_has_the_defaults_and_methods_of_transformers(tmp_path: Path) -> None:
    assert AcceleratorConfig().to_dict() == TheirConfig().to_dict()
    (tmp_path / "a.json").write_text('{"split_batches": true}')
    config = AcceleratorConfig.from_json_file(tmp_path / "a.json")
    assert (config.split_batches, config.pop("even_batches"), config.pop("odd", 5)) == (True, True, 5)
    (tmp_path / "a.json").write_text('{"split": true}')
    with pytest.raises(ValueError, match=r"had unknown keys \(\['split'\]\). Known: split_batches"):
        AcceleratorConfig.from_json_file(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("setting", "processes"),
    [("dispatch_batches: true", 2)],
)
def test_unsupported_values_of_an_accelerator_config_are_refused(setting: str, processes: int) -> None:
    name, _, value = setting.partition(": ")
    config = AcceleratorConfig.of({name: value == "true"})

    with pytest.raises(ValueError, match=setting):
        config.refuse_unsupported(processes)


def test_an_unknown_gradient_accumulation_option_is_refused() -> None:
    config = AcceleratorConfig.of({"gradient_accumulation_kwargs": {"num_step": 2}})

    with pytest.raises(ValueError, match=r"gradient_accumulation_kwargs.*num_step.*num_steps.*sync_each"):
        config.refuse_unsupported(1)


@pytest.mark.parametrize(
    ("name", "message"),
    [("sync_with_dataloader", "ends with the epoch's last batch"), ("adjust_scheduler", "moves once with every step")],
)
def test_a_gradient_accumulation_option_without_effect_is_logged(
    name: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    AcceleratorConfig.of({"gradient_accumulation_kwargs": {name: False}}).refuse_unsupported(1)

    assert f"{name}: false, which changes nothing" in caplog.text
    assert message in caplog.text


def test_use_configured_state_is_refused_if_no_state_was_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartialState, "_shared_state", {})
    # The arguments alone are accepted, because libraries create them only to read the defaults.
    args = TrainingArguments(accelerator_config={"use_configured_state": True})

    with pytest.raises(ValueError, match=r"use_configured_state.*no PartialState"):
        Single(args)


def test_gradient_accumulation_options_that_agree_with_the_arguments_are_accepted() -> None:
    config = AcceleratorConfig.of({"gradient_accumulation_kwargs": {"sync_with_dataloader": True, "num_steps": 3}})

    config.refuse_unsupported(1)
    assert (config.accumulates(1), config.accumulates(3)) == (3, 3)
    with pytest.raises(ValueError, match=r"gradient_accumulation_steps.*2.*num_steps 3"):
        config.accumulates(2)
