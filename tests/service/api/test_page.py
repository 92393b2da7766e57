"""The page in a real browser: what a person sees and clicks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.async_api import Page, async_playwright, expect

from service.store import jobs
from service.store.times import now_ms
from tests.service.api.conftest import KEY, PATIENCE, Api, Serve

pytestmark = pytest.mark.browser
expect.set_options(timeout=PATIENCE * 1000)


@pytest.fixture
async def page(chromium_path: str) -> AsyncIterator[Page]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium_path,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"],
        )
        opened = await browser.new_page()
        opened.set_default_timeout(PATIENCE * 1000)
        # What the page logs as an error, a broken content security policy for one, fails the test.
        problems: list[str] = []
        opened.on("pageerror", lambda error: problems.append(str(error)))
        opened.on("console", lambda told: problems.append(told.text) if "Content Security" in told.text else None)
        yield opened
        await browser.close()
        assert problems == []


async def test_a_person_sees_a_job_move_and_stops_it(api: Api, page: Page) -> None:
    job = await api.submit(name="<b>first</b>")
    await page.goto(f"{api.url}/#%E0%A4%A")  # is no text, and names no job

    await expect(page.locator("#name")).to_have_text("<b>first</b>")
    await expect(page.locator("#state")).to_have_text("queued")
    await expect(page.locator("#curve")).to_contain_text("No loss yet")
    await _log(api, job, [2.0, 1.0, 0.5])
    await expect(page.locator("#legend")).to_have_text("loss 0.5")
    assert (await page.locator("#curve path").get_attribute("d") or "").count("L") == 2
    await expect(page.locator("#curve text").last).to_have_attribute("text-anchor", "end")  # a long number is cut else
    await page.get_by_role("button", name="Pause").click()
    await expect(page.locator("#state")).to_have_text("paused")
    await page.get_by_role("button", name="Resume").click()
    await expect(page.locator("#state")).to_have_text("queued")
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.locator("#state")).to_have_text("cancelled")
    await page.get_by_role("button", name="Delete").click()
    await expect(page.locator("#none")).to_be_visible()


async def test_a_person_with_the_key_gets_in_and_one_without_does_not(
    serve: Serve, sqlite_url: str, page: Page
) -> None:
    api = await serve(sqlite_url, api_key=KEY)
    job = await api.submit(name="guarded")
    await page.goto(api.url)

    await page.get_by_label("This service needs a key").fill("wrong")
    await page.get_by_role("button", name="Use it").click()
    await expect(page.locator("#said")).to_have_text("this key is not one of ours")
    await page.get_by_label("This service needs a key").fill(KEY)
    await page.get_by_role("button", name="Use it").click()
    await expect(page.locator("#name")).to_have_text("guarded")
    await _log(api, job, [1.0])

    await expect(page.locator("#legend")).to_have_text("loss 1")
    assert KEY not in page.url


async def _log(api: Api, job: Any, losses: list[float]) -> None:
    """Logs with steps, as a worker's have them."""
    import json

    from service.store import events
    from service.store.rows import EventRow
    from service.store.times import text_of

    def write(conn: Any) -> None:
        row = jobs.lock(conn, job)
        assert row
        numbers = range(row.last_no + 1, row.last_no + 1 + len(losses))
        events.insert_many(conn, [
            EventRow(job, no, 1, 0, no, 0, "log", text_of(now_ms()), step, 0.1, json.dumps({"loss": loss}))
            for step, (no, loss) in enumerate(zip(numbers, losses, strict=True), 1)
        ])  # fmt: skip
        progress = json.dumps({"step": len(losses), "max_steps": 10, "epoch": 0.1, "eta_s": 3.0})
        jobs.record(conn, job, last_no=numbers[-1], progress=progress, metrics=json.dumps({"loss": losses[-1]}))

    await api.db.write(write)
    api.services.tail.wake([job])
