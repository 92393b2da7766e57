"""Tests the dashboard in a real browser with the real service."""

from __future__ import annotations

import json
import re
import struct
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, Route, async_playwright, expect
from sqlalchemy import Connection, insert, select

from footplate.contract.events import Kind
from footplate.contract.ids import JobId
from footplate.contract.messages import Gpu
from service.jobs.resume import Resume
from service.store import checkpoints, jobs, nodes, tables
from tests.conformance.acting import Stage
from tests.conformance.test_curves import send_logs
from tests.service.api.conftest import KEY, PATIENCE, Api, Serve, servers
from tests.service.api.test_curves import trained
from tests.service.api.test_forks import trained as trained_to_the_end
from tests.service.api.test_keys import a_key
from tests.service.api.test_system import a_node
from tests.service.api.test_webhooks import LOOPBACK, Sender, receiving
from tests.support.processes import Processes, nothing_is_left_behind, until_async

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]
expect.set_options(timeout=PATIENCE * 1000)
SOURCES = Path(__file__).parents[3] / "web"
FLAGS = (
    "--headless=new", "--remote-debugging-port=0", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--disable-sync",
    "--disable-background-timer-throttling", "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding", "--disable-field-trial-config", "--no-default-browser-check",
    "--no-first-run", "--hide-scrollbars", "--mute-audio", "--password-store=basic", "--use-mock-keychain",
)  # fmt: skip


