"""Trainers of libraries as components: their arguments are read from the source, without importing the library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from footplate.components import rewards, st_trainers, trl_trainers
from footplate.components.trl_trainers import TrlTrainer
from footplate.contract.components import Described
from footplate.contract.errors import DatasetError, NotBuildable
from footplate.contract.json_schema import violations
from footplate.runtime.catalogue import describe
from tests.support.processes import REPOSITORY, clean_environment

TRAINERS = ("sft", "dpo", "kto", "reward", "grpo", "rloo")


@pytest.fixture
def trl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets Python find TRL, as on a node that has the extra."""
    monkeypatch.syspath_prepend(str(Path(sys.prefix, "libraries")))


def described(name: str) -> Described:
    return describe("trainers", f"trl/{name}", getattr(trl_trainers, name))


def test_a_trl_trainer_without_trl_is_described_with_the_pip_command() -> None:
    assert described("sft").needs == "trl (pip install 'footplate[trl]')"
    assert described("sft").args["properties"] == {}


@pytest.mark.usefixtures("trl")
@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_is_described_with_the_arguments_of_its_config(name: str) -> None:
    component = described(name)

    assert component.needs == ""
    assert component.summary.endswith(".")
    properties = component.args["properties"]
    assert {"max_length", "max_completion_length"} & properties.keys()
    assert "learning_rate" not in properties, "learning_rate is an argument of `training`"
    assert all(schema.get("description") for schema in properties.values())
    assert component.rows
    assert ("reward_funcs" in component.args["required"]) == (name in ("grpo", "rloo"))
    assert "trl" not in sys.modules


@pytest.mark.usefixtures("trl")
@pytest.mark.parametrize(
    ("name", "args", "codes"),
    [
        ("sft", {"max_length": None, "packing": True, "packing_strategy": "wrapped", "loss_type": "dft"}, []),
        ("sft", {"packing_strategy": "best", "max_length": "5"}, ["unknown_choice", "wrong_type"]),
        ("sft", {"dataset_text_field": "text", "trust_remote_code": False}, []),
        ("sft", {"dataset_text_field": "body", "trust_remote_code": True}, ["unknown_choice", "unknown_choice"]),
        ("dpo", {"loss_type": ["sigmoid", "bco_pair"], "beta": 0.2}, []),
        ("grpo", {"generation_kwargs": {"num_beams": 2}, "scale_rewards": "none"}, []),
        ("grpo", {"generation_kwargs": '{"num_beams": 2}', "use_vllm": True}, ["wrong_type", "unknown_choice"]),
        ("rloo", {"vllm_mode": "server"}, ["unknown_argument"]),
    ],
)
def test_arguments_of_a_library_trainer_are_checked_by_its_description(
    name: str, args: dict[str, Any], codes: list[str]
) -> None:
    schema = {**described(name).args, "required": []}

    assert [problem.code for problem in violations(schema, args)] == codes


@pytest.mark.usefixtures("trl")
def test_every_argument_excluded_from_jobs_exists_in_trl() -> None:
    there = {name for trainer in TRAINERS for name in described(trainer).args["properties"]}

    assert set(trl_trainers.NOT_IN_A_JOB) <= there


@pytest.mark.usefixtures("trl")
def test_a_node_itself_refuses_wrong_arguments_of_a_trl_trainer() -> None:
    with pytest.raises(NotBuildable, match="'max_lenght'"):
        trl_trainers.sft(None, {}, max_lenght=1)
    with pytest.raises(NotBuildable, match="use_vllm cannot be set"):
        trl_trainers.grpo(None, {}, use_vllm=True)


class Stream:
    def __iter__(self) -> Any:
        return iter([{"text": "a"}])


