"""Tests uploads of models and checkpoints to a stand-in for the hub's HTTP API."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import transformers
from huggingface_hub import ModelCard

import footplate
from footplate.components import toy
from footplate.contract.errors import InvalidSpec
from footplate.trainer.callbacks import TrainerCallback
from tests.support.factories import read_arguments
from tests.support.hub import Hub, a_hub
from tests.support.training import Events
from tests.trainer import sides


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with a_hub() as result:
        monkeypatch.setenv("HF_ENDPOINT", result.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield result


def a_trainer(folder: Path, *callbacks: Any, **values: Any) -> Any:
    base = {"max_steps": 4, "save_steps": 2, "logging_steps": 2, "disable_tqdm": True, "hub_token": "hf_secret"}
    options = values.pop("options", {})
    return footplate.Trainer(
        options.pop("model", None) or toy.mlp(hidden=4),
        footplate.TrainingArguments(str(folder / "my-model"), **{**base, **values}),
        train_dataset=options.pop("rows", None) or toy.classification(n=32),
        eval_dataset=toy.classification(n=8, seed=1) if "eval_strategy" in values else None,
        callbacks=list(callbacks),
        **options,
    )


class OneByOne(TrainerCallback):
    """Waits for the end of each push, so that no push is skipped."""

    def __init__(self) -> None:
        self.trainer: Any = None

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer._finish_current_push()


def pushed(folder: Path, hub: Hub, **values: Any) -> Any:
    waits, events = OneByOne(), Events()
    waits.trainer = a_trainer(folder, waits, events, push_to_hub=True, **values)
    waits.trainer.train()
    return waits.trainer, events


MODEL = {"model.safetensors", "training_args.bin"}
RUN = {"optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "training_args.json", "manifest.json"}


@pytest.mark.parametrize(
    ("strategy", "folders", "commits"),
    [
        ("end", set(), 0),
        ("every_save", set(), 2),
        ("checkpoint", {"last-checkpoint"}, 4),
        ("all_checkpoints", {"checkpoint-2", "checkpoint-4"}, 4),
    ],
)
def test_hub_strategy_decides_what_is_pushed_during_training(
    tmp_path: Path, hub: Hub, strategy: str, folders: set[str], commits: int
) -> None:
    trainer, events = pushed(tmp_path, hub, hub_strategy=strategy)

    repository = hub.repositories["me/my-model"]
    assert trainer.hub_model_id == "me/my-model"
    assert len(repository.commits) == commits
    assert events.names.count("on_push_begin") == (2 if commits else 0)
    files = set(repository.files())
    whole = {f"{folder}/{name}" for folder in folders for name in RUN | MODEL}
    assert files == (MODEL | whole if commits else set())
    if commits:
        assert repository.messages[0] == "Training in progress, step 2"
        weights = (tmp_path / "my-model" / "checkpoint-4" / "model.safetensors").read_bytes()
        assert repository.files()["model.safetensors"] == weights


def test_hub_arguments_set_the_repository_the_branch_and_the_token(tmp_path: Path, hub: Hub) -> None:
    where = {"hub_model_id": "lab/net", "hub_private_repo": True, "hub_revision": "trial"}

    pushed(tmp_path, hub, **where)

    repository = hub.repositories["lab/net"]
    assert repository.private is True
    assert {branch for branch, *_ in repository.commits} == {"trial"}
    assert hub.tokens == {"hf_secret"}
    paths = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"hf_secret" in path.read_bytes() for path in paths), "the token must not be in any file"
    assert footplate.TrainingArguments("x", hub_token="hf_secret").to_dict()["hub_token"] == "<HUB_TOKEN>"


@pytest.mark.parametrize("always", [False, True])
def test_training_continues_during_a_slow_push(tmp_path: Path, hub: Hub, always: bool) -> None:
    """A push during another push is skipped unless `always` is set. A checkpoint is not deleted during its push."""
    hub.gate.clear()

    class Look(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 2:
                return
            if state.global_step == 3:
                assert hub.commit_arrived.wait(60)
            if state.global_step == 7:
                there.extend(sorted(path.name for path in Path(args.output_dir).glob("checkpoint-*")))
                hub.gate.set()

    there: list[str] = []
    always_push = {"push_to_hub": True, "hub_always_push": always, "save_total_limit": 1}
    a_trainer(tmp_path, Look(), max_steps=8, **always_push).train()

    assert there == (["checkpoint-2", "checkpoint-4", "checkpoint-6"] if always else ["checkpoint-2", "checkpoint-6"])
    steps = [message.rsplit(" ", 1)[1] for message in hub.repositories["me/my-model"].messages]
    assert {"2"} < set(steps) if always else steps[0] == "2"
    assert ("4" in steps, "6" in steps) == (always, always)
    assert hub.at_once == 1, "a second push at the same time could overtake the first"


def test_push_in_progress_can_be_set_only_to_none_which_forgets_the_uploads(tmp_path: Path, hub: Hub) -> None:
    trainer = a_trainer(tmp_path, push_to_hub=True)
    trainer._footplate.pushes[Future()] = tmp_path
    assert not trainer.push_in_progress.is_done()
    with pytest.raises(AttributeError, match="can only be set to None"):
        trainer.push_in_progress = trainer.push_in_progress  # type: ignore[assignment]

    trainer.push_in_progress = None

    assert trainer.push_in_progress is None


def test_a_failed_push_is_logged_and_training_continues(
    tmp_path: Path, hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    hub.refuses = True

    with caplog.at_level(logging.WARNING, "footplate.trainer"):
        trainer, _ = pushed(tmp_path, hub)

    assert trainer.state.global_step == 4
    assert "checkpoint-2 was not pushed to me/my-model" in caplog.text
    assert "the stand-in refuses" in caplog.text or "403" in caplog.text


def test_push_to_hub_uploads_the_model_and_its_card(tmp_path: Path, hub: Hub) -> None:
    rows = [{"input_ids": sentence, "label": sentence[0] % 3} for sentence in sides.sentences()]
    bert = sides.bert("BertForSequenceClassification", num_labels=3)
    bert.model_tags = ["mine"]  # type: ignore[assignment]
    events = Events()
    trainer = footplate.Trainer(
        bert,
        sides.arguments(
            footplate, tmp_path / "my-model", push_to_hub=True, hub_strategy="end", eval_strategy="epoch",
            save_strategy="epoch", hub_token="hf_secret",
        ),
        train_dataset=rows,
        eval_dataset=rows[:5],
        processing_class=sides.tokenizer(),
        callbacks=[events],
    )  # fmt: skip
    trainer.train()
    assert hub.repositories["me/my-model"].commits == []

    trainer.save_model()
    commit = trainer.push_to_hub(
        tags="more", license="mit", tasks="text-classification", dataset="Sentences", dataset_tags="lab/sentences",
        finetuned_from="lab/base", language="en",
    )  # fmt: skip

    repository = hub.repositories["me/my-model"]
    assert repository.messages == ["Model save", "End of training"]
    assert commit.oid == f"{2:040x}"
    assert events.names.count("on_push_begin") == 2
    files = set(repository.files())
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= files
    assert not any(name.startswith("checkpoint-") for name in files)
    text = repository.files()["README.md"].decode()
    card = ModelCard(text).data.to_dict()
    assert (card["library_name"], card["license"], card["base_model"]) == ("transformers", "mit", "lab/base")
    assert card["tags"] == ["more", "mine", "generated_from_trainer"]
    result = card["model-index"][0]["results"][0]
    assert result["dataset"] == {"name": "Sentences", "type": "lab/sentences"}
    assert [row["type"] for row in result["metrics"]] == ["loss"]
    assert "- learning_rate: 0.005" in text
    assert text.count("\n| ") == 4, "the table has two rows of a head and a row for each of two evaluations"
    assert "hf_secret" not in text
    (tmp_path / "read").mkdir()
    for name, content in repository.files().items():
        (tmp_path / "read" / name).write_bytes(content)
    assert transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "read").config.num_labels == 3


def test_an_existing_model_card_keeps_its_fields(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path)
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "README.md").write_text("---\nlicense: mit\ntags:\n- kept\n---\n\n# Mine\n")

    trainer.create_model_card(tags=["new"])

    card = ModelCard.load(folder / "README.md").data.to_dict()
    assert card["license"] == "mit"
    assert card["tags"] == ["new", "kept", "generated_from_trainer"]


def test_push_to_hub_without_huggingface_hub_is_refused_with_the_pip_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)

    with pytest.raises(ImportError, match=r"'footplate\[hub\]'"):
        a_trainer(tmp_path, push_to_hub=True)


def test_a_job_may_set_hub_arguments_only_to_their_neutral_values() -> None:
    neutral = {"push_to_hub": False, "hub_strategy": "every_save", "hub_token": None}
    assert json.dumps(read_arguments(neutral).to_dict())
    for name, value in {"push_to_hub": True, "hub_token": "x", "hub_strategy": "end", "hub_always_push": True}.items():
        with pytest.raises(InvalidSpec) as error:
            read_arguments({name: value})
        assert [problem.code for problem in error.value.problems] == ["not_available_yet"]