@pytest.fixture(scope="module")
def chromium(chromium_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yields the address of one browser for all tests of this module. Each test opens a context of its own."""
    folder = tmp_path_factory.mktemp("chromium")
    processes = Processes(folder)
    profile = folder / "profile"
    browser = processes.start(chromium_path, *FLAGS, f"--user-data-dir={profile}", "about:blank", name="chromium")
    port = browser.until((profile / "DevToolsActivePort").read_text, within=60, what="the browser listens")
    yield f"http://127.0.0.1:{port.splitlines()[0]}"
    processes.stop_all()
    nothing_is_left_behind(folder)


@asynccontextmanager
async def connected(chromium: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        yield await playwright.chromium.connect_over_cdp(chromium)


@asynccontextmanager
async def opened(browser: Browser) -> AsyncIterator[Page]:
    """Opens a page that must log no error, which includes a violation of the content security policy."""
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    page = await context.new_page()
    page.set_default_timeout(PATIENCE * 1000)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if "Content Security" in line.text else None)
    yield page
    await context.close()
    assert problems == []


# These fixtures and all tests of this module share one event loop, because Playwright's driver belongs to a loop. Each
# start of the driver takes 0.7 s of CPU time.
@pytest_asyncio.fixture(loop_scope="module")
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    async with servers(tmp_path) as serve:
        yield serve


@pytest_asyncio.fixture(loop_scope="module")
async def api(serve: Serve, sqlite_url: str) -> Api:
    return await serve(sqlite_url)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    async with connected(chromium) as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser) -> AsyncIterator[Page]:
    async with opened(browser) as page:
        yield page


async def test_a_person_watches_a_job_and_steers_it(api: Api, page: Page) -> None:
    job, worker = trained(api, [{"loss": 2.0}, {"loss": 1.0}], name="<b>first</b>")
    # The fragment is malformed, so the dashboard opens the table of jobs.
    await page.goto(f"{api.url}/#%E0%A4%A")

    await page.get_by_role("link", name="<b>first</b>").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("<b>first</b>")
    chart = page.locator("[data-metric=loss]")
    await expect(chart.locator(".legend b")).to_have_text("1")
    send_logs(worker, [{"loss": 0.5, "eval/f1": 0.75}])
    api.services.tail.wake([job])
    await expect(chart.locator(".legend b")).to_have_text("0.5")
    await expect(page.locator(".metric-group > summary")).to_have_text(["train 1", "eval 1"])
    await page.get_by_label("x axis").select_option("Wall time")
    send_logs(worker, [{"loss": 0.25}])
    api.services.tail.wake([job])
    await expect(chart.locator(".legend b")).to_have_text("0.25")

    await page.get_by_role("tab", name="spec").click()
    await expect(page.locator(".json")).to_contain_text('"use": "toy/mlp"')
    await page.get_by_role("tab", name="API").click()
    await page.get_by_text(f"POST /jobs/{job}/pause").click()
    await expect(page.locator(".api")).to_contain_text(f"footplate pause {job}")
    await page.get_by_role("button", name="pause", exact=True).click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("stopping")
    await page.get_by_role("tab", name="attempts").click()
    await expect(page.locator(".timeline")).to_contain_text("Attempt 1 on")


async def test_a_resume_from_an_older_checkpoint_shortens_the_open_curves(api: Api, page: Page) -> None:
    job, worker = trained(api, [{"loss": 2.0}, {"loss": 1.5}])
    stage = Stage(api.db)
    worker.checkpoints(2, metrics={"loss": 1.5})
    send_logs(worker, [{"loss": 0.5}, {"loss": 0.25}], first_step=3)
    worker.send(worker.write(Kind.PROGRESS, {"step": 4, "max_steps": 9, "epoch": 0.5}, 4))
    worker.checkpoints(4, metrics={"loss": 0.25})
    stage.pause(job)
    worker.ends("stopped", "pause", stop="pause")
    last_and_best = page.locator("[data-job] .number")
    await page.goto(f"{api.url}/#/jobs?sel={job}&cols=name,metric:loss:last,metric:loss:best")
    legend = page.locator("[data-metric=loss] .legend b")
    await expect(legend).to_have_text("0.25")
    await expect(last_and_best).to_have_text(["0.25", "0.25"])

    oldest = stage.read(lambda conn: checkpoints.of_job(conn, job))[-1]
    stage.resume(job, Resume(checkpoint=oldest.id))
    api.services.tail.wake([job])

    await expect(legend).to_have_text("1.5")
    await expect(last_and_best).to_have_text(["1.5", "1.5"])


async def test_the_log_and_the_events_of_a_job_are_followed_without_its_curves(api: Api, page: Page) -> None:
    job, worker = trained(api, [{"loss": 2.0}])
    worker.send(worker.write(Kind.LINE, {"stream": "stderr", "text": "first WARNING"}))
    await page.goto(f"{api.url}/#/jobs/{job}?tab=log")

    log = page.locator(".log > div")
    await expect(log).to_have_text(["0 first WARNING"])
    worker.send(worker.write(Kind.LINE, {"stream": "stderr", "text": "second"}))
    api.services.tail.wake([job])
    await expect(log).to_have_text(["0 first WARNING", "0 second"])
    await page.get_by_role("tab", name="events").click()
    worker.send(worker.write(Kind.NOTE, {"message": "third"}))
    api.services.tail.wake([job])
    await expect(page.locator("#panel tbody tr").first).to_contain_text("third")


async def test_a_live_command_sent_from_the_page_shows_its_result(api: Api, page: Page) -> None:
    job, worker = trained(api, [{"loss": 2.0}])
    await page.goto(f"{api.url}/#/jobs/{job}?tab=spec")

    await page.get_by_role("button", name="learning rate…").click()
    for wrong in ("fast", "-0.1"):
        await page.get_by_label("Learning rate").fill(wrong)
        await page.get_by_role("button", name="Set").click()
        await expect(page.get_by_role("alert")).to_contain_text(f"“{wrong}” is not a learning rate")
    await page.get_by_label("Learning rate").fill("0.002")
    await page.get_by_role("button", name="Set").click()
    await expect(page.locator(".answered")).to_have_text(re.compile("requested: learning_rate 0.002"))
    worker.send(worker.write(Kind.DO, {"status": "done", "message": "learning_rate is 0.002"}, 7))
    api.services.tail.wake([job])
    await expect(page.locator(".answered")).to_have_text("At step 7: learning_rate is 0.002.")


async def test_charts_show_cpu_memory_and_gpu_use_from_the_first_minute(api: Api, page: Page) -> None:
    job, worker = trained(api, [{"loss": 2.0}])
    worker.stage.beat_node(worker.node, gpus=[Gpu(uuid="gpu-a", name="H100", memory_mb=80_000)])
    gpus = [{"uuid": "gpu-a", "percent": 80, "memory_mb": 900}]
    worker.send(worker.write(Kind.SYSTEM, {"running_s": 10.0, "cpu_percent": 50.0, "memory_mb": 300.0, "gpus": gpus}))
    await page.goto(f"{api.url}/#/jobs/{job}")

    await expect(page.locator('[data-metric="system/cpu_percent"] .legend b')).to_have_text("50")
    await expect(page.locator('[data-metric="system/gpu0_percent"] .legend b')).to_have_text("80")
    worker.send(worker.write(Kind.SYSTEM, {"running_s": 20.0, "cpu_percent": 60.0, "memory_mb": 300.0, "gpus": gpus}))
    api.services.tail.wake([job])
    await expect(page.locator('[data-metric="system/cpu_percent"] .legend b')).to_have_text("60")
    await page.goto(f"{api.url}/#/cluster")
    await expect(page.get_by_role("list", name="GPUs")).to_contain_text("H100 80 % · 0.879 of 78.1 GiB")
    await page.goto(f"{api.url}/#/cluster?project=other")
    await expect(page.get_by_role("list", name="GPUs")).to_have_text("H100 78.1 GiB")


async def test_use_of_the_machine_is_drawn_over_time_also_where_others_have_steps(api: Api, page: Page) -> None:
    job, worker = trained(api, [{"f1@0.5,0.9": 0.25}])
    worker.send(worker.write(Kind.SYSTEM, {"running_s": 10.0, "cpu_percent": 50.0}))
    await page.goto(f"{api.url}/#/jobs/{job}?x=epoch")

    await expect(page.locator("[data-metric='f1@0.5,0.9'] canvas")).to_be_visible()
    chart = page.locator("[data-metric='system/cpu_percent']")
    await expect(chart.locator("canvas")).to_be_visible()
    await expect(chart).to_contain_text("over relative time")
    await page.goto(f"{api.url}/#/jobs?cols=name,metric:f1@0.5\\,0.9:last")
    await expect(page.locator("[data-job] .number")).to_have_text(["0.25"])


async def test_an_administrator_drains_a_node_and_removes_it_once_it_is_lost(api: Api, page: Page) -> None:
    node = await a_node(api)
    await page.goto(f"{api.url}/#/cluster")
    cards = page.get_by_role("region", name="Nodes")

    await cards.get_by_role("button", name="drain").click()
    await cards.get_by_role("button", name="Yes, drain").click()
    await expect(cards.get_by_role("button", name="undrain")).to_be_visible()
    await api.db.write(lambda conn: nodes.change(conn, node, lost=True))
    await cards.get_by_role("button", name="remove").click()
    await expect(cards.get_by_role("alertdialog")).to_contain_text("leaves the list until it sends a heartbeat")
    await cards.get_by_role("button", name="Yes, remove").click()

    await expect(cards).to_contain_text("No node is connected")
    assert (await api.client.get("/nodes")).json()["data"] == []


async def test_a_download_goes_to_the_disk_and_says_why_it_cannot(serve: Serve, sqlite_url: str, page: Page) -> None:
    api = await serve(sqlite_url, api_key=KEY)
    job = await api.submit()
    folder = api.services.settings.artifacts_path / "jobs" / job / "attempts" / "1" / "outputs"
    folder.mkdir(parents=True)
    (folder / "model #1.bin").write_bytes(b"weights")
    await api.db.write(lambda conn: jobs.record(conn, job, outputs=f"jobs/{job}/attempts/1/outputs"))
    await page.goto(f"{api.url}/#/jobs/{job}?tab=outputs")
    await page.get_by_label("Key").fill(KEY)
    await page.get_by_role("button", name="Log in").click()
    file = page.get_by_role("button", name="model #1.bin")

    async with page.expect_download() as download_info:
        await file.click()
    download = await download_info.value

    assert download.suggested_filename == "model #1.bin"
    assert download.url.startswith(api.url), "the file was kept in the page's memory"
    assert (await download.path()).read_bytes() == b"weights"
    (folder / "model #1.bin").unlink()
    await file.click()
    await expect(page.locator(".message")).to_contain_text("model #1.bin cannot be downloaded: the job has no output")


async def test_a_person_finds_selects_and_cancels_jobs_in_the_table(api: Api, page: Page) -> None:
    ids = [await api.submit(name=f"run-{number}", tags=["sweep"], priority=number) for number in range(3)]
    await api.submit(name="other")
    await page.goto(f"{api.url}/#/jobs?cols=name,state,priority,spec:model.use")

    names = page.locator("[data-job] a")
    await expect(names).to_have_text(["other", "run-2", "run-1", "run-0"])
    await expect(page.locator("[data-job]").first).to_contain_text("toy/mlp")
    await page.get_by_label("Search jobs").fill("run")
    await page.get_by_role("columnheader", name="Priority").get_by_role("button").click()
    await expect(names).to_have_text(["run-2", "run-1", "run-0"])
    await page.get_by_role("columnheader", name="Priority").get_by_role("button").click()
    await expect(names).to_have_text(["run-0", "run-1", "run-2"])
    assert "sort=priority" in page.url

    await page.get_by_label("Show curves of run-0").click()
    await page.get_by_label("Show curves of run-1").click()
    await page.get_by_label("Search jobs").fill("run-0")
    selection = page.get_by_role("group", name="Selected jobs")
    await expect(selection).to_contain_text("2 selected, 1 of them hidden by the filters")
    for verb in ("Add tag", "Remove tag"):
        await selection.get_by_role("button", name="tag…").click()
        await selection.get_by_label("Tag", exact=True).fill("kept")
        await selection.get_by_role("button", name=verb).click()
        await expect(page.locator(".message")).to_contain_text("2 jobs have “kept”")
    await page.get_by_label("Search jobs").fill("run")
    await page.get_by_role("button", name="cancel 2").click()
    await page.get_by_role("button", name="Yes, cancel").click()
    await expect(page.locator(".state.cancelled")).to_have_count(2)
    await page.reload()
    await expect(names).to_have_text(["run-0", "run-1", "run-2"])
    await page.get_by_role("combobox", name="State").select_option("cancelled")
    await expect(names).to_have_text(["run-0", "run-1"])
    await names.first.click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("run-0")
    await page.keyboard.press("Escape")
    await expect(names).to_have_text(["run-0", "run-1"])
    assert (await api.client.get(f"/jobs/{ids[2]}")).json()["state"] == "queued"
    assert (await api.client.get(f"/jobs/{ids[0]}")).json()["tags"] == ["sweep"]
    missing_urls: list[str] = []
    page.on("response", lambda response: missing_urls.append(response.url) if response.status == 404 else None)
    await page.get_by_role("button", name="delete 2").click()
    await expect(page.get_by_role("alertdialog")).to_contain_text("delete 2 jobs with events, checkpoints")
    await page.get_by_role("button", name="Yes, delete").click()
    await expect(page.get_by_text("No job matches")).to_be_visible()
    # The address does not ask for the deleted jobs again.
    await expect(page).not_to_have_url(re.compile("sel="))
    await page.goto(f"{api.url}/#/jobs/{ids[0]}")
    await expect(page.locator("main").get_by_role("status")).to_contain_text("was deleted")
    assert missing_urls == [], "the page must not ask for the deleted jobs"


async def test_the_first_visit_shows_the_curves_of_jobs_that_train(api: Api, page: Page) -> None:
    job, _ = trained(api, [{"loss": 1.0}], name="training")
    trained(api, [{"loss": 1.0}], name="session", metadata={"of": job, "checkpoint": "latest"})

    await page.goto(f"{api.url}/#/jobs")

    await expect(page.get_by_role("group", name="Selected jobs")).to_contain_text("1 selected")
    await expect(page).to_have_url(re.compile(f"sel={job}"))


async def test_a_question_before_an_action_takes_the_focus_and_gives_it_back(api: Api, page: Page) -> None:
    job, worker = trained(api, [{"loss": 2.0}])
    worker.checkpoints(1, metrics={})
    worker.checkpoints(2, metrics={})
    await page.goto(f"{api.url}/#/jobs/{job}?tab=checkpoints")
    await page.get_by_role("button", name="cancel").press("Enter")
    await expect(page.get_by_role("button", name="No", exact=True)).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("alertdialog")).to_have_count(0)
    await expect(page.get_by_role("button", name="cancel")).to_be_focused()
    await expect(page).to_have_url(re.compile(job))
    delete = page.locator("#panel tbody tr").last.get_by_role("button", name="delete")
    await delete.press("Enter")
    await page.keyboard.press("Escape")
    await expect(delete).to_be_focused()
    await delete.press("Enter")
    await page.get_by_role("button", name="Yes, delete").press("Enter")
    await expect(page.locator("#panel tbody tr")).to_have_count(1)
    # The row with the focus is gone, so Tab goes on from the rows around it.
    await expect(page.locator("#panel tbody")).to_be_focused()

    await page.goto(f"{api.url}/#/jobs?sel={job}")
    for tag in ("one", "two"):
        await page.get_by_role("button", name="tag…").press("Enter")
        await expect(page.get_by_label("Tag", exact=True)).to_be_focused()
        await page.keyboard.type(f"{tag}\n")
        await expect(page.locator("[data-job]")).to_contain_text(tag)
        await expect(page.get_by_role("button", name="tag…")).to_be_focused()


async def test_an_address_sorts_and_selects_jobs_that_are_older_than_the_newest_page(api: Api, page: Page) -> None:
    job = await trained_to_the_end(api, name="oldest")

    def copy(conn: Connection) -> None:
        row = dict(conn.execute(select(tables.jobs)).one()._mapping)
        rows = [{**row, "id": f"job_{number:032x}", "name": f"run-{number}"} for number in range(300)]
        conn.execute(insert(tables.jobs), rows)

    await api.db.write(copy)
    first = f"job_{0:032x}"
    await page.goto(f"{api.url}/#/jobs?sort=created&sel={first}")
    names = page.locator("[data-job] a")

    await expect(page.locator(".bulk")).to_contain_text("1 selected")
    await expect(page.get_by_text("301 jobs")).to_be_visible()
    await page.get_by_label("Search jobs").press_sequentially("oldest")
    await names.first.click()
    await expect(page).to_have_url(re.compile(job))
    await page.go_back()
    await expect(page.get_by_label("Search jobs")).to_have_value("oldest")


async def test_filters_by_spec_metric_time_and_tag_narrow_the_table_and_are_in_the_address(
    api: Api, page: Page
) -> None:
    for name, rate, loss in (("low", 0.1, 0.2), ("high", 0.5, 0.9), ("best", 0.1, 0.1)):
        trained(
            api, [{"loss": loss}], name=name, tags=[f"is-{name}"], training={"max_steps": 10, "learning_rate": rate}
        )
    names = page.locator("[data-job] a")

    async def add(field: str, condition: str, value: str) -> None:
        await page.get_by_text("Filter", exact=True).click()
        await page.get_by_label("Field", exact=True).fill(field)
        await page.get_by_label("Condition").select_option(condition)
        await page.get_by_label("Value", exact=True).fill(value)
        await page.get_by_role("button", name="Add filter").click()

    await page.goto(f"{api.url}/#/jobs")
    await expect(names).to_have_text(["best", "high", "low"])
    await add("created", "<", "24h")
    await expect(page.get_by_text("No job matches")).to_be_visible()
    await page.get_by_role("button", name="Remove the filter Created before 24h ago").click()
    await add("created", ">", "24h")
    await add("learning_rate", "is", "0.1")
    await expect(names).to_have_text(["best", "low"])
    await page.reload()
    await expect(names).to_have_text(["best", "low"])
    await add("loss", "<", "0.15")
    await expect(names).to_have_text(["best"])
    await page.get_by_role("button", name="Remove the filter loss < 0.15").click()
    await add("tag", "is", "is-low")
    await expect(names).to_have_text(["low"])
    await add("lss", "is", "1")
    await expect(page.get_by_role("alert")).to_contain_text("No job here has “lss”")


async def test_a_chart_follows_live_points_without_outliers_and_needs_values_on_its_axis(api: Api, page: Page) -> None:
    job, worker = trained(api, [])
    for step in range(1, 31):
        worker.send(worker.write(Kind.LOG, {"loss": 1.0 + step / 1000}, step))
    await page.add_init_script(
        "window.saved = []; URL.createObjectURL = (blob) => (blob.text().then((text) => window.saved.push(text)), '#');"
        "HTMLAnchorElement.prototype.click = () => undefined"
    )
    await page.goto(f"{api.url}/#/jobs/{job}?outliers=0")
    chart = page.locator("[data-metric=loss]")
    await expect(chart.locator("canvas")).to_be_visible()
    for step in range(31, 91):
        worker.send(worker.write(Kind.LOG, {"loss": 700.0 + step}, step))
    api.services.tail.wake([job])
    await expect(chart.locator(".legend b")).to_have_text("790")
    await page.get_by_label("Save loss").click()

    async def shows_the_new_points() -> bool:
        await page.get_by_role("button", name="SVG").click()
        return ">600<" in "".join(await page.evaluate("window.saved"))

    await until_async(shows_the_new_points, what="the axis reaches the new points")
    await page.get_by_label("x axis").select_option("epoch")
    await expect(chart).to_contain_text("No value of loss with an epoch yet.")
    await expect(chart.locator("canvas")).to_have_count(0)


async def test_jobs_that_differ_by_their_seed_are_drawn_as_one_band(api: Api, page: Page) -> None:
    ids = [
        trained(
            api,
            [{"loss": seed * rate}],
            name=f"r{rate}-s{seed}",
            training={"max_steps": 10, "learning_rate": rate, "seed": seed},
        )[0]
        for rate in (0.1, 0.2)
        for seed in (1, 3)
    ]
    await page.goto(f"{api.url}/#/jobs?sel={','.join(ids)}")
    legend = page.locator("[data-metric=loss] .legend li")
    await expect(legend).to_have_count(4)

    await page.get_by_label("Group").select_option("seeds together")

    await expect(legend).to_have_text(
        [re.compile(r"r0\.1 \(2\)0\.20\.1 to 0\.3"), re.compile(r"r0\.2 \(2\)0\.40\.2 to 0\.6")]
    )


async def test_charts_say_that_the_curves_of_other_jobs_are_still_loading(api: Api, page: Page) -> None:
    first, _ = trained(api, [{"loss": 2.0}], name="first")
    second, _ = trained(api, [{"loss": 1.0}], name="second")
    routes: list[Route] = []

    async def hold(route: Route) -> None:
        routes.append(route)

    await page.route(f"**/jobs/{second}/metrics/series*", hold)
    await page.goto(f"{api.url}/#/jobs?sel={first},{second}")
    lines = page.locator("[data-metric=loss] .legend li")

    await expect(lines).to_have_count(1)
    await expect(page.get_by_text("Loading curves")).to_be_visible()
    for route in routes:
        await route.continue_()

    await expect(lines).to_have_count(2)
    await expect(page.get_by_text("Loading curves")).to_have_count(0)


async def test_the_queue_shows_the_order_in_which_jobs_start(api: Api, page: Page) -> None:
    await api.submit(name="later")
    first = await api.submit(name="sooner", priority=9)
    last = await api.submit(name="last", priority=-1)

    await page.goto(f"{api.url}/#/cluster")
    rows = page.get_by_role("region", name="Queue").locator("tbody tr")
    await expect(rows.locator("td:nth-child(1), td:nth-child(3)")).to_have_text(
        ["1", "sooner", "2", "later", "3", "last"]
    )
    await page.goto(f"{api.url}/#/jobs/{last}")
    await expect(page.locator(".job-header")).to_contain_text("Place 3 in the queue, 2 before it")
    await page.goto(f"{api.url}/#/jobs/{first}")
    await expect(page.locator(".job-header")).to_contain_text("next to start")


async def test_a_person_compares_the_specs_and_metrics_of_jobs(api: Api, page: Page) -> None:
    slow, _ = trained(api, [{"loss": 2.0}, {"loss": 1.5}], name="slow", training={"max_steps": 10})
    fast, _ = trained(
        api, [{"loss": 1.0}, {"loss": 0.5}], name="fast", training={"max_steps": 10, "learning_rate": 0.2}
    )
    await page.goto(f"{api.url}/#/compare?sel={slow},{fast}")

    rows = page.get_by_role("region", name="Differences").locator("tbody tr")
    # The first job leaves the learning rate at its default, and has a place on the axis all the same.
    await expect(rows).to_have_text(["training.learning_rate0.00005 default0.2"])
    await expect(page.get_by_role("region", name="Metrics").locator("td.winner")).to_have_text("0.5 · 0.5")
    await expect(page.get_by_role("img", name="Numeric spec values of 2 jobs and their loss")).to_be_visible()
    await expect(page.locator("[data-metric=loss] .legend li")).to_have_count(2)
    await page.goto(f"{api.url}/#/compare?sel={slow},job_gone")
    await expect(page.locator("main")).to_contain_text("Not in this project, or deleted: job_gone")


async def test_a_person_corrects_a_spec_in_the_form_and_submits_it(api: Api, page: Page) -> None:
    await page.goto(f"{api.url}/#/submit")

    await expect(page.locator(".verdict")).to_contain_text("Valid, 2000 steps")
    await expect(page.get_by_label("priority")).to_have_attribute("placeholder", "5")
    valid = await page.get_by_role("textbox", name="Spec as JSON").input_value()
    for wrong in ("null", "[", "[]"):
        await page.get_by_role("textbox", name="Spec as JSON").fill(wrong)
        await expect(page.locator(".verdict")).to_contain_text("This is not a spec yet")
    await page.get_by_role("textbox", name="Spec as JSON").fill(valid)
    await page.get_by_label("learning_rate").fill("-1")
    await page.get_by_label("learning_rate").blur()
    await expect(page.locator(".verdict li code")).to_have_text("/training/learning_rate")
    await expect(page.get_by_role("button", name="Submit")).to_be_disabled()
    await page.get_by_label("learning_rate").fill("0.01")
    await page.get_by_label("learning_rate").blur()
    await page.get_by_role("button", name="Submit").click()

    await expect(page.get_by_role("heading", level=1)).to_contain_text("first queued")
    (job,) = (await api.client.get("/jobs")).json()["data"]
    assert (await api.client.get(f"/jobs/{job['id']}/spec")).json()["training"]["learning_rate"] == 0.01


async def test_a_form_keeps_what_is_typed_during_an_upload_and_a_look_at_the_jobs(api: Api, page: Page) -> None:
    uploads: list[Route] = []
    await page.route("**/files?name=*", lambda route: uploads.append(route))
    await page.goto(f"{api.url}/#/submit")

    await page.locator("input[type=file]").set_input_files(
        [{"name": "a.jsonl", "mimeType": "", "buffer": b'{"x": 1}\n'}]
    )
    await page.get_by_label("tags").press_sequentially("a, b")
    await expect(page.get_by_label("tags")).to_have_value("a, b")
    await page.get_by_label("learning_rate").press_sequentially("0.05")
    await expect(page.get_by_label("learning_rate")).to_have_value("0.05")
    await until_async(partial(_first, uploads), what="the file is on its way")
    await uploads[0].continue_()
    await expect(page.locator(".message")).to_contain_text("is uploaded")
    await page.unroute("**/files?name=*")
    # Beside the form, a browser would open the file in place of the page.
    await page.locator("header").evaluate(
        "header => { const data = new DataTransfer(); data.items.add(new File(['text'], 'b.xyz'));"
        "  data.items.add(new File(['never sent'], 'c.txt'));"
        "  header.dispatchEvent(new DragEvent('drop', { bubbles: true, cancelable: true, dataTransfer: data })); }"
    )
    await expect(page.locator(".message")).to_contain_text("b.xyz cannot be uploaded")
    await page.get_by_role("navigation").get_by_role("link", name="Jobs").click()
    await expect(page.get_by_role("link", name="New job")).to_be_visible()
    await page.go_back()

    spec = json.loads(await page.get_by_role("textbox", name="Spec as JSON").input_value())
    assert (spec["tags"], spec["training"]["learning_rate"]) == (["a", "b"], 0.05)
    assert spec["data"]["train"].startswith("file_")


async def _first(routes: list[Route]) -> Route | None:
    return routes[0] if routes else None


async def test_a_double_click_submits_only_one_job_and_does_not_undo_a_pause(api: Api, page: Page) -> None:
    await page.goto(f"{api.url}/#/submit")

    await page.get_by_role("button", name="Submit").dblclick()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("first queued")
    await page.clock.install()
    await page.clock.pause_at(time.time() + 60)
    await page.get_by_role("button", name="pause").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("first paused")
    # "resume" is in the place of "pause" now. Without force, Playwright would wait until the button is enabled.
    resume = page.get_by_role("button", name="resume")
    await resume.click(force=True)
    await page.clock.run_for(1000)
    await expect(resume).to_be_enabled()

    (job,) = (await api.client.get("/jobs")).json()["data"]
    assert job["state"] == "paused"


async def test_the_pages_of_a_job_and_its_fork_link_to_each_other(api: Api, page: Page) -> None:
    job = await trained_to_the_end(api, name="whole")
    await page.goto(f"{api.url}/#/submit?fork={job}")
    await expect(page.get_by_text("Only the name is changed yet")).to_be_visible()
    await page.get_by_label("learning_rate").fill("0.5")
    await expect(page.get_by_role("list", name="Changes")).to_contain_text("training.learning_rate")
    await page.get_by_role("button", name="Fork").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("whole fork queued")
    fork = page.url

    await page.get_by_role("link", name="whole", exact=True).click()
    await expect(page).to_have_url(re.compile(job))
    await page.get_by_role("link", name="whole fork", exact=True).click()

    await expect(page).to_have_url(fork)


async def test_a_failed_job_without_a_checkpoint_is_submitted_again_with_a_change(api: Api, page: Page) -> None:
    job = await api.submit(name="typo")
    await page.goto(f"{api.url}/#/jobs/{job}")

    await page.get_by_role("link", name="copy…").click()
    await expect(page.get_by_label("name", exact=True)).to_have_value("typo copy")
    await page.get_by_label("learning_rate").fill("0.5")
    await page.get_by_role("button", name="Submit").click()

    await expect(page.get_by_role("heading", level=1)).to_contain_text("typo copy queued")
    copy = (await api.client.get("/jobs")).json()["data"][0]["id"]
    spec = (await api.client.get(f"/jobs/{copy}/spec")).json()
    assert (spec["training"]["learning_rate"], spec["resume_from"]) == (0.5, None)


async def test_a_person_resumes_a_job_from_an_older_checkpoint(api: Api, page: Page) -> None:
    job = await api.submit()
    for step in (10, 20, 30):
        await api.commit(job, step)
    await api.client.post(f"/jobs/{job}/pause")
    await page.goto(f"{api.url}/#/jobs/{job}?tab=checkpoints")

    await page.get_by_role("row", name=re.compile("^10")).get_by_role("button", name="resume from").click()
    question = page.get_by_role("alertdialog")
    await expect(question).to_contain_text("Deletes the newer checkpoints, of step 20, 30")
    await question.get_by_role("button", name="No").click()
    await expect(page.locator("#panel tbody tr")).to_have_count(3)
    await page.get_by_role("row", name=re.compile("^10")).get_by_role("button", name="resume from").click()
    await page.get_by_role("button", name="Yes, resume from step 10").click()

    await expect(page.get_by_role("heading", level=1)).to_contain_text("queued")
    await expect(page.locator("#panel tbody tr", has_text="committed")).to_have_count(1)
    await page.get_by_role("tab", name="API").click()
    await page.locator("summary", has_text=f"POST /jobs/{job}/resume").click()
    await expect(page.locator(".api")).to_contain_text(f"footplate resume {job} --checkpoint ckpt_")


async def test_a_person_must_enter_the_key_and_can_log_out(serve: Serve, sqlite_url: str, page: Page) -> None:
    api = await serve(sqlite_url, api_key=KEY)
    await api.submit(name="guarded")
    await page.goto(api.url)

    await expect(page.get_by_label("Key")).to_be_focused()
    await expect(page.locator(".message")).to_have_count(0)
    await page.get_by_label("Key").fill("“wrong”")
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("alert")).to_contain_text("This is not a key")
    await page.get_by_label("Key").fill("wrong")
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("alert")).to_contain_text("does not accept the key")
    await page.get_by_label("Key").fill(KEY)
    await page.get_by_role("button", name="Log in").click()
    await expect(page.locator("[data-job]")).to_contain_text("guarded")
    assert KEY not in page.url
    await page.get_by_role("button", name="Log out").click()
    await expect(page.get_by_label("Key")).to_be_visible()


async def test_the_dashboard_works_by_keyboard_and_on_a_phone(api: Api, page: Page) -> None:
    job, worker = trained(api, [{"loss": 2.0}, {"loss": 1.0}], name="one-of-a-sweep-" + "lr0.0001-" * 7)
    worker.checkpoints(2, metrics={"loss": 1.0})
    await api.submit(name="two")
    await page.set_viewport_size({"width": 390, "height": 800})
    await page.goto(f"{api.url}/#/jobs?none=1")

    await expect(page.locator("[data-job]")).to_have_count(2)
    for key in ("j", "x"):
        await page.keyboard.press(key)
    await expect(page.locator("[data-metric=loss]")).to_be_visible()
    assert str(job) in page.url
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("one")
    for view in ("#/jobs", f"#/jobs/{job}?tab=api", f"#/try?a={job}", "#/submit", "#/cluster"):
        await page.goto(f"{api.url}/{view}")
        await expect(page.locator("main > *").first).to_be_visible()
        width = await page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, f"{view} is {width} px wide"
    await page.goto(f"{api.url}/#/jobs/{job}")
    await page.get_by_label("What these do").click()
    assert await page.evaluate("document.documentElement.scrollWidth") <= 390
    for view, last in ((f"#/jobs/{job}?tab=checkpoints", "#panel button"), ("#/cluster", "[aria-label=Queue] td")):
        await page.goto(f"{api.url}/{view}")
        place = await page.locator(last).last.bounding_box()
        assert place is not None, view
        assert place["x"] + place["width"] <= 390, f"{view} needs scrolling to the side: {place}"
    await page.keyboard.press("/")
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keyboard")).to_contain_text("search")


async def test_no_view_violates_an_accessibility_rule_in_either_theme(api: Api, page: Page) -> None:
    job: JobId
    job, _ = trained(api, [{"loss": 2.0}, {"loss": 1.0}], name="one")
    other = await api.submit(name="two")
    for view, content in (
        ("jobs", f"[data-job='{other}']"),
        (f"jobs/{job}", "[data-metric=loss] .legend b"),
        (f"jobs/{job}?tab=spec", ".json"),
        (f"jobs/{job}?tab=events", "#panel td"),
        (f"compare?sel={job},{other}", "[data-metric=loss] .legend b"),
        ("submit", ".verdict"),
        ("cluster", "h1:text('Cluster')"),
    ):
        await page.goto(f"{api.url}/#/{view}")
        # A view has no heading before its content has loaded, which would be a violation.
        await expect(page.locator(content).first).to_be_attached()
        # The dark theme changes only colors.
        for theme, rules in (("light", {}), ("dark", {"runOnly": ["color-contrast", "link-in-text-block"]})):
            await page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            outcome = await Axe().run(page, options={"resultTypes": ["violations"], **rules})
            assert outcome.violations_count == 0, f"{view} in {theme}: {outcome.generate_report()}"


async def test_no_view_violates_an_accessibility_rule_while_it_loads(api: Api, page: Page) -> None:
    """The view's script and each request about the job are held until the page has been checked without them."""
    job, _ = trained(api, [{"loss": 2.0}], name="one")
    routes: list[Route] = []
    urls: set[str] = set()

    async def hold(route: Route) -> None:
        if route.request.url in urls:
            await route.continue_()
        else:
            urls.add(route.request.url)
            routes.append(route)

    async def is_drawn_rightly(view: str) -> None:
        await expect(page.locator("main > *").first).to_be_attached()
        outcome = await Axe().run(page, options={"resultTypes": ["violations"]})
        assert outcome.violations_count == 0, f"{view}: {outcome.generate_report()}"

    await page.route(re.compile(r"/dashboard/[A-Z]\w+View-|/jobs/job_"), hold)
    for view in (f"jobs/{job}", "jobs/job_none"):
        urls.clear()
        await page.goto("about:blank")
        await page.goto(f"{api.url}/#/{view}")
        await is_drawn_rightly(f"{view} before the first answer")
        while routes:
            route = routes.pop(0)
            await route.continue_()
            await is_drawn_rightly(f"{view} after {route.request.url}")


async def test_the_page_misses_no_event_when_the_service_restarts(serve: Serve, sqlite_url: str, page: Page) -> None:
    api = await serve(sqlite_url)
    job, worker = trained(api, [{"loss": 2.0}], name="one")
    await page.goto(f"{api.url}/#/jobs/{job}")
    await expect(page.locator("[data-metric=loss] .legend b")).to_have_text("2")

    api.server.stop()
    await expect(page.get_by_role("alert")).to_contain_text("The service is unreachable. This data is")
    send_logs(worker, [{"loss": 1.0}, {"loss": 0.25}])
    again = await serve(sqlite_url, port=int(api.url.rpartition(":")[2]))

    await expect(page.locator("[data-metric=loss] .legend")).to_have_text("one0.25best 0.25")
    await expect(page.get_by_role("alert")).to_have_count(0)
    send_logs(worker, [{"loss": 0.125}])
    again.services.tail.wake([job])
    await expect(page.locator("[data-metric=loss] .legend b")).to_have_text("0.125")


async def test_requests_of_the_page_that_failed_in_an_outage_are_repeated_after_it(
    serve: Serve, sqlite_url: str, page: Page
) -> None:
    api = await serve(sqlite_url)
    job, worker = trained(api, [{"loss": 2.0}])
    worker.send(worker.write(Kind.LINE, {"stream": "stderr", "text": "printed"}))
    form, log = page, await page.context.new_page()
    await log.goto(f"{api.url}/#/jobs/{job}")
    await form.goto(f"{api.url}/#/submit")
    await expect(form.locator(".verdict")).to_contain_text("Valid, 2000 steps")
    await expect(log.locator("[data-metric=loss]")).to_be_visible()

    api.server.stop()
    await form.get_by_label("max_steps").fill("7")
    await form.get_by_label("max_steps").blur()
    await expect(form.locator(".verdict")).to_contain_text("The service is unreachable")
    await log.get_by_role("tab", name="log").click()
    await expect(log.locator("#panel")).to_contain_text("The service is unreachable")
    await log.get_by_role("button", name="pause").click()
    await expect(log.locator(".message")).to_contain_text("did not answer")
    await serve(sqlite_url, port=int(api.url.rpartition(":")[2]))

    await expect(form.locator(".verdict")).to_contain_text("Valid, 7 steps")
    await expect(log.locator(".log > div")).to_have_text(["0 printed"])


async def test_the_page_reloads_if_an_upgrade_has_replaced_the_script_of_a_view(api: Api, page: Page) -> None:
    await page.goto(api.url)
    await page.route("**/SubmitView-*.js", lambda route: route.fulfill(status=404), times=1)

    await page.get_by_role("link", name="New", exact=True).click()

    await expect(page.locator(".verdict")).to_contain_text("Valid, 2000 steps")


async def test_the_form_of_a_webhook_keeps_its_input_during_an_outage(
    serve: Serve, sqlite_url: str, page: Page
) -> None:
    api = await serve(sqlite_url)
    await page.clock.install()
    await page.goto(f"{api.url}/#/cluster")
    await page.get_by_label("Address").fill("https://example.org/hook")

    api.server.stop()
    await page.clock.fast_forward(31_000)
    await expect(page.get_by_role("alert").first).to_contain_text("The service is unreachable")

    await expect(page.get_by_label("Address")).to_have_value("https://example.org/hook")


async def test_a_table_of_ten_thousand_jobs_scrolls_and_filters_with_few_rows_drawn(api: Api, page: Page) -> None:
    await api.submit(name="newest")

    def copy(conn: Connection) -> None:
        row = dict(conn.execute(select(tables.jobs)).one()._mapping)
        rows = [{**row, "id": f"job_{number:032x}", "name": f"run-{number}"} for number in range(10_000)]
        conn.execute(insert(tables.jobs), rows)

    await api.db.write(copy)
    await page.goto(f"{api.url}/#/jobs")
    table = page.get_by_role("table", name="Jobs")
    await expect(table.locator("[data-job] a").nth(1)).to_have_text("run-9999")

    await page.get_by_label("Search jobs").fill("run-42")
    await expect(page.get_by_role("status")).to_have_text("111 of 10,001 jobs")
    await page.get_by_label("Search jobs").fill("")
    await page.get_by_role("columnheader", name="Name").get_by_role("button").click()
    await expect(table.locator("[data-job] a").first).to_have_text("run-9999")
    await table.evaluate("table => table.scrollTo(0, table.scrollHeight)")
    await expect(table.locator("[data-job] a").last).to_have_text("newest")
    assert await table.locator("[data-job]").count() < 60
    await table.get_by_role("link", name="newest").click()
    await page.go_back()
    # The table is where it was, and the keys go on from the job that was opened.
    await expect(table.locator("[data-job] a").last).to_have_text("newest")
    await page.keyboard.press("k")
    await expect(table.locator("[data-job] a").nth(-2)).to_be_focused()


async def test_only_the_visible_charts_of_a_hundred_metrics_are_drawn(api: Api, page: Page) -> None:
    job, _ = trained(api, [{f"group_{number % 5}/m{number}": 1.0 for number in range(100)}] * 2, name="many")
    await page.goto(f"{api.url}/#/jobs/{job}")

    await expect(page.locator(".chart")).to_have_count(100)
    await expect(page.locator("[data-metric='group_0/m0'] canvas")).to_have_count(1)
    assert await page.locator("canvas").count() < 30
    await page.get_by_label("Filter metrics").fill("m99")
    await expect(page.locator(".chart-title")).to_have_text(["group_4/m99"])
    await expect(page.locator("canvas")).to_have_count(1)


async def test_an_external_run_shows_only_the_actions_that_work_for_it(api: Api, page: Page) -> None:
    status = {"progressPercentage": 40, "metrics": [{"name": "loss", "value": "0.5"}]}
    answer = await api.client.post("/external/nightly", json={"trainerStatus": status})
    assert answer.status_code == 200, answer.text
    job = (await api.client.get("/jobs")).json()["data"][0]["id"]
    other, _ = trained(api, [{"loss": 1.0}], name="here")
    await page.goto(f"{api.url}/#/jobs/{job}")

    actions = page.locator(".actions")
    await expect(actions.get_by_role("button")).to_have_text(["delete"])
    await expect(actions).to_contain_text("steered there")
    await expect(actions.get_by_role("link")).to_have_count(0)
    await page.goto(f"{api.url}/#/jobs/{other}")
    await expect(actions.get_by_role("button", name="fork…")).to_be_disabled()
    await expect(actions.get_by_role("button", name="evaluate now")).to_be_disabled()
    await expect(actions.get_by_role("button", name="save now")).to_be_enabled()
    await api.client.delete(f"/jobs/{job}")
    await page.goto(f"{api.url}/#/jobs")
    await expect(page.locator("[data-job] a")).to_have_text(["here"])


async def test_a_chart_can_be_saved_as_png_svg_and_csv(api: Api, page: Page) -> None:
    job, _ = trained(api, [{"loss": 2.0}, {"loss": 0.5}], name="=one")
    await page.add_init_script(
        "window.saved = {}; let last; URL.createObjectURL = (blob) => ((last = blob), '#');"
        "HTMLAnchorElement.prototype.click = async function () {"
        "  const name = this.download; window.saved[name] = [...new Uint8Array(await last.arrayBuffer())]; }"
    )
    await page.goto(f"{api.url}/#/jobs/{job}")
    await expect(page.locator("[data-metric=loss] canvas")).to_be_visible()
    await page.get_by_label("Save loss").click()
    files: dict[str, bytes] = {}
    for kind in ("png", "svg", "csv"):
        await page.get_by_role("button", name=kind.upper()).click()
        file_content = partial(page.evaluate, f"window.saved['loss.{kind}']")
        files[f"loss.{kind}"] = bytes(await until_async(file_content, what=f"the {kind} is saved"))
    await page.get_by_label("x axis").select_option("Wall time")
    await expect(page.locator("[data-metric=loss] canvas")).to_be_visible()

    async def by_time() -> list[str] | None:
        await page.get_by_role("button", name="CSV").click()
        lines = bytes(await file_content()).decode().splitlines()
        return lines if lines[0] == 'job,time,"loss"' and len(lines) == 3 else None

    rows = await until_async(by_time, what="the CSV has the wall time")
    first = (await api.client.get(f"/jobs/{job}/events?kinds=log")).json()["data"][0]
    assert rows[1] == f'"\'=one",{first["at"]},2'

    async def dated() -> bool:
        await page.get_by_role("button", name="SVG").click()
        # The date stands below the hour.
        return b'dy="1.3em"' in bytes(await page.evaluate("window.saved['loss.svg']"))

    await until_async(dated, what="the drawing has the date")

    assert files["loss.csv"].decode() == 'job,step,"loss"\n"\'=one",1,2\n"\'=one",2,0.5'
    assert b"<path" in files["loss.svg"]
    chart = await page.locator("[data-metric=loss] canvas").evaluate("canvas => [canvas.width, canvas.height]")
    width, height = struct.unpack(">II", files["loss.png"][16:24])
    # The image is higher than the chart, because the image includes the title and the legend.
    assert (width, height > chart[1]) == (chart[0], True)


async def test_each_template_is_the_spec_of_an_example(api: Api, page: Page) -> None:
    await page.goto(f"{api.url}/#/submit")
    await page.get_by_label("Template").select_option(label="dpo")

    recipe = json.loads((SOURCES.parent / "examples/fine-tuning/dpo.json").read_text())
    assert json.loads(await page.get_by_role("textbox", name="Spec as JSON").input_value()) == recipe
    await expect(page.locator("main")).to_contain_text("examples/fine-tuning/README.md")


async def test_the_cursor_moves_over_the_charts_without_drawing_them_again(api: Api, page: Page) -> None:
    job, _ = trained(api, [{f"m{number}": float(step) for number in range(6)} for step in range(50)])
    await page.add_init_script(
        "const stroke = CanvasRenderingContext2D.prototype.stroke; window.strokes = 0;"
        "CanvasRenderingContext2D.prototype.stroke ="
        "  function (...path) { window.strokes += 1; return stroke.apply(this, path); }"
    )
    await page.goto(f"{api.url}/#/jobs/{job}?none=1")
    over = page.locator("[data-metric=m0] .u-over")
    last = page.locator("[data-metric=m5] .legend b")
    await expect(page.locator("canvas")).to_have_count(6)
    await expect(last).to_have_text("49")
    before = await page.evaluate("window.strokes")

    await over.hover(position={"x": 1, "y": 50})

    # All charts share the cursor, so this legend shows the first value, too.
    await expect(last).to_have_text("0")
    assert await page.evaluate("window.strokes") == before > 0

    # The row of the legend emphasizes its line.
    await page.locator("[data-metric=m0] .legend li").hover()
    await page.wait_for_function("before => window.strokes > before", arg=before)
    await page.get_by_role("button", name="Enlarge m0").click()
    await page.wait_for_function("() => document.querySelector('[data-metric=m0] canvas')?.clientHeight > 400")


async def test_a_zoom_is_shared_by_all_charts_until_it_is_reset(api: Api, page: Page) -> None:
    job, _ = trained(api, [{"a": float(step), "b": float(step)} for step in range(50)])
    await page.goto(f"{api.url}/#/jobs/{job}")
    over = page.locator("[data-metric=a] .u-over")
    await expect(over).to_be_visible()
    legend = page.locator("[data-metric=b] .legend b")

    await over.drag_to(over, source_position={"x": 150, "y": 50}, target_position={"x": 250, "y": 50})
    every = page.get_by_role("button", name="Show all of x")
    await expect(every).to_be_visible()
    await over.hover(position={"x": 1, "y": 50})
    await expect(legend).not_to_have_text("0")
    await expect(legend).not_to_have_text("49")
    await every.click()
    await over.hover(position={"x": 1, "y": 50})

    await expect(legend).to_have_text("0")


async def test_a_zoom_loads_more_points_of_the_visible_range(api: Api, page: Page) -> None:
    """The whole curve shows only the minimum and the maximum of every six points, and 5 is neither of them."""
    job, _ = trained(api, [{"loss": (0.0, 5.0, 7.0)[step % 3]} for step in range(3000)])
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url) if "/metrics/series" in request.url else None)
    await page.goto(f"{api.url}/#/jobs/{job}")
    over = page.locator("[data-metric=loss] .u-over")
    await expect(over).to_be_visible()

    async with page.expect_response(re.compile("first_step")):
        await over.drag_to(over, source_position={"x": 150, "y": 50}, target_position={"x": 160, "y": 50})
    await over.hover(position={"x": 150, "y": 50})

    legend = page.locator("[data-metric=loss] .legend b")

    async def is_five() -> bool:
        for x in range(100, 130, 3):
            await over.hover(position={"x": x, "y": 50})
            if await legend.inner_text() == "5":
                return True
        return False

    assert await until_async(is_five, what="the chart shows a point that the whole curve leaves out")
    await page.get_by_role("button", name="Show all of x").click()
    await over.hover(position={"x": 1, "y": 50})
    await expect(legend).to_have_text("0")
    assert len(urls) == 2, urls