@pytest.mark.parametrize(
    ("trainer", "rows", "says"),
    [
        (trl_trainers.sft, [{"text": "a"}, {"txt": "b"}], "row 1: there is no column 'text', only: txt"),
        (trl_trainers.dpo, [{"prompt": "a", "chosen": "b"}], "row 0: there is no column 'rejected'"),
        (trl_trainers.sft, Stream(), "reads rows by number"),
        (
            trl_trainers.sft,
            [{"messages": [{"role": "user", "content": [{"type": "image", "text": ""}]}]}],
            "row 0: column 'messages', at 0/content/0/type, must be one of text",
        ),
    ],
)
def test_rows_of_a_library_trainer_are_checked_before_training(trainer: TrlTrainer, rows: Any, says: str) -> None:
    with pytest.raises(DatasetError, match=says):
        trainer._dataset(rows, processor=None)


def test_text_parts_become_plain_text_and_the_developer_becomes_the_system() -> None:
    parts = [{"type": "text", "text": "2 + 2?"}, {"type": "text", "text": "Be brief."}]
    of_parts = {"prompt": [{"role": "developer", "content": parts}], "chosen": "4"}
    of_texts = {"prompt": [{"role": "system", "content": "2 + 2?\nBe brief."}], "chosen": "4"}

    assert list(trl_trainers.with_plain_messages([of_texts, of_parts])) == [of_texts, of_texts]


def test_tool_call_arguments_given_as_json_text_become_objects() -> None:
    def call(arguments: Any) -> dict[str, Any]:
        function = {"name": "paint", "arguments": arguments}
        return {
            "messages": [{"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}]
        }

    rows = [call('{"color": "blue"}'), call({"color": "blue"}), call("{broken")]
    assert list(trl_trainers.with_plain_messages(rows)) == [rows[1], rows[1], rows[2]]


def test_a_key_that_first_appears_in_a_late_row_is_kept() -> None:
    """`datasets` infers the types from the first thousand rows, so the test adds a different row after these."""
    program = """if True:
        from footplate.components.hf_datasets import as_dataset
        chat = {"messages": [{"role": "user", "content": "a"}], "weight": 1}
        call = {"id": "1", "type": "function", "function": {"name": "paint", "arguments": {"color": "blue"}}}
        late = {"messages": [{"role": "assistant", "tool_calls": [call]}], "weight": 0.5, "tools": [{"type": "a"}]}
        made = as_dataset([chat] * 1001 + [late])
        assert made[1001] == late, made[1001]
        assert made[0] == {**chat, "tools": None}, made[0]
        try:
            as_dataset([{"a": 1}, {"a": "x"}])
        except Exception as error:
            assert "column 'a' has values of different types" in str(error), error
        else:
            raise SystemExit("two types in one column")
    """
    environment = {**clean_environment(), "PYTHONPATH": f"{REPOSITORY}:{Path(sys.prefix, 'libraries')}"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


def test_a_message_of_weight_0_is_refused_by_a_trainer_without_weights() -> None:
    rows = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}]}]

    with pytest.raises(DatasetError, match="row 0: column 'messages', at 1/weight: 0 is not possible"):
        list(trl_trainers.with_plain_messages(rows))
    assert list(trl_trainers.with_plain_messages(rows, weights=True)) == rows


