"""Tests the administration of keys and webhooks by command and SDK, with a service on a socket."""

from __future__ import annotations

import asyncio
import json

import pytest

from footplate import AsyncClient, Client
from footplate.errors import InvalidRequest, NotFound, Unauthorized
from tests.service.api.conftest import KEY, Api, Command, Serve
from tests.service.api.test_webhooks import LOOPBACK, Receiver, Sender, receiver  # noqa: F401  # a fixture


@pytest.fixture
async def api(serve: Serve, sqlite_url: str) -> Api:
    return await serve(sqlite_url, api_key=KEY, webhooks_allow=LOOPBACK)


async def good(command: Command, *words: str) -> str:
    code, out, err = await command(*words)
    assert code == 0, err
    return out


async def test_a_key_is_created_listed_and_refused_from_a_shell(api: Api, command: Command) -> None:
    code, secret, report = await command(
        "keys", "create", "ci", "--project", "vision", "--scope", "submit", "--expires-in", "90d"
    )

    assert (code, secret[:4]) == (0, "fpk_")
    assert "may submit; the key is not shown again" in report
    assert "without the scope 'read'" in report
    answer = await api.client.get("/jobs", headers={"Authorization": f"Bearer {secret.strip()}"})
    assert (answer.json()["code"], "'read'" in answer.json()["detail"]) == ("forbidden", True)
    (entry,) = (json.loads(line) for line in (await good(command, "keys", "--json")).splitlines())
    assert (entry["name"], entry["project"], entry["scopes"]) == ("ci", "vision", ["submit"])
    assert entry["expires_at"] is not None
    assert secret.strip() not in await good(command, "keys")
    assert await good(command, "keys", "delete", entry["id"]) == f"{entry['id']} deleted\n"
    assert (await command("keys", "delete", entry["id"]))[0] == 3


async def test_a_webhook_is_created_changed_tested_and_deleted_from_a_shell(
    api: Api,
    command: Command,
    receiver: Receiver,  # noqa: F811
) -> None:
    secret = (await good(command, "webhooks", "create", receiver.url, "--state", "queued,failed", "--tag", "a")).strip()
    (hook,) = (json.loads(line) for line in (await good(command, "webhooks", "--json")).splitlines())
    assert (hook["states"], hook["tags"], "secret" in hook) == (["failed", "queued"], ["a"], False)

    await good(command, "webhooks", "test", hook["id"])
    await Sender(api).send_due()

    assert receiver.requests[0].is_signed_with(secret)
    assert "  ping  " in await good(command, "webhooks", "deliveries", hook["id"])
    updated_hook = json.loads(
        await good(command, "webhooks", "--json", "update", hook["id"], "--state", "all", "--disable")
    )
    assert (updated_hook["states"], updated_hook["tags"], updated_hook["enabled"]) == (None, ["a"], False)
    assert "disabled: by hand" in await good(command, "webhooks")
    code, another, report = await command("webhooks", "rotate", hook["id"], "--overlap", "2h")
    assert (code, another.strip() != secret, "old secret" in report) == (0, True, True)
    code, _, errors = await command("webhooks", "update", hook["id"])
    assert (code, "--to URL, --state" in errors) == (2, True)
    code, _, errors = await command("webhooks", "update", hook["id"], "--to", "https://10.0.0.1/")
    assert (code, "/url" in errors and "10.0.0.1" in errors) == (2, True)
    assert await good(command, "webhooks", "delete", hook["id"]) == f"{hook['id']} deleted\n"
    assert (await command("webhooks", "delete", hook["id"]))[0] == 3


async def test_a_webhook_in_openais_format_is_created_by_shell_and_client(
    api: Api,
    command: Command,
    receiver: Receiver,  # noqa: F811
) -> None:
    def blocking() -> str:
        with Client(api.url, KEY) as client:
            return client.webhooks.create(receiver.url, format="openai").format

    assert await asyncio.to_thread(blocking) == "openai"
    await good(command, "webhooks", "create", receiver.url, "--format", "openai")
    await good(command, "webhooks", "create", receiver.url)

    hooks = [json.loads(line) for line in (await good(command, "webhooks", "--json")).splitlines()]
    assert [hook["format"] for hook in hooks] == ["openai", "openai", "footplate"]
    assert "  openai  " in await good(command, "webhooks")


async def test_both_clients_administer_keys_and_webhooks_in_the_same_way(api: Api, receiver: Receiver) -> None:  # noqa: F811
    def blocking() -> str:
        with Client(api.url, KEY) as client:
            key = client.keys.create("ci", "vision", scopes=["admin"], expires_in=3600)
            assert [entry.id for entry in client.keys.list()] == [key.id]
            assert key.key not in repr(key)
        with Client(api.url, key.key) as client:
            hook = client.webhooks.create(receiver.url, states=["failed"])
            assert hook.secret not in repr(hook)
            assert client.webhooks.update(hook.id, states=None, description="ours").states is None
            assert client.webhooks.get(hook.id).description == "ours"
            assert client.webhooks.rotate(hook.id, overlap=0).secret != hook.secret
            delivery = client.webhooks.test(hook.id)
            assert list(client.webhooks.deliveries(hook.id)) == [delivery]
            with pytest.raises(InvalidRequest, match="queued"):
                client.webhooks.update(hook.id, states=["queud"])
            client.keys.delete(key.id)
            with pytest.raises(Unauthorized):
                client.webhooks.list()
        return hook.id

    hook = await asyncio.to_thread(blocking)
    async with AsyncClient(api.url, KEY) as client:
        assert await client.keys.list() == []
        assert await client.webhooks.list() == [], "the webhook of another project must not be listed"
        with pytest.raises(NotFound):
            await client.webhooks.get(hook)
        webhook = await client.webhooks.create(receiver.url)
        assert [entry.id for entry in await client.webhooks.list()] == [webhook.id]
        await client.webhooks.delete(webhook.id)
        assert await client.webhooks.list() == []