async def test_a_key_of_another_project_shows_only_that_project(serve: Serve, sqlite_url: str, page: Page) -> None:
    api = await serve(sqlite_url, api_key=KEY)
    hidden = await api.submit(name="hidden")
    await api.submit(name="seen", project="vision")
    key = await a_key(api, "vision", ["read"])
    await page.goto(f"{api.url}/#/jobs")
    await page.get_by_label("Key").fill(key["key"])
    await page.get_by_role("button", name="Log in").click()

    await expect(page.locator("[data-job] a")).to_have_text(["seen"])
    await page.goto(f"{api.url}/#/jobs/{hidden}")
    await expect(page.locator("main").get_by_role("status")).to_contain_text("there is no job")
    await page.goto(f"{api.url}/#/jobs?project=default")
    await expect(page.get_by_role("status").first).to_contain_text("this key acts on project 'vision' only")
    await expect(page.locator("main")).to_contain_text("The jobs cannot be shown")
    await page.goto(f"{api.url}/#/jobs")
    await expect(page.get_by_role("status")).to_have_text(["1 job"])
    await page.goto(f"{api.url}/#/cluster")
    await expect(page.get_by_role("region", name="Keys")).to_have_count(0)
    empty = await a_key(api, "speech", ["read"])
    await page.get_by_role("button", name="Log out").click()
    await page.get_by_label("Key").fill(empty["key"])
    await page.get_by_role("button", name="Log in").click()
    await expect(page.locator("summary", has_text="Project")).to_have_text("Project speech")


