"""Tests that a serving session answers as the model itself would, and refuses other requests by name."""

from __future__ import annotations

import shutil
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from footplate.contract.serving import AdapterOffer, AnswerPieceKind, ServingRequest, Work
from footplate.runtime.serving import session
from footplate.trainer.checkpoint import commit
from tests.components.conftest import tokenizer_folder as tokenizer_folder
from tests.runtime.serving import ServedModel, served
from tests.support.processes import until

TEMPLATE = "{% for m in messages %}{{ m['content'] + ' ' }}{% endfor %}"
GPT: dict[str, Any] = {
    "model": {"use": "hf/causal-lm", "args": {"config": {
        "model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 64, "initializer_range": 1.0,
    }}},
    "processor": {"use": "hf/tokenizer", "args": {"path": "models://tokenizer", "chat_template": TEMPLATE}},
}  # fmt: skip
TOOL = {"type": "function", "function": {"name": "paint", "parameters": {"type": "object"}}}
GREEDY: dict[str, Any] = {"temperature": 0.0, "top_p": 1.0, "n": 1, "stop": [], "seed": None, "stream": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Path:
    root: Path = tmp_path_factory.mktemp("served")
    shutil.copytree(tokenizer_folder, root / "tokenizer")
    return root


@pytest.fixture(scope="module")
def gpt(folder: Path) -> Iterator[ServedModel]:
    # Without a seed, the weights depend on earlier tests. Some weights give an unknown token or an end token first.
    torch.manual_seed(2)
    with served(folder, GPT, max_batch=4, max_tokens=40) as model:
        yield model


def generated_alone(model: ServedModel, prompt: str, tokens: int) -> str:
    """Returns the text that `generate` gives for one prompt in a batch of its own."""
    tokenizer, prepared = model.model.tokenizer, model.model.prepared
    inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=True)["input_ids"]
    if int(inputs[0, -1]) == tokenizer.eos_token_id:
        inputs = inputs[:, :-1]
    output = prepared.generate(inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=tokens, do_sample=False,
                           eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)  # fmt: skip
    return str(tokenizer.decode(output[0, inputs.shape[1] :], skip_special_tokens=True))


def test_a_model_without_a_processor_returns_its_raw_outputs_for_rows(folder: Path) -> None:
    with served(folder, {"model": {"use": "toy/mlp", "args": {"out_features": 3}}}) as model:
        rows = torch.randn(3, 8)

        results = model.predict(*({"x": row.tolist()} for row in rows))
        whole = model.predict({"x": list(range(8))}, {"x": [float(n) for n in range(8)]})
        refusal = model.refusal("predict", inputs=[{"y": [1.0]}], parameters={})
        silent = model.refusal("complete", prompts=["the film"], max_tokens=2, **GREEDY)

        expected = model.model.prepared(x=rows)["logits"]
    assert torch.tensor([row["output"] for row in results]).allclose(expected)
    assert whole[0] == whole[1], "a whole number in JSON is accepted as a float"
    assert (refusal["code"], silent["code"]) == ("cannot_answer", "not_a_language_model")


def test_a_classifier_accepts_texts_without_labels_and_returns_class_names(folder: Path) -> None:
    spec = {
        "model": {"use": "hf/sequence-classification", "args": {"labels": ["calm", "wild"], "config": {
            "model_type": "bert", "num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2,
            "intermediate_size": 16, "max_position_embeddings": 64,
        }}},
        "processor": GPT["processor"],
        "data": {"map": [
            {"use": "labels", "args": {"column": "label"}}, {"use": "tokenize", "args": {"column": "text"}},
        ]},
    }  # fmt: skip
    with served(folder, spec) as model:
        by_column, by_text = model.predict({"text": "the film is dull"}, "the film is dull")
        unknown = model.refusal("predict", inputs=[{"txt": "the film"}], parameters={})

    assert by_column == by_text
    assert by_column["label"] in ("calm", "wild")
    assert by_column["score"] == max(by_column["scores"].values())
    assert sum(by_column["scores"].values()) == pytest.approx(1.0)
    assert "no column 'text'" in unknown["message"]