def test_conversations_become_tokens_with_labels_for_the_assistants_words(tokenizer_folder: Path) -> None:
    program = """if True:
        import sys
        from types import SimpleNamespace
        from footplate.components import hf_processors, notes, trl_trainers
        from footplate.contract.errors import DatasetError

        template = (
            "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }} [SEP] {% else %}"
            "{% generation %}{{ m.content }} [SEP]{% endgeneration %} {% endif %}{% endfor %}"
        )
        tokenizer = hf_processors.tokenizer(path=sys.argv[1], chat_template=template)
        config = SimpleNamespace(
            assistant_only_loss=True, completion_only_loss=None, max_length=None, packing=False,
            truncation_mode="keep_start", process_index=0,
        )
        sentences = []
        notes.set_listener(sentences.append)

        def learned(*rows):
            return [
                tokenizer.decode([token for token in row["labels"] if token != -100])
                for row in trl_trainers.sft._dataset(rows, tokenizer, config)
            ]

        def turns(*texts, names=("role", "content")):
            return [dict(zip(names, turn)) for turn in zip(["user", "assistant"] * 2, texts)]

        talk, long = turns("the film", "is moving"), turns("the film is dull " * 9, "moving")
        answer = "is moving [SEP]"
        assert learned({"messages": talk}) == [answer]
        assert learned({"prompt": [*talk, talk[0]], "completion": [talk[1]]}) == [answer]
        assert learned({"conversations": turns("dull", "moving", names=("from", "value"))}) == ["moving [SEP]"]
        assert not sentences
        config.max_length = 12
        assert learned({"messages": talk}, {"messages": long}) == [answer, "moving [SEP]"]
        [sentence] = sentences
        assert sentence == (
            "data.train: 1 of 2 conversations have more than max_length=12 tokens and are cut at the end; "
            "1 of them lose all words of the assistant and are left out, the first is row 1"
        )
        config.truncation_mode = "keep_end"
        assert learned({"messages": talk}, {"messages": long}) == [answer, "moving [SEP]"]
        assert sentences[1].endswith("cut at the beginning"), sentences
        config.packing, config.packing_strategy = True, "wrapped"
        learned({"messages": long})
        assert len(sentences) == 2, "packing splits a long row"
        config.packing, config.truncation_mode = False, "keep_start"
        for rows, said in [
            ([{"messages": talk}, {"messages": talk[:1]}], "row 1: messages: has no message from the assistant"),
            ([{"messages": long}], "cuts off all words of the assistant in every conversation"),
        ]:
            try:
                learned(*rows)
            except DatasetError as error:
                assert said in str(error), error
            else:
                raise SystemExit(said)
    """
    environment = {**clean_environment(), "PYTHONPATH": f"{REPOSITORY}:{Path(sys.prefix, 'libraries')}"}
    subprocess.run([sys.executable, "-c", program, str(tokenizer_folder)], check=True, env=environment)


def test_conversations_need_a_chat_template() -> None:
    with pytest.raises(NotBuildable, match="needs a chat template, and the tokenizer has none"):
        trl_trainers.sft._dataset([{"messages": [{"role": "user", "content": "a"}]}], processor=None)


# Rewards


def test_built_in_rewards_score_completions() -> None:
    completions = [" Blue ", [{"role": "assistant", "content": "red"}]]

    assert rewards.equals()(completions, answer=["Blue", "blue"]) == [1.0, 0.0]
    assert rewards.equals(ignore_case=True)(completions, answer=["blue", "RED"]) == [1.0, 1.0]
    assert rewards.similarity(column="is")(["abcd"], **{"is": ["abxx"]}) == [0.5]
    assert rewards.matches(pattern=r"^\s*B")(completions) == [1.0, 0.0]


def test_a_reward_without_its_column_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(DatasetError, match="column 'answer'") as error:
        rewards.equals()(["a"], answers=["a"])

    assert error.value.hint == "did you mean 'answers'?"
    with pytest.raises(NotBuildable, match="matches: the pattern is not a regular expression"):
        rewards.matches(pattern="(")


# sentence-transformers


@pytest.mark.usefixtures("trl")
def test_losses_of_sentence_transformers_are_listed_without_importing_it() -> None:
    embedding = describe("trainers", "st/embedding", st_trainers.embedding)

    names = embedding.args["properties"]["loss"]["enum"]
    assert {"MultipleNegativesRankingLoss", "CoSENTLoss", "MatryoshkaLoss"} <= set(names)
    assert set(embedding.args["properties"]) == {"loss", "loss_args", "batch_sampler", "prompts"}
    assert [problem.code for problem in violations(embedding.args, {"loss": "MultipleNegativeRankingLoss"})] == [
        "unknown_choice"
    ]
    assert "sentence_transformers" not in sys.modules


def test_a_sentence_encoder_is_described_with_the_pip_command() -> None:
    assert (
        describe("models", "st/encoder", st_trainers.encoder).needs
        == "sentence_transformers (pip install 'footplate[st]')"
    )
