"""Tests two checkpoints side by side in a real browser. The test plays the node of their sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, expect

from footplate.contract.ids import JobId
from footplate.contract.serving import AnswerPieceKind
from tests.service.api.conftest import Api
from tests.service.api.test_dashboard import chromium as chromium
from tests.service.api.test_dashboard import connected, opened
from tests.service.api.test_predict import Node, trained
from tests.service.api.test_predict import api as api
from tests.service.api.test_predict import node as node
from tests.service.api.test_predict import standing_redis as standing_redis
from tests.support.processes import until_async

pytestmark = pytest.mark.browser
DONE = {"choices": [{"index": 0, "text": "at dawn", "finish_reason": "stop", "tokens": 2}], "prompt_tokens": 3}


@pytest.fixture
async def page(chromium: str) -> AsyncIterator[Page]:
    async with connected(chromium) as browser, opened(browser) as page:
        yield page


async def test_two_checkpoints_answer_one_prompt_side_by_side(api: Api, node: Node, page: Page) -> None:
    job = await trained(api, steps=2, name="timetable")
    await page.goto(f"{api.url}/#/jobs/{job}")
    await page.get_by_role("link", name="try…").click()
    first, second = (page.get_by_label(f"{name} checkpoint") for name in ("First", "Second"))
    await second.get_by_label("Job").select_option(label="timetable")
    await second.get_by_label("Checkpoint").select_option(label="step 1")
    await page.get_by_label("chat", exact=True).check()
    await page.get_by_label("A message.").fill("when?")
    await page.get_by_role("button", name="Ask").click()

    async def both() -> list[JobId]:
        sessions = await node.sessions(job)
        return sessions if len(sessions) == 2 else []

    for session in await until_async(both, what="each checkpoint has a session"):
        request = await node.next_request(session)
        assert request["body"]["messages"] == [{"role": "user", "content": "when?"}]
        await expect(page.get_by_text("Waits for its session, try timetable").first).to_be_visible()
        await node.send_piece(request["id"], AnswerPieceKind.STARTED)
        await node.send_piece(request["id"], AnswerPieceKind.CHUNK, index=0, text="at")
        if session == (await node.sessions(job))[0]:
            await node.send_piece(request["id"], AnswerPieceKind.CHUNK, index=0, text=" dawn")
            await node.send_piece(request["id"], AnswerPieceKind.DONE, **DONE)
        else:
            await node.send_piece(
                request["id"], AnswerPieceKind.ERROR, code="serving_ended", message="the node went away"
            )

    chats = page.locator(".chat .assistant")
    await expect(chats).to_have_count(1)
    await expect(chats).to_contain_text("at dawn")
    await expect(page.get_by_role("alert")).to_contain_text("the node went away")
    await expect(first).to_contain_text("when?")
    for width in (1280, 390):
        await page.set_viewport_size({"width": width, "height": 800})
        outcome = await Axe().run(page, options={"resultTypes": ["violations"]})
        assert outcome.violations_count == 0, outcome.generate_report()