async def test_a_key_that_may_only_read_gets_no_button_that_changes_anything(
    serve: Serve, sqlite_url: str, page: Page
) -> None:
    api = await serve(sqlite_url, api_key=KEY)
    await a_node(api)
    job, worker = trained(api, [{"loss": 1.0}], name="running")
    worker.checkpoints(1, metrics={"loss": 1.0})
    reader = await a_key(api, "*", ["read"])
    await page.clock.install()
    await page.goto(f"{api.url}/#/jobs/{job}?tab=checkpoints")
    await page.get_by_label("Key").fill(reader["key"])
    await page.get_by_role("button", name="Log in").click()

    actions = page.locator(".actions").get_by_role("button")
    await expect(actions.filter(has_text="pause")).to_be_disabled()
    await expect(actions.filter(has_text="pause")).to_have_attribute("title", re.compile("may only read"))
    await expect(page.locator(".actions button:enabled, .actions a")).to_have_count(0)
    await expect(page.locator("table button:enabled")).to_have_text(["download"])
    await expect(page.locator("table a")).to_have_count(0)
    await page.goto(f"{api.url}/#/jobs?sel={job}")
    await expect(page.get_by_role("group", name="Selected jobs")).to_contain_text("may only read")
    await expect(page.get_by_role("button", name=re.compile("^(pause|cancel|delete|tag)"))).to_have_count(0)
    await expect(page.get_by_role("link", name=re.compile("New|Try"))).to_have_count(0)
    await page.goto(f"{api.url}/#/submit?copy={job}")
    await expect(page.locator("main")).to_contain_text("may only read")
    await page.goto(f"{api.url}/#/cluster")
    await expect(page.get_by_role("region", name="Nodes")).to_contain_text("slot")
    await expect(page.locator("main").get_by_role("button")).to_have_count(0)
    paths: set[str] = set()
    page.on("request", lambda request: paths.add(urlsplit(request.url).path))
    async with page.expect_request("**/nodes"):
        await page.clock.fast_forward(31_000)
    assert not paths & {"/keys", "/webhooks"}