def test_a_batch_generates_the_same_texts_as_one_prompt_at_a_time(gpt: ServedModel) -> None:
    prompts = ["the film is", "the cast", "dull", "the story is moving and the cast"]
    requests = [
        gpt.send("complete", prompts=[prompt], max_tokens=6 + at, **GREEDY) for at, prompt in enumerate(prompts)
    ]

    pieces = {}
    while len(pieces) < len(requests):
        piece = gpt.read()
        pieces |= {piece.id: piece} if piece.is_last else {}

    answers = [pieces[request].data["choices"][0] for request in requests]
    assert [answer["text"] for answer in answers] == [
        generated_alone(gpt, prompt, 6 + at) for at, prompt in enumerate(prompts)
    ]
    assert all(answer["finish_reason"] == ("length" if answer["tokens"] == 6 + at else "stop")
               for at, answer in enumerate(answers))  # fmt: skip


def test_prompts_whose_answers_do_not_fit_into_the_context_together_are_all_answered(gpt: ServedModel) -> None:
    long = "the story is moving and the cast " * 7
    answers = gpt.predict("the film is", long)

    room = 64 - len(gpt.model.tokenizer(long, add_special_tokens=False)["input_ids"])
    assert 0 < room < 40
    assert answers[0]["text"] == generated_alone(gpt, "the film is", 40)
    assert answers[1]["text"] == generated_alone(gpt, long, answers[1]["tokens"])


def test_the_requests_of_a_batch_have_no_more_texts_than_the_limit_together() -> None:
    def request(name: str, **body: Any) -> ServingRequest:
        return ServingRequest(id=name, work=Work.COMPLETE, body={**GREEDY, **body})

    waiting = deque([
        request("a", messages=[{}], n=3), request("b", prompts=["x", "y"]), request("c", prompts=["x"]),
        request("d", prompts=["x"], temperature=1.0), request("e", messages=[{}]),
    ])  # fmt: skip

    batches = []
    while waiting:
        batches.append([request.id for request in session.take_batch(waiting, 4)])

    assert batches == [["a", "c"], ["b", "e"], ["d"]]


def test_an_encoder_decoder_refuses_what_its_positions_cannot_hold(folder: Path) -> None:
    config = {"model_type": "marian", "max_position_embeddings": 12, "d_model": 16, "encoder_layers": 1,
              "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16,
              "decoder_ffn_dim": 16, "decoder_start_token_id": 0, "pad_token_id": 0}  # fmt: skip
    spec = {"model": {"use": "hf/seq2seq", "args": {"config": config}}, "processor": GPT["processor"]}
    with served(folder, spec) as model:
        codes = [model.refusal("complete", prompts=[prompt], max_tokens=tokens, **GREEDY)["code"]
                   for prompt, tokens in (("the film " * 10, 2), ("the film", 20))]  # fmt: skip
        [unlimited] = model.ask("complete", prompts=["the film"], max_tokens=None, **GREEDY)["choices"]

    assert codes == ["context_length_exceeded"] * 2
    assert unlimited["tokens"] <= 12


def test_a_text_is_too_long_for_a_roberta_whose_positions_begin_after_its_padding(folder: Path) -> None:
    config = {"model_type": "roberta", "max_position_embeddings": 12, "hidden_size": 16, "num_hidden_layers": 1,
              "num_attention_heads": 2, "intermediate_size": 16, "pad_token_id": 1}  # fmt: skip
    spec = {"model": {"use": "hf/masked-lm", "args": {"config": config}}, "processor": GPT["processor"]}
    with served(folder, spec) as model:
        refusal = model.refusal("embed", inputs=[[2] * 11])
        [vector] = model.ask("embed", inputs=[[2] * 10])["vectors"]

    assert refusal["code"] == "context_length_exceeded"
    assert len(vector) == 16


