"""TRL's trainers learn from specs, as examples/fine-tuning shows, and continue bit for bit after a pause and a kill."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import openai
import pytest

import footplate
from tests.examples.conftest import Examples
from tests.support.system import standing_system

pytestmark = pytest.mark.matrix

BASE_MODELS: dict[str, Any] = {
    "o4-mini-2025-04-16": {
        "model": {"use": "hf/causal-lm", "args": {"path": "models://tiny-chat"}},
        "training": {"learning_rate": 0.02, "max_completion_length": 3, "bf16": False},
    },
    "gpt-4.1-mini-2025-04-14": {
        "model": {"use": "hf/causal-lm", "args": {"path": "models://tiny-chat"}},
        "training": {"learning_rate": 0.01, "bf16": False},
    },
    "gpt-4o-mini-2024-07-18": {
        "model": {"use": "hf/causal-lm", "args": {"path": "models://tiny-caller"}},
        "training": {"learning_rate": 0.01, "bf16": False},
    },
}
TOOLS: Any = [{
    "type": "function",
    "function": {"name": "paint", "parameters": {"type": "object", "properties": {"color": {"type": "string"}}}},
}]  # fmt: skip
WITH_TOOLS = (
    "{% for tool in tools or [] %}tool {{ tool.function.name }} </s> {% endfor %}"
    "{% for message in messages %}{{ message.role }} : {{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %} <tool_call> {{ call.function | tojson }} </tool_call>{% endfor %}"
    " </s> {% endfor %}{% if add_generation_prompt %}assistant :{% endif %}"
)
GRADER = """
def grade(sample, item) -> float:
    words = sample["output_text"].split()
    return sum(word == item["answer"] for word in words) / max(len(words), 1)