async def test_an_administrator_tries_and_deletes_a_webhook_and_a_key(
    serve: Serve, sqlite_url: str, page: Page
) -> None:
    api = await serve(sqlite_url, api_key=KEY, webhooks_allow=LOOPBACK)
    post = Sender(api)
    await page.goto(f"{api.url}/#/cluster")
    await page.get_by_label("Key").fill(KEY)
    await page.get_by_role("button", name="Log in").click()
    hooks, keys = (page.get_by_role("region", name=name) for name in ("Webhooks", "Keys"))

    async with receiving() as receiver:
        await hooks.get_by_label("Address").fill(receiver.url)
        await hooks.get_by_role("button", name="Add a webhook").click()
        await expect(hooks).to_contain_text("shown once")
        async with page.expect_response(lambda response: response.url.endswith("/test")):
            await hooks.get_by_role("button", name="test").click()
        await post.send_due()
        await expect(page.get_by_text("the test was delivered")).to_be_visible()
    await hooks.get_by_role("button", name="delete").click()
    await hooks.get_by_role("button", name="Yes, delete").click()
    await expect(hooks).to_contain_text("No webhook")
    await expect(hooks).not_to_contain_text("shown once")

    await keys.get_by_label("Name").fill("ci")
    await keys.get_by_role("button", name="Make a key").click()
    await expect(keys).to_contain_text("shown once")
    await keys.get_by_role("button", name="delete").click()
    await keys.get_by_role("button", name="Yes, delete").click()
    await expect(keys).to_contain_text("No key has been made")
    await expect(keys).not_to_contain_text("shown once")
