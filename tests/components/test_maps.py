"""Tests maps, which change rows when the rows are read. Wrong rows are reported with their position."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import DataLoader

from footplate.components import files, hf_processors, maps
from footplate.contract.errors import DatasetError, NotBuildable

ROWS = [{"text": "the film is dull", "label": 0}, {"text": "the cast is warm", "label": 1, "note": "x"}]


class Rows(list[Any]):
    """A dataset that has only a length and rows by index."""


class Classifier:
    """A model with two classes that have numbers and no names."""

    def __init__(self) -> None:
        names = {0: "LABEL_0", 1: "LABEL_1"}
        self.config = SimpleNamespace(num_labels=2, id2label=names, label2id={name: at for at, name in names.items()})


def test_tokenize_replaces_the_text_and_keeps_all_other_columns(tokenizer: Any) -> None:
    rows = maps.tokenize(Rows(ROWS), tokenizer, column="text", max_length=4)

    assert rows[1].keys() == {"label", "note", "input_ids", "attention_mask"}
    assert rows[0]["input_ids"] == tokenizer("the film is dull", truncation=True, max_length=4)["input_ids"]
    assert rows.__getitems__([1, 0]) == [rows[1], rows[0]]
    assert pickle.loads(pickle.dumps(rows))[1] == rows[1]


def test_tokenize_accepts_text_pairs_and_target_texts_as_labels(tokenizer: Any) -> None:
    data = Rows([{"a": "the film", "b": "is dull", "c": "the cast"}])

    pair = maps.tokenize(data, tokenizer, column="a", pair="b")[0]
    tokens = maps.tokenize(data, tokenizer, column="a", target="c", prefix="the ", max_target_length=3)[0]

    assert pair["input_ids"] == tokenizer("the film", "is dull")["input_ids"]
    assert tokens["input_ids"] == tokenizer("the the film")["input_ids"]
    assert tokens["labels"] == [*tokenizer("the cast")["input_ids"][:2], tokenizer.sep_token_id]


def test_a_missing_column_is_refused_before_training_with_the_nearest_name(tokenizer: Any) -> None:
    with pytest.raises(DatasetError, match=r"row 0.*'txt', only: text, label") as error:
        maps.tokenize(Rows(ROWS), tokenizer, column="txt")
    assert error.value.hint == "did you mean 'text'?"
    with pytest.raises(DatasetError, match=r"'label'.*int.*text"):
        maps.tokenize(Rows(ROWS), tokenizer, column="label")


def test_a_row_without_a_needed_column_is_reported_with_file_and_line(tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n\n{"text": null}\n{"txt": "z"}\n')
    lines = maps.rename(files.jsonl(paths=[str(tmp_path / "a.jsonl")], limit=2), columns={"text": "said"})
    rows = maps.tokenize(lines, tokenizer, column="said")

    with pytest.raises(DatasetError, match=r"a\.jsonl, line 3: column 'said' holds null"):
        rows.__getitems__([0, 1])


def test_a_map_without_a_tokenizer_or_without_rows_is_refused(tokenizer: Any) -> None:
    with pytest.raises(NotBuildable, match="tokenize needs a tokenizer, and the job has none") as error:
        maps.tokenize(Rows(ROWS), None, column="text")
    assert "hf/tokenizer" in str(error.value.hint)
    with pytest.raises(DatasetError, match="a stream"):
        maps.tokenize(iter(ROWS), tokenizer, column="text")
    with pytest.raises(DatasetError, match="without rows"):
        maps.drop(Rows(), columns=["x"])


def test_only_the_first_token_of_a_word_keeps_its_label(tokenizer: Any) -> None:
    data = Rows([{"tokens": ["the", "dulll"], "tags": [3, 5]}])
    pieces = tokenizer(["the", "dulll"], is_split_into_words=True).word_ids()

    first = maps.tokenize_words(data, tokenizer, labels="tags")[0]["labels"]
    every = maps.tokenize_words(data, tokenizer, labels="tags", label_every_piece=True)[0]["labels"]

    assert pieces.count(1) > 1
    assert first == [-100, 3, 5, *[-100] * pieces.count(1)]
    assert every == [-100, 3, *[5] * pieces.count(1), -100]
    with pytest.raises(DatasetError, match="must hold 2 numbers, one for each word, but holds 1 numbers"):
        maps.tokenize_words(Rows([{"tokens": ["a", "b"], "tags": [1]}]), tokenizer, labels="tags")
    with pytest.raises(DatasetError, match="a list of words is needed"):
        maps.tokenize_words(Rows([{"tokens": "a b"}]), tokenizer)


def rows_with_answer(text: str, start: int) -> Rows:
    context = "the cast is warm and the story is moving"
    return Rows([{"question": "is the film dull", "context": context, "answers": _answer(text, start), "id": 7}])


def _answer(text: str, start: int) -> dict[str, Any]:
    return {"text": [text], "answer_start": [start]} if text else {"text": [], "answer_start": []}


def test_an_answer_is_mapped_to_its_first_and_last_token(tokenizer: Any) -> None:
    row = maps.answers(rows_with_answer("the story", 21), tokenizer)[0]

    answer = row["input_ids"][row["start_positions"] : row["end_positions"] + 1]
    assert tokenizer.decode(answer) == "the story"
    assert row["id"] == 7
    assert "context" not in row


def test_a_missing_or_truncated_answer_points_to_the_first_token(tokenizer: Any) -> None:
    none = maps.answers(rows_with_answer("", 0), tokenizer)[0]
    cut = maps.answers(rows_with_answer("moving", 34), tokenizer, max_length=10)[0]

    assert (none["start_positions"], none["end_positions"]) == (cut["start_positions"], cut["end_positions"]) == (0, 0)


def test_an_answer_that_is_not_at_its_stated_position_is_reported(tokenizer: Any) -> None:
    with pytest.raises(DatasetError, match="row 0: the answer 'the story' is not at character 4 of 'context'"):
        maps.answers(rows_with_answer("the story", 4), tokenizer)
    with pytest.raises(DatasetError, match=r"row 0.*'answers'.*a str"):
        maps.answers(Rows([{"question": "a", "context": "b", "answers": "b"}]), tokenizer)


def test_chunk_cuts_the_concatenated_tokens_into_blocks(tokenizer: Any) -> None:
    texts = Rows({"text": "the film is dull " * n} for n in range(1, 8))
    tokens = maps.tokenize(texts, tokenizer, column="text")
    whole = [token for row in range(len(tokens)) for token in tokens[row]["input_ids"]]

    blocks = maps.chunk(tokens, tokenizer, block_size=16)

    assert [token for at in range(len(blocks)) for token in blocks[at]["input_ids"]] == whole[: len(whole) // 16 * 16]
    assert pickle.loads(pickle.dumps(blocks))[1] == blocks[1]
    loader: Any = DataLoader(blocks, batch_size=2, num_workers=1, collate_fn=list)
    assert next(iter(loader)) == [blocks[0], blocks[1]]
    with pytest.raises(IndexError):
        blocks[len(blocks)]


def test_chunk_refuses_untokenized_rows_and_too_few_tokens(tokenizer: Any) -> None:
    with pytest.raises(DatasetError, match=r"row 0.*chunk"):
        maps.chunk(Rows(ROWS), tokenizer, block_size=4)
    with pytest.raises(DatasetError, match="all rows together have 12 tokens, but one block needs 99"):
        maps.chunk(maps.tokenize(Rows(ROWS), tokenizer, column="text"), tokenizer, block_size=99)


def test_chunk_puts_exactly_one_end_token_between_texts(tokenizer: Any) -> None:
    tokenizer.eos_token = "[SEP]"
    data = Rows([{"input_ids": [7, 8]}, {"input_ids": [9, tokenizer.eos_token_id]}])

    blocks = maps.chunk(data, tokenizer, block_size=5)

    assert blocks[0]["input_ids"] == [7, 8, tokenizer.eos_token_id, 9, tokenizer.eos_token_id]


TEMPLATE = (
    "{% for m in messages %}{{ m.role }} {% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %} [SEP] {% endfor %}"
)
TALK = [{"role": "user", "content": "is the film dull"}, {"role": "assistant", "content": "the film is moving"}]


def test_chat_applies_the_template_and_can_label_only_the_assistant(tokenizer_folder: Path) -> None:
    tokenizer = hf_processors.tokenizer(path=str(tokenizer_folder), chat_template=TEMPLATE)

    row = maps.chat(Rows([{"messages": TALK, "id": 1}]), tokenizer, learn="assistant")[0]

    labels = [token for token in row["labels"] if token != -100]
    assert tokenizer.decode(labels) == "the film is moving"
    assert row["id"] == 1
    assert len(row["labels"]) == len(row["input_ids"])
    assert "labels" not in maps.chat(Rows([{"messages": TALK}]), tokenizer)[0]


def test_chat_labels_the_assistant_with_a_template_that_has_no_marks(tokenizer_folder: Path) -> None:
    template = TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    tokenizer = hf_processors.tokenizer(path=str(tokenizer_folder), chat_template=template)
    talk = [*TALK, {"role": "assistant", "content": "dull", "weight": 0}]

    whole, cut = (
        maps.chat(Rows([{"messages": talk}]), tokenizer, learn="assistant", max_length=longest)[0]
        for longest in (None, 9)
    )

    labels = [token for token in whole["labels"] if token != -100]
    assert tokenizer.decode(labels).endswith("the film is moving [SEP]")
    assert "dull" not in tokenizer.decode(labels)
    assert cut == {name: values[:9] for name, values in whole.items()}


def test_chat_reads_text_parts_as_one_text(tokenizer_folder: Path) -> None:
    tokenizer = hf_processors.tokenizer(path=str(tokenizer_folder), chat_template=TEMPLATE)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    rows = [{"messages": [{"role": "user", "content": content}]} for content in (parts, "a\nb")]
    of_parts, of_text = list(maps.chat(Rows(rows), tokenizer))

    assert of_parts == of_text
    with pytest.raises(DatasetError, match="at 0/content: part 0 is of type 'image'"):
        maps.chat(Rows([{"messages": [{"role": "user", "content": [{"type": "image"}]}]}]), tokenizer)


def test_chat_refuses_rows_and_templates_that_it_cannot_use(tokenizer: Any, tokenizer_folder: Path) -> None:
    with pytest.raises(NotBuildable, match="chat needs a chat template, and the tokenizer has none"):
        maps.chat(Rows([{"messages": TALK}]), tokenizer)
    plain = hf_processors.tokenizer(path=str(tokenizer_folder), chat_template="{{ messages[0].content }}")
    with pytest.raises(DatasetError, match=r"row 0: messages\[1\]: the chat template leaves out the text"):
        maps.chat(Rows([{"messages": TALK}]), plain, learn="assistant")
    with pytest.raises(DatasetError, match=r"row 0.*at 1/weight"):
        maps.chat(Rows([{"messages": [TALK[0], {**TALK[1], "weight": 0}]}]), plain)
    with pytest.raises(DatasetError, match=r"row 0.*'messages'.*no conversation"):
        maps.chat(Rows([{"messages": "hello"}]), plain)
    strict = hf_processors.tokenizer(
        path=str(tokenizer_folder), chat_template="{{ raise_exception('no system here') }}"
    )
    with pytest.raises(DatasetError, match=r"row 0.*no system here"):
        maps.chat(Rows([{"messages": TALK}]), strict)


def test_a_chat_template_cannot_reach_python_internals(tokenizer_folder: Path) -> None:
    reaching = hf_processors.tokenizer(
        path=str(tokenizer_folder), chat_template="{{ ''.__class__.__mro__[1].__subclasses__() }}"
    )

    with pytest.raises(DatasetError, match="the chat template refuses"):
        maps.chat(Rows([{"messages": TALK}]), reaching)


def test_rename_keep_and_drop_change_the_columns_of_rows() -> None:
    assert maps.rename(Rows(ROWS), columns={"text": "said"})[0] == {"said": "the film is dull", "label": 0}
    assert maps.rename(Rows([{"a": 1, "b": 2}]), columns={"a": "b", "b": "a"})[0] == {"b": 1, "a": 2}
    assert maps.keep(Rows(ROWS), columns=["label"])[1] == {"label": 1}
    assert maps.drop(Rows(ROWS), columns=["text"])[0] == {"label": 0}
    with pytest.raises(DatasetError, match="already a column 'label'"):
        maps.rename(Rows(ROWS), columns={"text": "label"})
    with pytest.raises(DatasetError, match="no column 'lable'"):
        maps.keep(Rows(ROWS), columns=["lable"])
    with pytest.raises(DatasetError, match="no column 'lable'"):
        maps.rename(Rows(ROWS), columns={"lable": "said"})


def test_class_names_become_numbers_and_are_stored_in_the_model_config() -> None:
    model = Classifier()
    data = Rows([{"label": "good", "tags": ["bad", "good"]}])

    rows = maps.labels(data, model, names=["bad", "good"])

    assert rows[0]["label"] == 1
    assert model.config.id2label == {0: "bad", 1: "good"}
    assert maps.labels(data, model, column="tags")[0]["tags"] == [0, 1]
    stars = maps.labels(Rows([{"label": 3}]), None, names=["1", "2", "3"])
    assert stars[0]["label"] == 2
    with pytest.raises(NotBuildable, match="another order: bad, good"):
        maps.labels(data, model, names=["good", "bad"])


def test_an_unknown_class_name_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(DatasetError, match=r"row 0.*'goood'") as error:
        maps.labels(Rows([{"label": "goood"}]), None, names=["bad", "good"])
    assert error.value.hint == "did you mean 'good'?"
    with pytest.raises(NotBuildable, match="names of the classes are not known"):
        maps.labels(Rows([{"label": "good"}]), None)
    with pytest.raises(NotBuildable, match="there are 3 names, and the model has 2 classes"):
        maps.labels(Rows([{"label": "a"}]), Classifier(), names=["a", "b", "c"])
