"""Tests that programs for OpenAI's fine-tuning API run with another base URL and key. The client is OpenAI's SDK."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.fine_tuning import FineTuningJob

from footplate.contract.components import Catalogue, Described
from footplate.contract.errors import SettingsError
from footplate.contract.events import Kind
from footplate.contract.ids import FileId, JobId
from footplate.contract.lifecycle import JobState
from service.api.openai import from_job
from service.api.openai import uploads as openai_uploads
from service.api.openai.models import NewFineTuningJob
from service.api.openai.rows import CheckedRows
from service.api.openai.to_spec import Base, TuningFile, translate
from service.control.cleanup import prune
from service.control.control_state import ControlIo, ControlState
from service.jobs.prune import DAY_MS
from service.settings import ServiceSettings
from service.store import jobs
from service.store.times import now_ms
from tests.service.api.conftest import KEY, Api, Serve, each_case
from tests.service.api.test_keys import a_key

BASE = "gpt-4o-mini-2024-07-18"
TABLE = {
    BASE: "models://tiny",
    "gpt-4.1": {
        "model": {"use": "hf/causal-lm", "args": {"path": "models://small"}},
        "training": {"learning_rate": 1e-3, "num_train_epochs": 7, "assistant_only_loss": True},
    },
}


def rows(count: int = 10, question: str = "2 + 2?") -> bytes:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": "4"}]
    return b"".join(json.dumps({"messages": messages}).encode() + b"\n" for _ in range(count))


@pytest.fixture
async def api(serve: Serve, sqlite_url: str, tmp_path: Path) -> Api:
    table = tmp_path / "models.json"
    table.write_text(json.dumps(TABLE))
    return await serve(sqlite_url, api_key=KEY, openai_models=table, rate_per_key=0)


def client_of(api: Api, key: str = KEY) -> AsyncOpenAI:
    # The default client reads the machine's certificates, which takes longer than a test.
    http = openai.DefaultAsyncHttpxClient(verify=False)
    # The client repeats a request after a 503, as users' clients do by default. The service answers 503 if its database
    # fails for some seconds, which happens on a machine with many times more work than cores.
    return AsyncOpenAI(base_url=f"{api.url}/v1", api_key=key, http_client=http)


@pytest.fixture
def client(api: Api) -> AsyncOpenAI:
    return client_of(api)


async def uploaded(client: AsyncOpenAI, content: bytes | None = None, name: str = "rows.jsonl") -> str:
    return (await client.files.create(file=(name, content or rows()), purpose="fine-tune")).id


async def submitted(client: AsyncOpenAI, **changes: Any) -> FineTuningJob:
    fields: dict[str, Any] = {"model": BASE, "training_file": await uploaded(client), **changes}
    return await client.fine_tuning.jobs.create(**fields)


def error_of(error: pytest.ExceptionInfo[openai.APIStatusError]) -> tuple[int, str | None, str | None]:
    return error.value.status_code, error.value.code, error.value.param


async def test_a_file_is_uploaded_read_and_deleted(api: Api, client: AsyncOpenAI, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(rows())

    file = await client.files.create(file=path, purpose="fine-tune")
    processed = await client.files.wait_for_processing(file.id)

    assert (processed.status, processed.purpose, processed.filename, processed.bytes) == (
        "processed", "fine-tune", "rows.jsonl", len(rows()),
    )  # fmt: skip
    assert (await api.client.get(f"/files/{file.id}")).json()["name"] == "rows.jsonl"
    assert (await client.files.content(file.id)).content == rows()
    assert (await client.files.delete(file.id)).deleted
    with pytest.raises(openai.NotFoundError) as error:
        await client.files.retrieve(file.id)
    assert error_of(error) == (404, "not_found", None)


async def test_files_are_listed_page_by_page_in_both_orders(client: AsyncOpenAI) -> None:
    file_ids = [await uploaded(client, rows(count)) for count in (1, 2, 3)]

    newest_first = [item.id async for item in client.files.list(limit=2)]
    oldest_first = [item.id async for item in client.files.list(limit=2, order="asc", purpose="fine-tune")]

    assert newest_first == list(reversed(oldest_first))
    assert sorted(newest_first) == sorted(file_ids)
    assert [item async for item in client.files.list(purpose="batch")] == []


async def test_a_file_with_a_wrong_line_is_refused_and_not_stored(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"line 4.*not JSON") as error:
        await uploaded(client, rows(3) + b"{\n")

    assert error_of(error) == (400, "invalid_training_file", "file")
    assert [item async for item in client.files.list()] == []


@each_case(("changes", "param"), [({"purpose": "batch"}, "purpose"), ({"name": "rows.csv"}, "file")])
async def test_a_file_for_another_purpose_is_refused_by_name(
    client: AsyncOpenAI, changes: dict[str, Any], param: str
) -> None:
    fields: dict[str, Any] = {"name": "rows.jsonl", "purpose": "fine-tune", **changes}

    with pytest.raises(openai.BadRequestError) as error:
        await client.files.create(file=(fields["name"], rows()), purpose=fields["purpose"])

    assert error.value.param == param


async def test_a_job_made_by_openais_client_is_the_same_job_in_our_api(api: Api, client: AsyncOpenAI) -> None:
    tuning_job = await submitted(
        client,
        suffix="custom",
        seed=7,
        metadata={"team": "vision"},
        method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2, "batch_size": "auto"}}},
    )

    ours = (await api.client.get(f"/jobs/{tuning_job.id}")).json()
    spec = (await api.client.get(f"/jobs/{tuning_job.id}/spec")).json()
    assert (ours["name"], ours["state"], ours["metadata"]) == ("custom", "queued", {"team": "vision"})
    assert spec["model"] == {"use": "hf/causal-lm", "args": {"path": "models://tiny"}}
    assert spec["data"]["train"]["args"]["paths"] == [tuning_job.training_file]
    assert {
        "num_train_epochs": 2,
        "seed": 7,
        "per_device_train_batch_size": 1,
    }.items() <= spec["training"].items()
    assert spec["trainer"] == {"use": "trl/sft", "args": {"assistant_only_loss": True}}
    assert (tuning_job.model, tuning_job.status, tuning_job.seed, tuning_job.fine_tuned_model) == (
        BASE,
        "queued",
        7,
        None,
    )
    assert tuning_job.hyperparameters.n_epochs == 2
    assert tuning_job.hyperparameters.batch_size == 1
    assert await client.fine_tuning.jobs.retrieve(tuning_job.id) == tuning_job
    there = JobId((await api.client.post("/jobs", json={"model": "toy/mlp", "data": "toy/regression"})).json()["id"])
    openai_job = await client.fine_tuning.jobs.retrieve(there)
    assert (openai_job.model, openai_job.training_file, openai_job.status) == ("toy/mlp", "toy/regression", "queued")


async def test_auto_takes_the_arguments_of_the_base_models_entry(api: Api, client: AsyncOpenAI) -> None:
    tuning_job = await submitted(
        client, model="gpt-4.1", hyperparameters={"n_epochs": "auto", "learning_rate_multiplier": 2.0}
    )

    training = (await api.client.get(f"/jobs/{tuning_job.id}/spec")).json()["training"]
    assert tuning_job.hyperparameters.n_epochs == training["num_train_epochs"] == 7
    assert training["learning_rate"] == pytest.approx(2e-3)
    trainer = (await api.client.get(f"/jobs/{tuning_job.id}/spec")).json()["trainer"]
    assert trainer == {"use": "trl/sft", "args": {"assistant_only_loss": True}}


async def test_a_validation_file_is_evaluated_every_epoch(api: Api, client: AsyncOpenAI) -> None:
    file = await uploaded(client, rows(2, "3 + 3?"))

    tuning_job = await submitted(client, validation_file=file)

    spec = (await api.client.get(f"/jobs/{tuning_job.id}/spec")).json()
    assert (tuning_job.validation_file, spec["training"]["eval_strategy"]) == (file, "epoch")
    assert spec["data"]["eval"]["args"]["paths"] == [file]


async def test_jobs_are_listed_page_by_page_newest_first(client: AsyncOpenAI) -> None:
    job_ids = [(await submitted(client)).id for _ in range(3)]

    page = await client.fine_tuning.jobs.list(limit=2)
    assert (len(page.data), page.has_more) == (2, True)
    assert [job.id async for job in client.fine_tuning.jobs.list(limit=2)] == job_ids[::-1]


async def test_a_list_after_an_unknown_id_is_refused_instead_of_being_empty(client: AsyncOpenAI) -> None:
    tuning_job, tunings = await submitted(client), client.fine_tuning.jobs
    events = [f"ftevent-{text}" for text in ("1", f"{tuning_job.id[4:]}-0", f"{tuning_job.id[4:]}-9")]

    for pages in (
        *(tunings.list(after=after) for after in ("nothing", f"job_{'0' * 32}")),
        *(tunings.list_events(tuning_job.id, after=after) for after in events),
        *(tunings.checkpoints.list(tuning_job.id, after=after) for after in ("nothing", f"ckpt_{'0' * 32}")),
        *(client.files.list(after=after) for after in ("nothing", f"file_{'0' * 64}.jsonl")),
    ):
        with pytest.raises(openai.NotFoundError):
            await pages


async def test_a_list_of_jobs_is_filtered_by_metadata(api: Api, client: AsyncOpenAI) -> None:
    vision = (await submitted(client, metadata={"team": "vision", "run": 'a "b" 100%'})).id
    await submitted(client, metadata={"team": "speech"})
    numbered = await api.submit(metadata={"run": 7, "deep": {"team": "vision"}})
    plain = (await submitted(client)).id

    async def listed(query: Any) -> list[str]:
        return [job.id async for job in client.fine_tuning.jobs.list(metadata=query, limit=1)]

    assert await listed({"team": "vision"}) == [vision]
    assert await listed({"team": "vision", "run": 'a "b" 100%'}) == [vision]
    assert await listed({"run": "7"}) == [numbered]
    assert await listed({"team": "visio_"}) == []
    assert len(await listed({})) == 4
    without = await client.fine_tuning.jobs.list(extra_query={"metadata": "null"})
    assert [job.id for job in without.data] == [plain]
    with pytest.raises(openai.BadRequestError, match="metadata"):
        await client.fine_tuning.jobs.list(extra_query={"metadata": "vision"})


async def test_a_job_is_cancelled_paused_and_resumed(client: AsyncOpenAI) -> None:
    jobs = client.fine_tuning.jobs
    tuning_job = await submitted(client)

    assert (await jobs.pause(tuning_job.id)).status == "paused"
    assert (await jobs.resume(tuning_job.id)).status == "queued"
    assert (await jobs.cancel(tuning_job.id)).status == "cancelled"
    with pytest.raises(openai.ConflictError) as error:
        await jobs.pause(tuning_job.id)
    assert error.value.code == "conflict"
    assert error.value.response.headers["x-should-retry"] == "false", "the SDK would retry the request twice"


@each_case(
    ("changes", "status", "code", "param"),
    [
        ({"model": "gpt-9"}, 404, "model_not_found", "model"),
        ({"training_file": "file-abc"}, 404, "not_found", "training_file"),
        ({"validation_file": f"file_{'0' * 64}.jsonl"}, 404, "not_found", "validation_file"),
        ({"extra_body": {"colour": "red"}}, 400, "unknown_field", "colour"),
        ({"hyperparameters": {"n_epochs": 0}}, 400, "out_of_range", "hyperparameters.n_epochs"),
        ({"hyperparameters": {}, "method": {"type": "supervised"}}, 400, "two_places", "hyperparameters"),
        ({"method": {"type": "supervised", "dpo": {}}}, 400, "not_its_type", "method.dpo"),
        ({"suffix": "a b"}, 400, "not_well_formed", "suffix"),
        ({"integrations": [{"type": "wandb", "wandb": {"project": "p", "entity": "me"}}]},
         400, "env_not_allowed", "integrations"),
    ],
)  # fmt: skip
async def test_unsupported_fields_of_a_fine_tuning_job_are_refused_by_name(
    client: AsyncOpenAI, changes: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    with pytest.raises(openai.APIStatusError) as error:
        await submitted(client, **changes)

    assert error_of(error) == (status, code, param), error.value.message
    assert [job async for job in client.fine_tuning.jobs.list()] == []


async def test_a_grader_is_validated_as_at_the_creation_of_a_job(client: AsyncOpenAI) -> None:
    graders = client.fine_tuning.alpha.graders
    source = "def grade(sample, item):\n    return 1.0\n"

    valid = await graders.validate(grader={"type": "python", "name": "exact", "source": source})
    assert valid.grader is not None
    assert (valid.grader.type, valid.grader.name) == ("python", "exact")
    with pytest.raises(openai.BadRequestError, match="grade\\(sample, item\\)") as no_function:
        await graders.validate(grader={"type": "python", "name": "exact", "source": "x = 1"})
    with pytest.raises(openai.BadRequestError) as other_type:
        await graders.validate(
            grader={"type": "string_check", "name": "a", "input": "a", "operation": "eq", "reference": "b"}
        )

    assert error_of(no_function) == (400, "missing", "grader.source")
    assert error_of(other_type)[::2] == (400, "grader")


async def test_unsupported_routes_of_openais_api_are_refused_with_what_would_work(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match=r"graders\.validate") as run:
        await client.fine_tuning.alpha.graders.run(
            grader={"type": "python", "name": "exact", "source": "x"}, model_sample="4"
        )
    with pytest.raises(openai.NotFoundError, match="POST /keys") as permissions:
        await client.fine_tuning.checkpoints.permissions.list("ft:base:default::0:ckpt-step-1")

    assert run.value.code == permissions.value.code == "not_supported"


async def test_a_file_and_a_job_of_another_project_are_not_found(api: Api, client: AsyncOpenAI) -> None:
    key = await a_key(api, "vision")
    theirs = client_of(api, key["key"])
    file = await uploaded(client)
    tuning_job = await submitted(client)

    with pytest.raises(openai.NotFoundError, match="training_file"):
        await theirs.fine_tuning.jobs.create(model=BASE, training_file=file)
    for ask in (
        lambda: theirs.files.content(file),
        lambda: theirs.fine_tuning.jobs.retrieve(tuning_job.id),
        lambda: theirs.fine_tuning.jobs.list_events(tuning_job.id),
    ):
        with pytest.raises(openai.NotFoundError):
            await ask()


async def test_a_job_request_repeated_with_its_idempotency_key_makes_one_job(client: AsyncOpenAI) -> None:
    headers = {"Idempotency-Key": "sst2-on-monday"}

    first = await submitted(client, extra_headers=headers)
    again = await submitted(client, extra_headers=headers)

    assert first == again
    assert len([job async for job in client.fine_tuning.jobs.list()]) == 1
    await client.fine_tuning.jobs.cancel(first.id)
    await client.files.delete(first.training_file)
    late = await client.fine_tuning.jobs.create(model=BASE, training_file=first.training_file, extra_headers=headers)
    assert late == first


async def test_a_metric_that_is_too_large_for_a_float_is_left_out(api: Api, client: AsyncOpenAI) -> None:
    job = await api.submit()
    await api.append(job, {"loss": 0.5, "huge": 10**400})

    (metrics, _) = (await client.fine_tuning.jobs.list_events(job)).data
    results = await client.files.content(f"results-{job}")

    assert metrics.data == {"train_loss": 0.5, "step": None, "total_steps": None}
    assert results.text.splitlines()[1:] == ["0,0.5,,,"]


@pytest.mark.parametrize(("metric", "totals"), [("num_tokens", [900, None]), ("num_input_tokens_seen", [900, 900])])
async def test_a_count_of_tokens_that_each_attempt_begins_again_is_no_total(
    metric: str, totals: list[int | None], api: Api
) -> None:
    job = await api.submit()
    row = await api.db.read(lambda conn: jobs.get(conn, "default", job))
    ended_row = replace(row, state=JobState.SUCCEEDED, metrics=json.dumps({metric: 900}))

    assert [from_job.job(replace(ended_row, attempt=attempt), 0).trained_tokens for attempt in (1, 2)] == totals


async def test_errors_have_the_format_that_openais_sdk_reads(api: Api, client: AsyncOpenAI) -> None:
    with pytest.raises(openai.AuthenticationError) as no_key:
        await client_of(api, "wrong").models.list()
    reader = await a_key(api, scopes=["read"])
    with pytest.raises(openai.PermissionDeniedError, match="'submit'"):
        await uploaded(client_of(api, reader["key"]))
    with pytest.raises(openai.NotFoundError) as nothing_here:
        await client.post("/nix", cast_to=object)

    assert error_of(no_key) == (401, "invalid_api_key", None)
    assert error_of(nothing_here) == (404, "not_found", None)
    assert no_key.value.request_id


async def test_events_have_the_messages_of_openai_and_are_listed_newest_first(api: Api, client: AsyncOpenAI) -> None:
    tuning_job = await submitted(client)
    job = JobId(tuning_job.id)
    await api.append(job, {"loss": 0.5, "mean_token_accuracy": 0.9}, {"line": "not shown"}, kind=Kind.LOG)
    await api.append(job, {"eval_loss": 0.25}, kind=Kind.EVAL)
    await api.append(job, {"line": "hidden"}, kind=Kind.LINE)
    await api.end(job)

    every = [event async for event in client.fine_tuning.jobs.list_events(tuning_job.id, limit=2)]

    messages = [event.message for event in every]
    assert messages[0] == "The job has successfully completed"
    assert messages[-1] == f"Created fine-tuning job: {tuning_job.id}"
    assert "Fine-tuning job started" in messages
    assert not any("hidden" in message for message in messages)
    metrics = [event.data for event in every if event.type == "metrics"]
    assert any(data["valid_loss"] == data["full_valid_loss"] == 0.25 for data in metrics if "valid_loss" in data)  # type: ignore[index,operator]
    assert any(data.get("train_mean_token_accuracy") == 0.9 for data in metrics)  # type: ignore[attr-defined]
    assert len({event.id for event in every}) == len(every)


async def test_a_finished_job_names_its_model_checkpoints_and_results(api: Api, client: AsyncOpenAI) -> None:
    tuning_job = await submitted(client, suffix="custom")
    job = JobId(tuning_job.id)
    steps = [await stored_checkpoint(api, job, step) for step in (10, 20)]
    await api.end(job)

    final_job = await client.fine_tuning.jobs.retrieve(tuning_job.id)
    name = f"ft:{BASE}:default:custom:{tuning_job.id.removeprefix('job_')}"
    assert (final_job.status, final_job.fine_tuned_model) == ("succeeded", name)
    assert final_job.finished_at
    checkpoints = [item async for item in client.fine_tuning.jobs.checkpoints.list(tuning_job.id, limit=1)]
    assert [item.id for item in checkpoints] == steps[::-1]
    assert checkpoints[0].fine_tuned_model_checkpoint == f"{name}:ckpt-step-20"
    assert (checkpoints[0].metrics.valid_loss, checkpoints[0].step_number) == (0.25, 20)
    assert {BASE, "gpt-4.1", name} == {model.id async for model in client.models.list()}
    assert (await client.models.retrieve(name)).owned_by == "default"
    assert (await client.models.retrieve(f"{name}:ckpt-step-10")).id.endswith(":ckpt-step-10")
    with pytest.raises(openai.PermissionDeniedError):
        await client.models.delete(BASE)
    assert (await client.models.delete(name)).deleted
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve(name)


async def test_a_chat_with_a_model_or_checkpoint_that_is_gone_is_refused_as_at_openai(
    api: Api, client: AsyncOpenAI
) -> None:
    tuning_job = await submitted(client)
    await stored_checkpoint(api, JobId(tuning_job.id), 10)
    await api.end(JobId(tuning_job.id))
    name = f"ft:{BASE}:default::{tuning_job.id.removeprefix('job_')}"
    messages: Any = [{"role": "user", "content": "Hi"}]

    with pytest.raises(openai.NotFoundError, match="step-20") as no_checkpoint:
        await client.chat.completions.create(model=f"{name}:ckpt-step-20", messages=messages)
    await client.models.delete(name)
    with pytest.raises(openai.NotFoundError) as no_model:
        await client.chat.completions.create(model=name, messages=messages, stream=True)

    assert error_of(no_checkpoint) == error_of(no_model) == (404, "model_not_found", None)


async def test_rewards_are_named_in_events_checkpoints_and_results(api: Api, client: AsyncOpenAI) -> None:
    tuning_job = await submitted(client)
    job = JobId(tuning_job.id)
    await api.append(job, {"loss": 0.0, "reward": 0.5}, kind=Kind.LOG)
    await api.append(job, {"eval_loss": 0.0, "eval_reward": 0.25}, kind=Kind.EVAL)
    await api.commit(job, 10, metrics='{"reward": 0.5, "eval_reward": 0.25}')
    await api.end(job)

    messages = [event.message for event in (await client.fine_tuning.jobs.list_events(tuning_job.id)).data]
    [checkpoint] = (await client.fine_tuning.jobs.checkpoints.list(tuning_job.id)).data
    [file] = (await client.fine_tuning.jobs.retrieve(tuning_job.id)).result_files
    header, row = (await client.files.content(file)).text.splitlines()

    assert any(text.endswith(": train mean reward=0.50") for text in messages), messages
    assert any(text.endswith(": validation mean reward=0.25") for text in messages)
    assert checkpoint.metrics.to_dict()["full_valid_mean_reward"] == 0.25
    assert header.endswith(",train_mean_reward,valid_mean_reward")
    assert row == "0,0.0,,0.0,,0.5,0.25"


def assert_typed(*answers: openai.BaseModel) -> None:
    """Fails for a field that the SDK's types lack, require or declare differently. The SDK does not check this."""
    for answer in answers:
        type(answer).model_validate_json(answer.to_json(), strict=True)
        assert not answer.model_extra, answer


