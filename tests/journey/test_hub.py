"""A job trains on one commit of a hub, which is fetched before training and stays the same to the job's end.

The hub is a stand-in for its HTTP, a real process; huggingface_hub is real.
"""

from __future__ import annotations

import json
import runpy
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hub_server import TOKEN, HubServer, hub_server
from tests.support.processes import REPOSITORY, Processes
from tests.support.redis_server import RedisServer
from tests.support.system import JSON, System, assert_whole

PREPARE = runpy.run_path(str(REPOSITORY / "examples/sentences/prepare.py"))
TEXTS = ["the film is dull", "the cast is warm", "the story is moving", "the film is moving"]
BERT = {
    "model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
    "max_position_embeddings": 64, "num_labels": 2,
}  # fmt: skip
TRAINED: JSON = {
    "model": {"use": "hf/sequence-classification", "args": {"path": "hub://me/tiny"}},
    "data": {
        "train": {"use": "hf/dataset", "args": {"path": "hub://me/sentences", "split": "train"}},
        "map": [{"use": "tokenize", "args": {"column": "sentence", "max_length": 16}}],
    },
    "training": {
        "max_steps": 30, "per_device_train_batch_size": 4, "logging_steps": 1, "save_strategy": "steps",
        "save_steps": 5, "seed": 7,
    },
}  # fmt: skip


@pytest.fixture
def hub(processes: Processes) -> Iterator[HubServer]:
    with hub_server(processes) as hub:
        yield hub


@pytest.fixture
def system(processes: Processes, redis: RedisServer, sqlite_url: str, hub: HubServer) -> System:
    return System(processes, redis, sqlite_url, FOOTPLATE_CODE="on", **hub.environment)


def a_model(folder: Path, seed: int) -> Path:
    """Writes a model as save_pretrained does, with a file beside it that nobody may open."""
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    PREPARE["write_tokenizer"](folder, TEXTS)
    tokens = len(AutoTokenizer.from_pretrained(folder))
    torch.manual_seed(seed)
    config = AutoConfig.for_model(**BERT, vocab_size=tokens)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    (folder / "modeling_tiny.py").write_text("raise SystemExit('never run')")
    return folder


def rows(labels: str) -> bytes:
    lines = [json.dumps({"sentence": text, "label": int(label)}) for text, label in zip(TEXTS * 8, labels, strict=True)]
    return "\n".join(lines).encode()


def put_there(hub: HubServer, folder: Path, seed: int) -> tuple[str, str]:
    """A model and a dataset: (commit, commit)."""
    model = hub.push_folder("models/me/tiny", a_model(folder / f"model-{seed}", seed))
    data = {"data/train.jsonl": rows("0110" * 8 if seed else "1001" * 8), "loader.py": b"raise SystemExit"}
    return model, hub.push("datasets/me/sentences", data)


@pytest.mark.matrix
def test_a_job_trains_on_one_commit_whatever_is_pushed_while_it_is_killed(
    system: System, hub: HubServer, tmp_path: Path
) -> None:
    first = put_there(hub, tmp_path, seed=1)
    system.start()
    gate = system.gate()
    quiet = system.submit(TRAINED)
    expected = system.until_settled(quiet)
    job = system.submit(TRAINED, callbacks=[gate.at(12)])
    system.until_reached(job, gate, 12)
    system.until_checkpoint(job, 10)
    second = put_there(hub, tmp_path, seed=0)
    assert set(first).isdisjoint(second)
    system.nodes[1].signal(signal.SIGKILL)
    system.nodes[1].wait(10)
    # Another machine, whose cache is empty: what it fetches is not what main is now.
    gate.open(12)
    system.start_node(2, FOOTPLATE_HUB_CACHE=str(tmp_path / "another"))

    done = system.until_settled(job)

    assert (expected["state"], done["state"], done["attempt"]) == ("succeeded", "succeeded", 2), done["error"]
    assert system.losses(job) == system.losses(quiet)
    assert system.final_weights(job) == system.final_weights(quiet)
    events = system.events(job)
    assert_whole(events)
    notes = [event["data"] for event in events if event["kind"] == "note" and "commit" in event["data"]]
    assert {note["commit"] for note in notes} == set(first)
    assert [note["code"] for note in notes].count("hub_pinned") == 2, "it was settled once, by the first attempt"
    fetched = {path.name for path in (tmp_path / "another").rglob("*")}
    assert {"model.safetensors", "tokenizer.json", "train.jsonl"} <= fetched
    assert not fetched & {"pytorch_model.bin", "modeling_tiny.py", "loader.py"}
    assert any(line.endswith(TOKEN) for line in hub.asked)
    assert TOKEN not in json.dumps(events)
    # A new one begins with what is there now, and says so.
    new = system.until_settled(system.submit(TRAINED))
    assert new["state"] == "succeeded"
    assert second[0] in json.dumps(system.events(new["id"]))