@pytest.mark.parametrize(
    "wrong",
    [{"input_ids": [2, 999]}, {"input_ids": [2, -1]}, {"token_type_ids": [0, 2]}, {"labels": 2}],
    ids=["token", "negative token", "token type", "label"],
)
def test_a_row_with_an_id_that_the_model_lacks_does_not_reach_the_model(folder: Path, wrong: dict[str, Any]) -> None:
    def fail(*args: Any) -> None:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    spec = {"model": {"use": "hf/sequence-classification", "args": {"config": {
        "model_type": "bert", "num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2,
        "intermediate_size": 16, "vocab_size": 40, "num_labels": 2,
    }}}}  # fmt: skip
    row = {"input_ids": [2, 3], "attention_mask": [1, 1], "token_type_ids": [0, 1]}
    with served(folder, spec) as model:
        [answer] = model.predict(row)
        model.model.prepared.register_forward_pre_hook(fail)
        refusal = model.refusal("predict", inputs=[{**row, **wrong}], parameters={})

    assert answer["scores"]
    assert str(next(iter(wrong.values()))).strip("[]").split()[-1] in refusal["message"]
    assert "device-side assert" not in refusal["message"]


def test_a_padding_token_that_the_model_lacks_is_not_given_to_the_model(folder: Path) -> None:
    with served(folder, GPT, max_batch=4, max_tokens=40) as model:
        prompts, missing = [[5], [6, 7, 8]], model.model.tokenizer.convert_tokens_to_ids("y")
        model.model.base.resize_token_embeddings(missing)
        before = model.ask("embed", inputs=prompts)["vectors"]
        model.model.tokenizer.pad_token = "y"

        assert model.model.tokenizer.pad_token_id == missing
        assert torch.tensor(model.ask("embed", inputs=prompts)["vectors"]).allclose(torch.tensor(before))
        assert len(model.ask("complete", prompts=prompts, max_tokens=4, **GREEDY)["choices"]) == 2


def test_a_session_whose_gpu_has_failed_ends(folder: Path) -> None:
    def fail(*args: Any) -> None:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    with served(folder, {"model": "toy/mlp"}) as model:
        model.model.prepared.register_forward_pre_hook(fail)
        refusal = model.refusal("predict", inputs=[{"x": [0.0] * 8}], parameters={})
        model.thread.join(300)

        assert not model.thread.is_alive()
    assert "device-side assert" in refusal["message"]


def test_the_chunks_of_a_streamed_answer_add_up_to_the_full_answer(gpt: ServedModel) -> None:
    request = gpt.send("complete", prompts=["the film is"], max_tokens=30, **{**GREEDY, "stream": True})
    parts = []
    while not (piece := gpt.read()).is_last:
        parts += [piece.data["text"]] if piece.kind is AnswerPieceKind.CHUNK else []

    assert piece.id == request
    assert "".join(parts) == piece.data["choices"][0]["text"]
    assert parts


def test_a_stop_text_ends_the_answer_and_is_not_streamed(gpt: ServedModel) -> None:
    whole = gpt.ask("complete", prompts=["the film is"], max_tokens=20, **GREEDY)["choices"][0]["text"]
    stop = whole.split()[2]
    request = gpt.send("complete", prompts=["the film is"], max_tokens=20, **{**GREEDY, "stream": True, "stop": [stop]})
    parts = []
    while not (piece := gpt.read()).is_last:
        parts += [piece.data["text"]] if piece.kind is AnswerPieceKind.CHUNK else []

    assert piece.id == request
    assert "".join(parts) == whole[: whole.index(stop)]
    assert piece.data["choices"][0]["finish_reason"] == "stop"