async def test_answers_have_the_fields_and_types_of_openais_sdk(api: Api, client: AsyncOpenAI) -> None:
    integration: Any = {"type": "wandb", "wandb": {"project": "p"}}
    file = await uploaded(client)
    tuning_job = await submitted(
        client, suffix="custom", validation_file=file, metadata={"team": "vision"}, integrations=[integration]
    )
    job = JobId(tuning_job.id)
    await api.append(job, {"loss": 0.5}, kind=Kind.LOG)
    await stored_checkpoint(api, job, 10)
    await api.end(job)
    final_job = await client.fine_tuning.jobs.retrieve(tuning_job.id)
    failed = await submitted(client)
    await api.end(JobId(failed.id), JobState.FAILED)

    assert_typed(tuning_job, final_job, await client.fine_tuning.jobs.retrieve(failed.id))
    assert_typed(*[event async for event in client.fine_tuning.jobs.list_events(tuning_job.id)])
    assert_typed(*[item async for item in client.fine_tuning.jobs.checkpoints.list(tuning_job.id)])
    assert_typed(*[item async for item in client.files.list()], await client.files.retrieve(final_job.result_files[0]))
    assert_typed(*[item async for item in client.models.list()])
    assert_typed(await client.uploads.create(bytes=1, filename="a", mime_type="text/jsonl", purpose="fine-tune"))


