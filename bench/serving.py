"""Measures serving sessions: the time to the first token, memory with several adapters, and training beside them."""

from __future__ import annotations

import json
import time
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Event

import httpx2

from bench import report
from bench.post import cpu_seconds
from bench.system import JSON, System, beside, submit, system, until_state
from tests.support.processes import children

WORDS = [f"w{number}" for number in range(2000)]
LORA: JSON = {"r": 8, "target_modules": ["q_proj", "v_proj"]}
PHASE_SECONDS = 6.0
"""The time over which steps are counted, alone and beside a session in turns."""


def run(folder: Path, *, quick: bool = False) -> list[report.Row]:
    with system(folder / "serving", slots=3) as running_system:
        write_model(folder / "serving", layers=2 if quick else 8)
        first_session = cold(running_system, train(running_system.client, peft=LORA))
        node = running_system.nodes["node-1"]
        node.until(lambda: "for later jobs" in node.output, within=120, what="the node has imported transformers")
        later_sessions = [
            cold(running_system, train(running_system.client, peft=LORA)) for _ in range(2 if quick else 7)
        ]
        shared_mb = memory_of_sessions(running_system, [train(running_system.client, peft=LORA) for _ in range(3)])
        separate_mb = memory_of_sessions(running_system, [train(running_system.client) for _ in range(3)])
        step_ratios = steps_beside_serving(
            running_system.client, train(running_system.client, peft=LORA), rounds=2 if quick else 4
        )
    return [
        report.Row("job succeeded → first token, of a node's first language model", [first_session[0]], "s"),
        report.Row("the same: CPU time of the session's process", [first_session[1]], "s"),
        report.Row(
            f"job succeeded → first token, of {len(later_sessions)} later ones",
            [wall for wall, _ in later_sessions],
            "s",
            "≤ 3",
        ),
        report.Row("the same: CPU time of the session's process", [cpu for _, cpu in later_sessions], "s"),
        report.Row("memory of three adapters on one base", [shared_mb], "MB"),
        report.Row("memory of three models of the same size", [separate_mb], "MB"),
        report.Row("step time of training beside a session that answers, relative to training alone", step_ratios, "×"),
    ]


def write_model(home: Path, layers: int) -> None:
    """Writes a Llama that has learned nothing, with its tokenizer and some rows."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token=WORDS[0]))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=512, intermediate_size=2048, num_hidden_layers=layers, num_attention_heads=8,
        max_position_embeddings=1024, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(home / "models/llama")
    PreTrainedTokenizerFast(tokenizer_object=inner, pad_token=WORDS[0]).save_pretrained(home / "models/llama")
    (home / "data").mkdir(exist_ok=True)
    (home / "data/rows.jsonl").write_text("".join(json.dumps({"text": " ".join(WORDS[:8])}) + "\n" for _ in range(8)))


def train(client: httpx2.Client, peft: JSON | None = None) -> str:
    """Trains one step, and returns the job once it has succeeded."""
    spec: JSON = {
        "model": {"use": "hf/causal-lm", "args": {"path": "models://llama", **({"peft": peft} if peft else {})}},
        "processor": {"use": "hf/tokenizer", "args": {"path": "models://llama"}},
        "data": {"train": "data://rows.jsonl", "map": [{"use": "tokenize", "args": {"column": "text"}}]},
    }
    job = submit(client, spec, max_steps=1)
    until_state(client, job, within=300)
    return job


def stream_answer(client: httpx2.Client, job: str, tokens: int, is_over: Event | None = None) -> float:
    """Streams an answer. Returns the seconds until its first token."""
    body = {"model": job, "prompt": "w1 w2 w3", "max_tokens": tokens, "temperature": 0, "stream": True}
    began, first_token_seconds = time.monotonic(), 0.0
    with client.stream("POST", "/v1/completions", json=body, timeout=120) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                assert "error" not in json.loads(line.removeprefix("data: ")), line
                first_token_seconds = first_token_seconds or time.monotonic() - began
            if is_over is not None and is_over.is_set():
                break
    return first_token_seconds


def cold(running_system: System, job: str) -> tuple[float, float]:
    """Returns the seconds from a job's success to the first token of a new session, and its process's CPU time."""
    seconds = stream_answer(running_system.client, job, tokens=4)
    [process] = _sessions(running_system)
    process_seconds = cpu_seconds(process)
    end_sessions(running_system.client)
    return seconds, process_seconds


def end_sessions(client: httpx2.Client) -> None:
    rows = client.get("/jobs?state=starting,running").json()["data"]
    for row in rows:
        client.post(f"/jobs/{row['id']}/cancel", json={"mode": "kill"}).raise_for_status()
    deadline = time.monotonic() + 60
    while client.get("/jobs?state=starting,running,stopping").json()["data"]:
        assert time.monotonic() < deadline, "the sessions do not end"
        time.sleep(0.05)


def memory_of_sessions(running_system: System, jobs: list[str]) -> float:
    """Returns the memory in MB that sessions for these jobs take together, and ends the sessions."""
    for job in jobs:
        stream_answer(running_system.client, job, tokens=4)
    total_mb = sum(map(_proportional_mb, _sessions(running_system)))
    end_sessions(running_system.client)
    return total_mb


def _sessions(running_system: System) -> list[int]:
    """Returns the processes that the node's warm parent has forked."""
    [node] = running_system.nodes.values()
    warm_parents = [pid for pid in children(node.pid) if b"warm_parent" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return [pid for parent in warm_parents for pid in children(parent)]


def _proportional_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1000


def steps_beside_serving(client: httpx2.Client, tried: str, rounds: int) -> list[float]:
    """Returns the ratio of step times, for each round of a phase alone and a phase beside a session that answers."""
    stream_answer(client, tried, tokens=4)
    training = submit(client, max_steps=10_000_000, logging_steps=100, save_strategy="no")
    ratios = []
    _steps_of(client, training)
    for _ in range(rounds):
        steps_alone = _steps_of(client, training)
        with answering(client, tried):
            steps_beside = _steps_of(client, training)
        ratios.append(steps_alone / steps_beside)
    end_sessions(client)
    return ratios


def answering(client: httpx2.Client, job: str) -> AbstractContextManager[None]:
    """Requests tokens from a session until the end of the block."""

    def ask(is_over: Event) -> None:
        while not is_over.is_set():
            stream_answer(client, job, 1000, is_over)

    return beside(ask)


def _steps_of(client: httpx2.Client, job: str) -> int:
    """Returns the number of steps in one phase."""
    deadline = time.monotonic() + 60
    while (row := client.get(f"/jobs/{job}").json())["progress"] is None:
        assert time.monotonic() < deadline, row
        time.sleep(0.05)
    time.sleep(PHASE_SECONDS)
    return int(client.get(f"/jobs/{job}").json()["progress"]["step"]) - int(row["progress"]["step"])