def test_log_probabilities_of_a_completion_equal_those_of_the_model(gpt: ServedModel) -> None:
    body = {"prompts": ["the film is"], "max_tokens": 6, "top_logprobs": 2, **GREEDY}
    [choice] = gpt.ask("complete", **body)["choices"]
    tokenizer = gpt.model.tokenizer
    prompt = tokenizer("the film is", return_tensors="pt")["input_ids"]
    prompt = prompt[:, :-1] if int(prompt[0, -1]) == tokenizer.eos_token_id else prompt
    with torch.inference_mode():
        first = torch.log_softmax(gpt.model.prepared(prompt).logits[0, -1], dim=-1)
    values, tokens = first.topk(2)

    top = choice["logprobs"][0]["top"]
    words = [tokenizer.convert_ids_to_tokens(token) for token in tokens.tolist()]
    assert [entry["token"].strip() for entry in top] == words, "special tokens have their names"
    assert [entry["logprob"] for entry in top] == pytest.approx(values.tolist(), abs=1e-4)
    assert [entry["logprob"] for entry in choice["logprobs"]] == [
        entry["top"][0]["logprob"] for entry in choice["logprobs"]
    ]
    assert len(choice["logprobs"]) == choice["tokens"]

    stop = choice["text"].split()[2]
    request = gpt.send("complete", **{**body, "stream": True, "stop": [stop]})
    streamed = []
    while not (piece := gpt.read()).is_last:
        streamed += piece.data["logprobs"] if piece.kind is AnswerPieceKind.CHUNK else []
    assert piece.id == request
    words = [entry["token"] for entry in streamed if entry["token"].strip() not in tokenizer.all_special_tokens]
    assert choice["text"].startswith("".join(words).lstrip())
    assert streamed == choice["logprobs"][: len(streamed)]
    assert 0 < len(streamed) < len(choice["logprobs"])


def test_last_tokens_without_a_text_have_their_log_probabilities(gpt: ServedModel) -> None:
    body = {"prompts": ["a"], "top_logprobs": 0, **GREEDY}
    [longer] = gpt.ask("complete", max_tokens=20, **body)["choices"]
    words = [entry["token"].strip() for entry in longer["logprobs"]]
    special = next(at for at, word in enumerate(words) if word in gpt.model.tokenizer.all_special_tokens)

    [choice] = gpt.ask("complete", max_tokens=special + 1, **body)["choices"]
    gpt.send("complete", max_tokens=special + 1, **{**body, "stream": True})
    streamed = []
    while not (piece := gpt.read()).is_last:
        streamed += piece.data["logprobs"] if piece.kind is AnswerPieceKind.CHUNK else []

    assert choice["logprobs"] == streamed == longer["logprobs"][: special + 1]


def test_equal_seeds_draw_equal_texts(gpt: ServedModel) -> None:
    sampling = {**GREEDY, "temperature": 1.0, "seed": 3, "n": 2}
    first, second = (gpt.ask("complete", prompts=["the"], max_tokens=12, **sampling)["choices"] for _ in range(2))

    assert first == second
    assert first[0]["text"] != first[1]["text"]
    almost_zero, zero = (
        gpt.ask("complete", prompts=["the film"], max_tokens=12, **{**GREEDY, "temperature": temperature})["choices"]
        for temperature in (1e-40, 0.0)
    )
    assert almost_zero == zero


def test_a_seed_draws_other_texts_for_each_of_many_equal_inputs(gpt: ServedModel) -> None:
    inputs, sampling = ["the"] * 9, {"temperature": 1.0, "seed": 3, "max_tokens": 12}
    first, second = (gpt.predict(*inputs, **sampling) for _ in range(2))

    assert first == second
    texts = [row["text"] for row in first]
    assert len(set(texts)) == len(texts), "a session generates four of these texts together"


def test_a_seeded_request_does_not_decide_what_later_requests_draw(gpt: ServedModel) -> None:
    body = {"prompts": ["the film"], "max_tokens": 12, **GREEDY, "temperature": 1.0, "n": 4}
    first, second = [], []
    for choices in (first, second):
        gpt.ask("complete", **{**body, "seed": 3})
        choices += gpt.ask("complete", **body)["choices"]

    assert first != second