async def stored_checkpoint(api: Api, job: JobId, step: int) -> str:
    return (await api.commit(job, step, metrics='{"eval_loss": 0.25, "loss": 0.5}')).id


async def test_a_fine_tuned_model_is_the_base_of_the_next_job(api: Api, client: AsyncOpenAI) -> None:
    tuning_job = await submitted(client, model="gpt-4.1")
    job = JobId(tuning_job.id)
    first = await stored_checkpoint(api, job, 10)
    await stored_checkpoint(api, job, 20)
    await api.end(job)
    final_job = await client.fine_tuning.jobs.retrieve(tuning_job.id)

    following = await submitted(client, model=f"{final_job.fine_tuned_model}:ckpt-step-10")

    spec = (await api.client.get(f"/jobs/{following.id}/spec")).json()
    start = spec["resume_from"]
    assert (start["job"], start["checkpoint"], start["mode"]) == (tuning_job.id, first, "weights")
    assert (following.model, spec["training"]["learning_rate"]) == ("gpt-4.1", 1e-3), "the entry's rate"


async def test_a_job_starts_from_the_best_checkpoint_if_that_is_the_model(api: Api, client: AsyncOpenAI) -> None:
    job = await api.submit(
        model={"use": "hf/causal-lm", "args": {"path": "models://small"}},
        data={"train": "toy/regression", "eval": "toy/regression"},
        training={"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 10, "save_steps": 10},
    )
    best = await api.commit(job, 10, is_best=True)
    await stored_checkpoint(api, job, 20)
    await api.end(job)
    final_job = await client.fine_tuning.jobs.retrieve(job)

    following = await submitted(client, model=final_job.fine_tuned_model)

    spec = (await api.client.get(f"/jobs/{following.id}/spec")).json()
    assert spec["resume_from"]["checkpoint"] == best.id


def test_an_entry_has_arguments_of_several_methods_and_each_job_gets_its_own() -> None:
    body = NewFineTuningJob(model=BASE, training_file="file")
    base = Base(BASE, {"model": "models://tiny", "training": {"num_generations": 4, "max_length": 9, "bf16": True}})
    arguments = {"trl/sft": ["max_length"], "trl/grpo": ["num_generations", "max_length"]}
    catalogue = Catalogue.of(
        Described(name=name, group="trainers", args={"properties": {key: {} for key in names}})
        for name, names in arguments.items()
    )

    translated = translate(body, base, TuningFile(FileId("file"), CheckedRows("chat", 10)), None, catalogue)

    training = translated.document["training"]
    assert (training["max_length"], training["bf16"]) == (9, True)
    assert "num_generations" not in training
    assert training["per_device_train_batch_size"] == 1, "this is the number of answers to a prompt for trl/grpo only"


async def test_the_results_file_holds_the_metrics_of_each_step(api: Api, client: AsyncOpenAI) -> None:
    tuning_job = await submitted(client)
    job = JobId(tuning_job.id)
    await api.append(job, {"loss": 0.5}, {"train_loss": 0.9, "train_runtime": 1.0}, kind=Kind.LOG)
    await api.append(job, {"eval_loss": 0.25}, kind=Kind.EVAL)
    await api.end(job)

    [file] = (await client.fine_tuning.jobs.retrieve(tuning_job.id)).result_files

    assert (await client.files.retrieve(file)).purpose == "fine-tune-results"
    header, row = (await client.files.content(file)).text.splitlines()
    assert header == "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy"
    assert row == "0,0.5,,0.25,"


async def test_a_file_is_uploaded_in_parts_in_any_order(client: AsyncOpenAI, tmp_path: Path) -> None:
    content = rows(100)
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)

    whole = await client.uploads.upload_file_chunked(
        file=path, mime_type="text/jsonl", purpose="fine-tune", part_size=4000
    )

    assert (whole.status, whole.bytes) == ("completed", len(content))
    assert whole.file
    assert (await client.files.content(whole.file.id)).content == content
    tuning_job = await client.fine_tuning.jobs.create(model=BASE, training_file=whole.file.id)
    assert tuning_job.training_file == whole.file.id
    with pytest.raises(openai.ConflictError) as error:
        await client.uploads.parts.create(whole.id, data=b"more")
    assert error.value.code == "upload_ended"


