"""Trying and exporting what was trained, over a real service and node."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import openai
import pytest
import redis
from tokenizers import Tokenizer, models, pre_tokenizers

import footplate
from tests.examples.conftest import Examples
from tests.support.system import System

pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module")
def babbler(examples: Examples) -> str:
    """A job whose model never ends a text by itself, because its tokenizer has no token for an end."""
    folder = examples.system.folder / "models" / "endless"
    words = Tokenizer(models.WordLevel({word: at for at, word in enumerate("abcdef")}, unk_token="a"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder.mkdir(parents=True)
    words.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "a"}')
    rows = examples.system.folder / "data" / "endless.jsonl"
    rows.parent.mkdir(parents=True, exist_ok=True)
    rows.write_text("".join(json.dumps({"text": "a b c d e f"}) + "\n" for _ in range(8)))
    config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 2048}
    job = examples.system.submit({
        "model": {"use": "hf/causal-lm", "args": {"config": config}},
        "processor": {"use": "hf/tokenizer", "args": {"path": "models://endless"}},
        "data": {"train": "data://endless.jsonl", "map": [{"use": "tokenize", "args": {"column": "text"}}]},
        "training": {"max_steps": 2},
    })  # fmt: skip
    assert examples.ended(job)["state"] == "succeeded"
    return job


def streamed(system: System, **body: Any) -> list[Any]:
    """The events of a streamed completion."""
    answer = system.client.post("/v1/completions", json={"stream": True, **body})
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def session_of(system: System, job: str) -> dict[str, Any]:
    rows = system.get("/jobs", state="starting,running")["data"]
    return next(row for row in rows if row["metadata"].get("of") == job)


def test_a_trained_adapter_answers_and_its_export_answers_the_same(examples: Examples, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    system, job = examples.system, examples.submit("language-models/lora.json")
    assert examples.ended(job)["state"] == "succeeded"
    body = {"model": job, "prompt": "anna", "max_tokens": 12, "temperature": 0}
    whole = system.client.post("/v1/completions", json=body).json()["choices"][0]["text"]
    *parts, last = streamed(system, **body)
    made = system.client.post(f"/jobs/{job}/export", json={"merge": True}).json()["id"]
    assert examples.ended(made)["state"] == "succeeded"
    for name, content in examples.outputs(made).items():
        (tmp_path / name).write_bytes(content)

    assert last == "[DONE]"
    assert "".join(part["choices"][0]["text"] for part in parts) == whole
    assert len(whole.split()) > 2
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    prompt = tokenizer("anna", return_tensors="pt", add_special_tokens=False)["input_ids"]
    generated = model.generate(prompt, max_new_tokens=12, do_sample=False)[0, prompt.shape[1] :]
    assert tokenizer.decode(generated, skip_special_tokens=True) == whole
    assert not list(tmp_path.glob("adapter*"))
    assert job in (tmp_path / "README.md").read_text()


def test_what_trl_has_trained_chats_with_openai_s_client(examples: Examples) -> None:
    system, job = examples.system, examples.submit("fine-tuning/sft-lora.json")
    assert examples.ended(job)["state"] == "succeeded"
    client = openai.OpenAI(base_url=f"{system.url}/v1", api_key="none")
    name = next(model.id for model in client.models.list() if model.id.endswith(job.removeprefix("job_")))

    stream = client.chat.completions.create(
        model=name, messages=[{"role": "user", "content": "anna paris"}], temperature=0, max_tokens=8, stream=True
    )
    text = "".join(part.choices[0].delta.content or "" for part in stream)
    vectors = client.embeddings.create(model=name, input=["anna", "paris"]).data
    messages = [{"role": "user", "content": "anna paris"}]
    ours = footplate.Client(system.url).jobs.get(job).generate(messages, temperature=0, max_tokens=8)

    assert text.split()
    assert "".join(ours) == text
    assert len(vectors[0].embedding) == len(vectors[1].embedding) > 0


def test_a_process_killed_in_the_midst_of_a_stream_ends_it_with_an_error(examples: Examples, babbler: str) -> None:
    system = examples.system
    body = {"model": babbler, "prompt": "a b", "max_tokens": 1024, "stream": True}
    with system.client.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        first = json.loads(next(lines).removeprefix("data: "))
        session = session_of(system, babbler)["id"]
        system.kill_training(session)
        rest = [json.loads(line.removeprefix("data: ")) for line in lines if line and "[DONE]" not in line]
    ended = examples.ended(session)
    again = system.client.post("/v1/completions", json={**body, "stream": False, "max_tokens": 3})

    assert first["choices"][0]["text"]
    assert rest[-1]["error"]["code"] == "serving_ended"
    assert session in rest[-1]["error"]["message"]
    assert (ended["state"], ended["reason"]) == ("failed", "crashed")
    assert again.json()["usage"]["completion_tokens"] == 3


def test_a_request_that_a_dead_process_had_not_started_is_answered_by_the_next(
    examples: Examples, babbler: str
) -> None:
    system, answers = examples.system, []
    body = {"model": babbler, "prompt": "a b", "max_tokens": 3}
    assert system.client.post("/v1/completions", json=body).status_code == 200
    session = session_of(system, babbler)["id"]
    [pid, *_] = system.training_pids(session)
    os.kill(pid, signal.SIGSTOP)
    thread = threading.Thread(target=lambda: answers.append(system.client.post("/v1/completions", json=body)))
    thread.start()
    queue = f"fp:serve:{session}"
    client = redis.Redis.from_url(system.redis.url)
    system.until(lambda: not client.exists(queue), within=20, what="the request is taken", job=session)
    os.kill(pid, signal.SIGKILL)
    thread.join(60)

    assert answers[0].status_code == 200, answers[0].text
    assert answers[0].json()["usage"]["completion_tokens"] == 3
    assert session_of(system, babbler)["id"] != session


def test_an_idle_session_gives_its_slot_back_and_its_checkpoint_can_go(examples: Examples, babbler: str) -> None:
    system = examples.system
    checkpoint = system.get(f"/jobs/{babbler}/checkpoints")["data"][0]["id"]
    for row in system.get("/jobs", state="starting,running")["data"]:
        system.do(row["id"], "cancel")
        examples.ended(row["id"])
    own = system.get(f"/jobs/{babbler}/spec")
    fields = {name: own[name] for name in ("model", "processor")}
    place = {"job": babbler, "checkpoint": checkpoint, "mode": "weights"}
    session = system.submit({**fields, "resume_from": place, "serve": {"idle": "2s"}})
    answer = system.client.post("/v1/completions", json={"model": babbler, "prompt": "a", "max_tokens": 2}).json()

    assert answer["usage"]["completion_tokens"] == 2
    assert system.state(session) in ("running", "succeeded")
    done = examples.ended(session)
    assert (done["state"], done["result"]["requests"]) == ("succeeded", 1)
    assert system.client.delete(f"/jobs/{babbler}").status_code in (200, 204)