"""


@pytest.fixture(scope="module")
def trl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examples]:
    """Starts a system whose node has the extra `trl`."""
    libraries = str(Path(sys.prefix, "libraries"))
    folder = tmp_path_factory.mktemp("fine-tuning")
    table = folder / "base-models.json"
    table.write_text(json.dumps(BASE_MODELS))
    settings = {"FOOTPLATE_CODE": "on", "FOOTPLATE_OPENAI_MODELS": str(table), "PYTHONPATH": libraries}
    with standing_system(folder, **settings) as system:
        yield Examples(system)


def last(examples: Examples, job: str, name: str) -> float:
    return float([row[name] for row in examples.system.metrics(job) if name in row][-1])


def test_sft_with_an_adapter_learns_and_leaves_one_merged_model(trl: Examples) -> None:
    job = trl.run("fine-tuning/sft-lora.json")

    assert (job["state"], job["reason"]) == ("succeeded", "completed"), job
    assert last(trl, job["id"], "eval_mean_token_accuracy") > 0.8
    files = trl.outputs(job["id"])
    assert {"model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"} <= files.keys()
    assert not [name for name in files if "adapter" in name]
    assert json.loads(files["spec.json"])["training"]["max_steps"] == 40


def test_dpo_learns_to_prefer_the_chosen_answers(trl: Examples) -> None:
    job = trl.run("fine-tuning/dpo.json")

    assert job["state"] == "succeeded", job
    assert last(trl, job["id"], "rewards/accuracies") > 0.9


def test_a_reward_model_rates_the_chosen_answers_higher(trl: Examples) -> None:
    job = trl.run("fine-tuning/reward.json")

    assert job["state"] == "succeeded", job
    assert last(trl, job["id"], "accuracy") > 0.9


def test_grpo_increases_the_rewards_of_a_registered_and_a_bundled_function(trl: Examples) -> None:
    trl.prepare("fine-tuning")
    job = trl.ended(trl.system.submit(trl.with_code("fine-tuning/grpo.json")))

    assert job["state"] == "succeeded", job
    rows = [row for row in trl.system.metrics(job["id"]) if "reward" in row]
    assert rows[-1]["reward"] > rows[0]["reward"]
    assert {"rewards/similarity/mean", "rewards/brief/mean"} <= rows[-1].keys()


def test_sft_is_paused_killed_and_continued_and_ends_with_equal_weights(trl: Examples) -> None:
    spec = trl.spec("fine-tuning/sft-lora.json")
    model = {**spec["model"]["args"], "peft": {**spec["model"]["args"]["peft"], "lora_dropout": 0.1}}
    changes: dict[str, Any] = {
        "model": {**spec["model"], "args": model},
        "training": {
            **spec["training"],
            "max_steps": 12,
            "save_strategy": "steps",
            "save_steps": 2,
            "packing": True,
            "assistant_only_loss": True,
        },
    }
    system, gate = trl.system, trl.system.gate()
    quiet = trl.submit("fine-tuning/sft-lora.json", **changes)
    job = trl.submit("fine-tuning/sft-lora.json", **changes, callbacks=[gate.at(5, 8)])
    system.until_reached(job, gate, 5)
    system.kill_training(job)
    gate.open(5)
    system.until_reached(job, gate, 8)
    assert system.do(job, "pause").status_code == 202
    system.until_state(job, "paused")
    system.do(job, "resume")

    assert trl.ended(job)["state"] == trl.ended(quiet)["state"] == "succeeded"
    assert system.job(job)["attempt"] == 3
    assert system.final_weights(job) == system.final_weights(quiet)


def test_dpo_trains_on_two_processes(trl: Examples) -> None:
    spec = trl.spec("fine-tuning/dpo.json")
    training = {**spec["training"], "max_steps": 4, "logging_steps": 2, "per_device_train_batch_size": 2}

    job = trl.run("fine-tuning/dpo.json", training=training, resources={"processes_per_node": 2})

    assert (job["state"], job["progress"]["step"]) == ("succeeded", 4), job


@pytest.mark.parametrize(("name", "says"), [("embeddings", "right: 1.00"), ("setfit", "answers: good bad")])
def test_scripts_of_sentence_transformers_and_setfit_train_on_our_trainer(trl: Examples, name: str, says: str) -> None:
    job = trl.ended(trl.system.submit(trl.with_code(f"embeddings/{name}.json")))

    assert job["state"] == "succeeded", job
    lines = [str(event["data"]) for event in trl.system.events(job["id"]) if event["kind"] == "line"]
    assert any("trained by footplate.trainer" in line and says in line for line in lines), lines
    assert "model.safetensors" in trl.outputs(job["id"])


def test_a_model_trained_by_trl_chats_with_openais_client(trl: Examples) -> None:
    system, job = trl.system, trl.submit("fine-tuning/sft-lora.json")
    assert trl.ended(job)["state"] == "succeeded"
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


def test_a_model_trained_on_tool_calls_calls_tools_through_openais_client(trl: Examples) -> None:
    """The rows have the form of OpenAI's guide: a call's arguments are JSON text, and some rows have no tools."""
    system, rows = trl.system, list(rows_with_calls())
    write_caller(system.folder / "models/tiny-caller", rows)
    client = openai.OpenAI(base_url=f"{system.url}/v1", api_key="none")
    file = client.files.create(file=("calls.jsonl", "\n".join(map(json.dumps, rows)).encode()), purpose="fine-tune")
    method: Any = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 50, "batch_size": 4}}}

    job = client.fine_tuning.jobs.create(model="gpt-4o-mini-2024-07-18", training_file=file.id, method=method)
    assert trl.ended(job.id)["state"] == "succeeded"
    name = client.fine_tuning.jobs.retrieve(job.id).fine_tuned_model
    assert name is not None
    question: Any = [{"role": "user", "content": "paint the snow"}]
    [choice] = client.chat.completions.create(model=name, messages=question, tools=TOOLS, temperature=0).choices
    [plain] = client.chat.completions.create(
        model=name, messages=[{"role": "user", "content": "what color is the snow ?"}], temperature=0, max_tokens=3,
        logprobs=True, top_logprobs=2,
    ).choices  # fmt: skip

    [call] = choice.message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("paint", {"color": "white"})
    assert (choice.finish_reason, plain.message.content) == ("tool_calls", "white")
    assert plain.logprobs is not None
    assert [token.token for token in plain.logprobs.content or []] == [" white"], "a token has its space"


def test_only_the_assistants_tokens_count_in_the_loss_of_a_supervised_job(trl: Examples) -> None:
    """All other words are random, so a loss that includes them stays above 1."""
    trl.prepare("fine-tuning")
    system = trl.system
    client = openai.OpenAI(base_url=f"{system.url}/v1", api_key="none")
    random = Random(0)
    things = ("sky", "grass", "snow", "coal", "sun", "rose")
    vocabulary = (*things, "blue", "green", "white", "black", "what", "color", "is", "the", "?")

    def turn(role: str, **more: Any) -> dict[str, Any]:
        return {"role": role, "content": " ".join(random.choices(vocabulary, k=4)), **more}

    answer = {"role": "assistant", "content": "the sky is blue"}
    rows = [
        {"messages": [turn("system"), turn("user"), turn("assistant", weight=0), turn("user"), answer]}
        for _ in range(80)
    ]
    content = "\n".join(map(json.dumps, rows)).encode()
    file = client.files.create(file=("chats.jsonl", content), purpose="fine-tune")
    method: Any = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2, "batch_size": 4}}}

    job = client.fine_tuning.jobs.create(
        model="gpt-4.1-mini-2025-04-14", training_file=file.id, validation_file=file.id, method=method
    )
    assert trl.ended(job.id)["state"] == "succeeded"

    events = client.fine_tuning.jobs.list_events(job.id)
    data: list[Any] = [event.data for event in events if event.type == "metrics"]
    losses = [values["train_loss"] for values in data if "train_loss" in values]
    first, *_ = client.fine_tuning.jobs.checkpoints.list(job.id)
    assert losses[-1] > 2, "the events list the newest loss first"
    assert losses[0] < 0.1
    assert first.metrics.valid_loss is not None
    assert first.metrics.valid_loss < 0.1


def rows_with_calls() -> Iterator[dict[str, Any]]:
    for thing, color in (("sky", "blue"), ("grass", "green"), ("snow", "white"), ("coal", "black")):
        arguments = json.dumps({"color": color})
        call = {"id": "call_1", "type": "function", "function": {"name": "paint", "arguments": arguments}}
        painted = [{"role": "user", "content": f"paint the {thing}"}, {"role": "assistant", "tool_calls": [call]}]
        messages = [
            {"role": "user", "content": f"what color is the {thing} ?"},
            {"role": "assistant", "content": color},
        ]
        yield {"messages": messages}
        yield {"messages": painted, "tools": TOOLS, "parallel_tool_calls": False}


def write_caller(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Writes a tiny untrained Llama whose chat template supports tools."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = sorted({word for row in rows for word in row["messages"][0]["content"].split()})
    pieces = [f'"{color}"}}}}' for color in ("blue", "green", "white", "black")]
    tokens = dict.fromkeys([
        "<pad>", "<unk>", "</s>", "user", "assistant", "tool", ":", *words, "blue", "green", "white", "black",
        "<tool_call>", "</tool_call>", '{"name":', '"paint",', '"arguments":', '{"color":', *pieces,
    ])  # fmt: skip
    inner = Tokenizer(models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", pad_token="<pad>", eos_token="</s>", model_max_length=64
    )
    tokenizer.chat_template = WITH_TOOLS
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokens), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, bos_token_id=None, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def test_reinforcement_by_openais_sdk_increases_a_python_graders_reward(trl: Examples) -> None:
    trl.prepare("fine-tuning")
    system = trl.system
    client = openai.OpenAI(base_url=f"{system.url}/v1", api_key="none")
    question = [{"role": "user", "content": "what color is the sky ?"}]
    in_parts = [{"role": "user", "content": [{"type": "text", "text": question[0]["content"]}]}]
    rows = "".join(json.dumps({"messages": messages, "answer": "blue"}) + "\n" for messages in (question, in_parts)) * 3
    file = client.files.create(file=("rows.jsonl", rows.encode()), purpose="fine-tune")
    client.files.wait_for_processing(file.id)

    job = client.fine_tuning.jobs.create(
        model="o4-mini-2025-04-16",
        training_file=file.id,
        validation_file=file.id,
        suffix="colors",
        method={
            "type": "reinforcement",
            "reinforcement": {
                "grader": {"type": "python", "name": "share of right words", "source": GRADER},
                "hyperparameters": {"n_epochs": 15, "batch_size": 3, "eval_interval": 15, "eval_samples": "auto"},
            },
        },
    )
    assert trl.ended(job.id)["state"] == "succeeded"

    events = list(client.fine_tuning.jobs.list_events(job.id, limit=10))
    data: list[Any] = [event.data for event in events if event.type == "metrics"]
    rewards = [values["train_mean_reward"] for values in data if "train_mean_reward" in values]
    assert len(rewards) == 30
    assert rewards[0] > 0.6 > 0.3 > rewards[-1], "the events list the newest reward first"
    first, *_ = client.fine_tuning.jobs.checkpoints.list(job.id)
    assert first.step_number == 30
    assert first.metrics.to_dict()["valid_mean_reward"] > 0.6
    finished_job = client.fine_tuning.jobs.retrieve(job.id)
    assert ",train_mean_reward,valid_mean_reward" in client.files.content(finished_job.result_files[0]).text
    for model in (finished_job.fine_tuned_model, first.fine_tuned_model_checkpoint):
        answer = client.chat.completions.create(model=str(model), messages=question, temperature=0, max_tokens=1)  # type: ignore[arg-type]
        assert answer.choices[0].message.content == "blue"