def test_a_seeded_request_leaves_the_generators_of_other_gpus_alone(
    gpt: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    assert gpt.ask("complete", prompts=["the"], max_tokens=2, **{**GREEDY, "seed": 3})["choices"]


def test_each_session_draws_other_texts(folder: Path) -> None:
    first, second = [], []
    for choices in (first, second):
        # A job's process sets the generators by the job's seed before it makes the model.
        torch.manual_seed(2)
        with served(folder, GPT, max_tokens=40) as model:
            body = {"prompts": ["the film"], "max_tokens": 12, **GREEDY, "temperature": 1.0, "n": 4}
            choices += model.ask("complete", **body)["choices"]

    assert first != second


def test_a_conversation_becomes_a_prompt_by_the_template(gpt: ServedModel) -> None:
    messages = [{"role": "user", "content": "the film is"}]
    answer = gpt.ask("complete", messages=messages, max_tokens=5, **GREEDY)

    tokens = gpt.model.tokenizer("the film is ", add_special_tokens=False)["input_ids"]
    assert answer["prompt_tokens"] == len(tokens)
    [predicted] = gpt.predict({"messages": messages}, max_tokens=5)
    assert predicted["text"] == answer["choices"][0]["text"]
    parts = [{"role": "developer", "content": [{"type": "text", "text": "the film is"}]}]
    assert gpt.predict({"messages": parts}, max_tokens=5) == [predicted], "chats and training join the parts, too"
    for wrong in (["the film"], [{"role": "user", "content": [{"type": "image_url"}]}]):
        image = gpt.refusal("predict", inputs=[{"messages": wrong}], parameters={"temperature": 0.0, "top_p": 1.0})
        assert image["code"] == "bad_messages"
    request = gpt.send("complete", messages=[{"role": "user", "content": None}], max_tokens=5, **GREEDY)
    beside = gpt.send("complete", prompts=["the film is"], max_tokens=5, **GREEDY)
    assert gpt.last(request).data["code"] == "bad_messages"
    assert gpt.last(beside).kind is AnswerPieceKind.DONE


def test_an_answer_ends_at_the_token_that_the_chat_template_writes_after_an_answer(folder: Path) -> None:
    template = "{% for m in messages %}{{ m['content'] }}[CLS]{% endfor %}"
    processor = {"use": "hf/tokenizer", "args": {"path": "models://tokenizer", "chat_template": template}}
    with served(folder, {**GPT, "processor": processor}) as model:
        end = model.model.tokenizer.convert_tokens_to_ids("[CLS]")

        def prefer(module: Any, inputs: Any, logits: torch.Tensor) -> torch.Tensor:
            return logits + 1e4 * torch.nn.functional.one_hot(torch.tensor(end), logits.shape[-1])

        model.model.base.lm_head.register_forward_hook(prefer)
        messages = [{"role": "user", "content": "the film is"}]
        [choice] = model.ask("complete", messages=messages, max_tokens=5, **GREEDY)["choices"]

        assert end != model.model.tokenizer.eos_token_id
    assert (choice["finish_reason"], choice["tokens"]) == ("stop", 0)


@pytest.mark.parametrize(
    ("code", "body"),
    [
        ("context_length_exceeded", {"prompts": ["the film " * 200], "max_tokens": 1}),
        ("context_length_exceeded", {"prompts": ["the film " * 20], "max_tokens": 40}),
        ("too_many_tokens", {"prompts": ["the"], "max_tokens": 41}),
        ("too_many_texts", {"prompts": ["the"] * 5, "max_tokens": 1}),
        ("no_tools", {"messages": [{"role": "user", "content": "the"}], "tools": [TOOL], "max_tokens": 1}),
        ("bad_token", {"prompts": [[1, 2, 10**9]], "max_tokens": 1}),
    ],
)
def test_a_request_that_is_too_long_or_too_large_is_refused_with_its_code(
    gpt: ServedModel, code: str, body: dict[str, Any]
) -> None:
    refusal = gpt.refusal("complete", **body, **GREEDY)

    assert refusal["code"] == code
    assert gpt.refusal("embed", inputs=[[1, 2, 10**9]])["code"] == "bad_token"
    assert gpt.ask("complete", prompts=["the"], max_tokens=1, **GREEDY)["choices"]


def test_a_chat_with_a_token_that_the_model_lacks_is_refused_alone(folder: Path) -> None:
    with served(folder, GPT, max_batch=4) as model:
        # The build refuses a tokenizer with more tokens than the model. The ids of a tokenizer may have gaps.
        model.model.base.resize_token_embeddings(model.model.tokenizer.convert_tokens_to_ids("y"))
        prompts = ["a", "y"]
        requests = [
            model.send("complete", messages=[{"role": "user", "content": prompt}], max_tokens=2, **GREEDY)
            for prompt in prompts
        ]
        pieces: dict[str, Any] = {}
        while len(pieces) < len(requests):
            piece = model.read()
            pieces |= {piece.id: piece} if piece.is_last else {}

    answered, refusal = (pieces[request] for request in requests)
    assert answered.kind is AnswerPieceKind.DONE
    assert (refusal.kind, refusal.data["code"]) == (AnswerPieceKind.ERROR, "bad_token")


def test_a_withdrawn_request_does_not_hold_up_the_next_one(gpt: ServedModel) -> None:
    first = gpt.send("complete", prompts=["the film is"], max_tokens=40, **GREEDY)
    seeded = gpt.send("complete", prompts=["the"], max_tokens=40, **{**GREEDY, "seed": 1})
    gpt.withdraw(seeded)
    ends = [gpt.last(first), gpt.last(seeded)]

    assert ends[0].kind is AnswerPieceKind.DONE
    assert ends[1].kind is AnswerPieceKind.ERROR or ends[1].data["choices"][0]["finish_reason"] in (
        "withdrawn",
        "length",
    )


def test_a_session_goes_on_after_a_line_that_it_does_not_know(gpt: ServedModel) -> None:
    gpt._stream.sendall(b'{"id": "ask_x", "work": "draw", "body": {}}\n')

    assert gpt.ask("complete", prompts=["the film is"], max_tokens=2, **GREEDY)["choices"]


@pytest.mark.parametrize("work", ["predict", "embed"])
def test_a_withdrawn_request_of_many_inputs_ends_early(gpt: ServedModel, work: str) -> None:
    def leave(*args: Any) -> None:
        hook.remove()
        gpt.withdraw(request)
        until(lambda: gpt.session.is_withdrawn(request), within=60, what="the session reads the withdrawal")

    is_sent, forwards = threading.Event(), list[bool]()
    count = gpt.model.prepared.register_forward_pre_hook(lambda *args: forwards.append(is_sent.wait(60)))
    hook = gpt.model.prepared.register_forward_pre_hook(leave)
    parameters = {"temperature": 0.0, "top_p": 1.0, "max_tokens": 40}
    request = gpt.send(work, inputs=["the film is"] * 12, parameters=parameters)
    is_sent.set()

    assert gpt.last(request).kind is AnswerPieceKind.DONE
    count.remove()
    assert len(forwards) == 1, "none for the other two batches of four"


def test_the_embedding_of_a_text_does_not_depend_on_its_batch(gpt: ServedModel) -> None:
    texts = ["the film is dull", "the cast"]
    together = gpt.ask("embed", inputs=texts)
    alone = [gpt.ask("embed", inputs=[text])["vectors"][0] for text in texts]

    assert torch.tensor(together["vectors"]).allclose(torch.tensor(alone), atol=1e-5)
    assert torch.tensor(alone).norm(dim=-1).allclose(torch.ones(2))


def test_several_adapters_answer_from_one_loaded_base(folder: Path, gpt: ServedModel) -> None:
    base, lora = folder / "base", {"r": 2, "target_modules": ["c_attn"], "fan_in_fan_out": True}
    gpt.model.prepared.save_pretrained(base)
    spec = {**GPT, "model": {"use": "hf/causal-lm", "args": {"path": "models://base", "peft": lora}}}
    body: dict[str, Any] = {"prompts": ["the film is"], "max_tokens": 8, **GREEDY}
    offers, expected = [], []
    for seed in range(2):
        offer, text = trained_adapter(folder, spec["model"]["args"], seed, body)
        offers.append(offer)
        expected.append(text)
    with served(folder, spec) as model:
        plain = model.ask("complete", **body)["choices"][0]["text"]
        answers = [model.ask("complete", adapter=offer, **body)["choices"][0]["text"] for offer in offers * 2]
        again = model.ask("complete", **body)["choices"][0]["text"]
        wrong = offers[0].model_copy(update={"id": "ckpt_wrong", "manifest_sha256": "0" * 64})
        reply = model.last(model.send("complete", adapter=wrong, **body))

    assert answers == expected * 2
    assert len({plain, *expected}) == 3
    assert again == plain
    assert reply.kind is AnswerPieceKind.AGAIN


def trained_adapter(folder: Path, model: dict[str, Any], seed: int, body: dict[str, Any]) -> tuple[AdapterOffer, str]:
    """Saves random adapters as a checkpoint. Returns its offer, and the answer of a session with these adapters."""
    with served(folder, {**GPT, "model": {"use": "hf/causal-lm", "args": model}}) as own:
        generator = torch.Generator().manual_seed(seed)
        for name, weights in own.model.prepared.named_parameters():
            if "lora_" in name:
                weights.data = torch.randn(weights.shape, generator=generator)
        parent = folder / "jobs" / f"adapter-{seed}"
        checkpoint = commit(parent, 1, lambda place: own.model.trainer.save_model(str(place)), {})
        text = own.ask("complete", **body)["choices"][0]["text"]
    path = str(checkpoint.path.relative_to(folder))
    return AdapterOffer(id=f"ckpt_{seed}", path=path, manifest_sha256=checkpoint.manifest_sha256), text


def test_a_session_without_requests_ends_by_itself(folder: Path) -> None:
    with served(folder, {"model": "toy/mlp"}, idle=0.01) as model:
        model.thread.join(300)

        assert not model.thread.is_alive()


def test_an_idle_session_ends_when_another_job_waits_for_its_slot(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "IDLE_SECONDS", 0.01)
    with served(folder, {"model": "toy/mlp"}) as model:
        model.predict({"x": [0.0] * 8})
        model.want_slot()
        model.thread.join(300)

        assert not model.thread.is_alive()


def test_a_busy_session_keeps_its_slot_for_a_limited_time_if_a_job_waits() -> None:
    def is_over(at: float, *, last: float | None, wanted_at: Sequence[float] = (0.0,)) -> bool:
        slot = session.Slot()
        for time in wanted_at:
            slot.wanted(time)
        return slot.must_be_free(at, last)

    repeated = [float(second) for second in range(0, 40, 5)]
    assert is_over(3.0, last=1.0), "no request came for two seconds"
    assert not is_over(3.0, last=2.9), "a client still sends one request after the other"
    assert not is_over(3.0, last=None), "the first request of the session has not come yet"
    assert is_over(35.5, last=35.4, wanted_at=repeated), "requests keep coming, but its time is used up"
    assert not is_over(35.5, last=1.0), "no job has waited for the slot since second 0"
    assert not is_over(36.0, last=35.9, wanted_at=[0.0, 35.0]), "the second job has waited for one second only"
    assert not is_over(3.0, last=1.0, wanted_at=()), "no job waits for the slot"