async def test_a_repeated_completion_of_an_upload_returns_the_same_file(client: AsyncOpenAI) -> None:
    first, second = rows(1), rows(1, "3 + 3?")
    upload = await client.uploads.create(
        bytes=len(first + second), filename="rows.jsonl", mime_type="text/jsonl", purpose="fine-tune"
    )
    parts = [(await client.uploads.parts.create(upload.id, data=content)).id for content in (first, second)]

    whole = await client.uploads.complete(upload.id, part_ids=parts)
    again = await client.uploads.complete(upload.id, part_ids=parts)

    assert again == whole
    with pytest.raises(openai.ConflictError):
        await client.uploads.complete(upload.id, part_ids=parts[::-1])


async def test_an_upload_whose_parts_do_not_make_the_file_is_refused(
    client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = rows(2)
    upload = await client.uploads.create(
        bytes=len(content), filename="rows.jsonl", mime_type="text/jsonl", purpose="fine-tune"
    )
    first = await client.uploads.parts.create(upload.id, data=content[:50])
    last = await client.uploads.parts.create(upload.id, data=content[50:])

    refusals = {
        "wrong_size": {"part_ids": [first.id]},
        "duplicate_part": {"part_ids": [first.id, first.id]},
        "unknown_part": {"part_ids": [first.id, "part_none"]},
        "other_content": {"part_ids": [first.id, last.id], "md5": "0" * 32},
        "invalid_training_file": {"part_ids": [last.id, first.id]},
    }
    for code, completion in refusals.items():
        with pytest.raises(openai.BadRequestError) as error:
            await client.uploads.complete(upload.id, **completion)  # type: ignore[arg-type]
        assert error.value.code == code
    with pytest.raises(openai.BadRequestError) as too_much:
        await client.uploads.parts.create(upload.id, data=b"too much")
    assert too_much.value.code == "too_long"
    with pytest.raises(openai.BadRequestError) as nothing:
        await client.uploads.parts.create(upload.id, data=b"")
    assert nothing.value.code == "too_short", "any number of empty parts would fit into an upload"
    monkeypatch.setattr(openai_uploads, "MOST_PARTS", 2)
    with pytest.raises(openai.BadRequestError) as many:
        await client.uploads.parts.create(upload.id, data=b"a third part")
    assert many.value.code == "too_many_parts"
    assert (await client.uploads.cancel(upload.id)).status == "cancelled"


PAIR = {
    "input": {"messages": [{"role": "user", "content": "2 + 2?"}]},
    "preferred_output": [{"role": "assistant", "content": "4"}],
    "non_preferred_output": [{"role": "assistant", "content": "5"}],
}
PROMPT = {"messages": [{"role": "user", "content": "2 + 2?"}], "answer": "4"}
GRADER = {"type": "python", "name": "exact", "source": "def grade(sample, item):\n    return 1.0\n"}


async def test_preferences_are_trained_with_dpo(api: Api, client: AsyncOpenAI) -> None:
    file = await uploaded(client, json.dumps(PAIR).encode())

    tuning_job = await submitted(
        client, training_file=file, method={"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.2}}}
    )

    spec = (await api.client.get(f"/jobs/{tuning_job.id}/spec")).json()
    assert (spec["trainer"]["use"], spec["trainer"]["args"]["beta"]) == ("trl/dpo", 0.2)
    assert [item["use"] for item in spec["data"]["map"]] == ["openai/preferences"]
    assert tuning_job.method
    assert tuning_job.method.dpo
    assert tuning_job.method.dpo.hyperparameters
    assert tuning_job.method.dpo.hyperparameters.beta == 0.2


async def test_a_python_grader_becomes_a_bundle_with_a_reward(serve: Serve, sqlite_url: str) -> None:
    api = await serve(sqlite_url, code="on")
    client = client_of(api)
    fields: dict[str, Any] = {
        "model": "models://tiny",
        "training_file": await uploaded(client, json.dumps(PROMPT).encode()),
        "method": {"type": "reinforcement", "reinforcement": {"grader": GRADER}},
    }

    tuning_job = await client.fine_tuning.jobs.create(**fields)

    spec = (await api.client.get(f"/jobs/{tuning_job.id}/spec")).json()
    files = (await api.client.get(f"/bundles/{spec['code']['bundle']}")).json()["files"]
    assert sorted(file["path"] for file in files) == ["grader.py", "openai_reward.py"]
    assert spec["trainer"]["args"]["reward_funcs"][0]["use"] == "openai_reward:reward"
    assert spec["training"]["gradient_accumulation_steps"] == 1
    assert spec["training"]["per_device_train_batch_size"] == spec["trainer"]["args"]["num_generations"] == 8
    assert tuning_job.method
    assert tuning_job.method.reinforcement
    assert tuning_job.method.reinforcement.grader.name == "exact"
    fields["method"]["reinforcement"]["grader"] = {**GRADER, "source": "def score(sample, item): ..."}
    with pytest.raises(openai.BadRequestError, match="grade") as error:
        await client.fine_tuning.jobs.create(**fields)
    assert error.value.param == "method.reinforcement.grader.source"


@each_case(
    ("method", "status", "param"),
    [
        ({"type": "supervised"}, 400, "training_file"),
        ({"type": "reinforcement"}, 400, "method.reinforcement"),
        ({"type": "reinforcement", "reinforcement": {"grader": {**GRADER, "type": "score_model"}}},
         400, "method.reinforcement.grader"),
        ({"type": "reinforcement", "reinforcement": {"grader": GRADER, "hyperparameters": {"eval_interval": 5}}},
         400, "method.reinforcement.hyperparameters.eval_interval"),
        ({"type": "reinforcement", "reinforcement": {"grader": GRADER, "hyperparameters": {"eval_samples": 5}}},
         400, "method.reinforcement.hyperparameters.eval_samples"),
        ({"type": "reinforcement", "reinforcement": {"grader": GRADER}}, 403, None),
    ],
)  # fmt: skip
async def test_a_training_method_that_does_not_fit_is_refused(
    client: AsyncOpenAI, method: Any, status: int, param: str | None
) -> None:
    file = await uploaded(client, json.dumps(PROMPT).encode())

    with pytest.raises(openai.APIStatusError) as error:
        await submitted(client, training_file=file, method=method)

    assert (error.value.status_code, error.value.param) == (status, param), error.value.message


async def test_an_upload_is_either_completed_or_cancelled(client: AsyncOpenAI) -> None:
    for count in range(1, 6):
        content = rows(count)
        upload = await client.uploads.create(
            bytes=len(content), filename="rows.jsonl", mime_type="text/jsonl", purpose="fine-tune"
        )
        part = await client.uploads.parts.create(upload.id, data=content)

        outcomes = await asyncio.gather(
            client.uploads.complete(upload.id, part_ids=[part.id]),
            client.uploads.cancel(upload.id),
            return_exceptions=True,
        )

        assert sum(isinstance(outcome, openai.ConflictError) for outcome in outcomes) == 1
        is_stored = len(content) in [file.bytes async for file in client.files.list()]
        assert is_stored is isinstance(outcomes[1], openai.ConflictError)


async def test_a_part_that_arrives_during_a_cancel_is_refused(api: Api, client: AsyncOpenAI, tmp_path: Path) -> None:
    upload = await client.uploads.create(
        bytes=50, filename="rows.jsonl", mime_type="text/jsonl", purpose="fine-tune"
    )  # fmt: skip
    await client.uploads.parts.create(upload.id, data=b"{")

    async def body() -> AsyncIterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="data"; filename="a"\r\n\r\n{'
        while not list((tmp_path / "artifacts").rglob(".upload-*")):
            await asyncio.sleep(0.01)
        await client.uploads.cancel(upload.id)
        yield b"\r\n--x--\r\n"

    answer = await api.client.post(
        f"/v1/uploads/{upload.id}/parts",
        content=body(),
        headers={"Content-Type": "multipart/form-data; boundary=x"},
    )

    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "upload_ended")
    assert list((tmp_path / "artifacts" / "parts").iterdir()) == []
    assert list((tmp_path / "artifacts" / "files").iterdir()) == []


@pytest.mark.parametrize("ends", ["completed", "abandoned"])
async def test_parts_of_an_upload_are_removed_after_a_day(
    api: Api, client: AsyncOpenAI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    content = rows(1)
    upload = await client.uploads.create(
        bytes=len(content), filename="rows.jsonl", mime_type="text/jsonl", purpose="fine-tune"
    )
    part = await client.uploads.parts.create(upload.id, data=content)
    if ends == "completed":
        file = (await client.uploads.complete(upload.id, part_ids=[part.id])).file
    control_io = ControlIo("redis://127.0.0.1:1/0")
    control = ControlState(api.db, api.services.settings, control_io)

    await prune(control)
    assert len(list((tmp_path / "artifacts" / "parts" / upload.id).iterdir())) == 1
    monkeypatch.setattr(control_io, "now_ms", lambda: now_ms() + DAY_MS + 1)
    await prune(control)

    assert list((tmp_path / "artifacts" / "parts").iterdir()) == []
    with pytest.raises(openai.NotFoundError):
        await client.uploads.cancel(upload.id)
    if ends == "completed":
        assert file is not None
        assert (await client.files.content(file.id)).content == content


async def test_an_upload_accepts_parts_for_an_hour(client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    upload = await client.uploads.create(bytes=1, filename="a", mime_type="text/jsonl", purpose="fine-tune")
    monkeypatch.setattr(openai_uploads, "now_ms", lambda: now_ms() + openai_uploads.LIVES_MS)

    with pytest.raises(openai.ConflictError) as error:
        await client.uploads.parts.create(upload.id, data=b"{")

    assert error.value.code == "upload_ended"


async def test_the_fields_of_a_form_may_come_after_the_file(api: Api) -> None:
    def form(*parts: tuple[str, bytes]) -> dict[str, Any]:
        body = b"".join(
            b'--x\r\nContent-Disposition: form-data; name="' + name.encode() + b'"\r\n\r\n' + value + b"\r\n"
            for name, value in parts
        )
        return {"content": body + b"--x--\r\n", "headers": {"Content-Type": "multipart/form-data; boundary=x"}}

    file, purpose = ('file"; filename="a.jsonl', rows()), ("purpose", b"fine-tune")
    accepted = [await api.client.post("/v1/files", **form(*parts)) for parts in ((file, purpose), (purpose, file))]
    refusals = [
        await api.client.post("/v1/files", **form(*parts))
        for parts in ((file,), (file, purpose, purpose), (file, ("colour", b"red")), (purpose,))
    ]

    assert [answer.status_code for answer in accepted] == [200, 200]
    assert [answer.status_code for answer in refusals] == [400, 400, 400, 400]
    sentences = [answer.json()["error"]["message"] for answer in refusals]
    assert [word in sentence for word, sentence in zip(
        ("purpose: is missing", "twice", "'colour'", "no file"), sentences, strict=True
    )] == [True] * 4, sentences  # fmt: skip


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("[]", "must hold an object"),
        ("{", "is not JSON"),
        ('{"a": 5}', "'a' must be a path"),
        ('{"a": {"model": "hf/causal-lm", "name": "x"}}', "must not have name"),
        ('{"a": {"model": "hf/causal-lm", "training": {"learning_rate": "x"}}}', "/training/learning_rate"),
        (None, "No such file"),
    ],
)
def test_an_invalid_file_of_base_models_stops_the_start(tmp_path: Path, content: str | None, why: str) -> None:
    path = tmp_path / "models.json"
    if content is not None:
        path.write_text(content)

    with pytest.raises(SettingsError, match="FOOTPLATE_OPENAI_MODELS") as error:
        ServiceSettings.from_environment({"FOOTPLATE_OPENAI_MODELS": str(path)})

    assert why in error.value.message
