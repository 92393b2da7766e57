"""Takes the pictures of the dashboard for README.md and docs/guides/dashboard.md.

Starts a whole system on a free port and trains small jobs until the table has one job of every kind. Then saves each
view from Chromium. The pictures look best where the font Inter is installed: `apt-get install fonts-inter`.
Run it with `PYTHONPATH=. .venv/bin/python docs/screenshots.py`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, ViewportSize, expect, sync_playwright

from footplate import Client, Job
from tests.support.browser import INSTALL, chromium

expect.set_options(timeout=60_000)
FOLDER = Path(__file__).parent / "screenshots"
DESKTOP, TALL, PHONE = (
    ViewportSize(width=width, height=height) for width, height in ((1280, 800), (1280, 980), (390, 780))
)


@contextmanager
def running_system(home: Path) -> Iterator[str]:
    """The address of a service with two nodes, which stops at the end."""
    command = [
        str(Path(sys.executable).with_name("footplate")),
        "up",
        "--json",
        "--nodes",
        "2",
        "--port",
        "0",
        "--no-first-job",
    ]
    # Started by root, nodes give training users of its own, and warn on their cards if these cannot reach the folder.
    home.chmod(0o755)
    system = subprocess.Popen(
        command, env={**os.environ, "FOOTPLATE_HOME": str(home)}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert system.stdout
        yield json.loads(system.stdout.readline())["url"]
    finally:
        system.send_signal(signal.SIGINT)
        system.wait()


def mlp(name: str, learning_rate: float, seed: int = 1, features: int = 8) -> dict[str, Any]:
    data = {"use": "toy/regression", "args": {"in_features": features}}
    curves = {"logging_steps": 5, "eval_strategy": "steps", "eval_steps": 25}
    training = {"max_steps": 300, "save_steps": 100, "learning_rate": learning_rate, "seed": seed, **curves}
    return {
        "name": name,
        "model": "toy/mlp",
        "data": {"train": data, "eval": data},
        "training": training,
        "tags": ["sweep"],
    }


def slow_gpt(name: str, layers: int, **fields: Any) -> dict[str, Any]:
    """A job that is still at work when the pictures are taken."""
    text = {"use": "toy/text", "args": {"n": 4096, "seconds_per_item": 0.01}}
    unseen = {"use": "toy/text", "args": {"n": 64, "seed": 1}}
    model = {"use": "toy/gpt", "args": {"layers": layers}}
    training = {
        "max_steps": 1000, "save_steps": 80, "logging_steps": 4, "eval_strategy": "steps", "eval_steps": 20,
        "learning_rate": 1e-3, "warmup_steps": 40,
    }  # fmt: skip
    data = {"train": text, "eval": unseen}
    return {"name": name, "model": model, "data": data, "training": training, "tags": ["gpt"], **fields}


def train_sweep(client: Client) -> dict[str, str]:
    """A sweep that succeeded, and two jobs that failed. Returns ids by name."""
    rates = (0.003, 0.01, 0.03)
    specs = [mlp(f"mlp-lr{rate}-s{seed}", rate, seed) for rate in rates for seed in (1, 2, 3)]
    specs += [
        mlp("mlp-wide-input", 0.01, features=16),
        mlp("mlp-32-inputs", 0.01, features=32),
        mlp("mlp-too-hot", 1e20),
    ]
    jobs = [client.jobs.create(spec) for spec in specs]
    for job in jobs:
        job.wait()
    return {str(job.name): job.id for job in jobs}


def train_further(client: Client) -> dict[str, str]:
    """A paused job, two at work, and two that wait. Returns ids by name."""
    paused_job = client.jobs.create(slow_gpt("gpt-2-layers", 2))
    until_step(paused_job, 160)
    paused_job.pause()
    running_jobs = [
        client.jobs.create(slow_gpt(name, layers)) for name, layers in (("gpt-4-layers", 4), ("gpt-6-layers", 6))
    ]
    for job in running_jobs:
        until_step(job, 420)
    waiting_jobs = [
        client.jobs.create(slow_gpt("gpt-next", 2, priority=5)),
        client.jobs.create(slow_gpt("gpt-on-gpu", 2, resources={"pool": "gpu"})),
    ]
    return {str(job.name): job.id for job in [paused_job, *running_jobs, *waiting_jobs]}


def until_step(job: Job, step: int) -> None:
    for event in job.events(kinds=["log"]):
        if (event.step or 0) >= step:
            return


def take_try(browser: Browser, client: Client, url: str, ids: dict[str, str]) -> None:
    """Tries two checkpoints with the same row, and deletes their sessions once the picture is taken."""
    page = browser.new_page(viewport=DESKTOP, color_scheme="light")
    page.goto(f"{url}/#/try?a={ids['mlp-lr0.01-s1']}&b={ids['mlp-lr0.03-s1']}&way=row")
    page.get_by_role("textbox").fill('{"x": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]}')
    page.get_by_role("button", name="Ask").click()
    expect(page.locator("main .json")).to_have_count(2, timeout=240_000)
    page.screenshot(path=FOLDER / "try.png")
    page.close()
    for session in client.jobs.list(state="running"):
        session.cancel(mode="kill")
        session.wait()
        session.delete()


def take(browser: Browser, url: str, ids: dict[str, str]) -> None:
    sweep_ids = ",".join(ids[name] for name in ids if name.startswith("mlp-lr"))
    running_id = ids["gpt-4-layers"]
    compared_ids = ",".join(ids[name] for name in ids if name.startswith("mlp-lr") and not name.endswith("s3"))
    pictures = [
        ("jobs-light", "light", TALL, f"jobs?sel={sweep_ids}&group=seeds&smooth=0.2"),
        ("jobs-dark", "dark", TALL, f"jobs?sel={sweep_ids}&group=seeds&smooth=0.2"),
        ("job", "light", TALL, f"jobs/{running_id}?smooth=0.5"),
        ("failed", "dark", DESKTOP, f"jobs/{ids['mlp-wide-input']}"),
        ("compare", "light", TALL, f"compare?sel={compared_ids}"),
        ("submit", "light", DESKTOP, "submit"),
        ("cluster", "dark", DESKTOP, "cluster"),
        ("phone-jobs", "light", PHONE, f"jobs?sel={running_id}"),
        ("phone-job", "dark", PHONE, f"jobs/{running_id}"),
    ]
    for name, theme, size, view in pictures:
        page = browser.new_page(
            viewport=size,
            color_scheme="dark" if theme == "dark" else "light",
            device_scale_factor=2 if size is PHONE else 1,
        )
        page.goto(f"{url}/#/{view}")
        expect(page.locator("main h1")).to_be_attached()
        page.wait_for_load_state("networkidle")
        if view.startswith("jobs?") or running_id in view:
            expect(page.locator("[data-metric=loss] canvas")).to_be_attached()
            expect(page.get_by_text("Loading curves")).to_have_count(0)
        page.screenshot(path=FOLDER / f"{name}.png")
        page.close()


def main() -> None:
    program = chromium()
    if program is None:
        sys.exit(f"needs Chromium: {INSTALL}")
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as home, running_system(Path(home)) as url, sync_playwright() as playwright:
        client = Client(url)
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        ids = train_sweep(client)
        take_try(browser, client, url, ids)
        ids |= train_further(client)
        take(browser, url, ids)
        browser.close()


if __name__ == "__main__":
    main()
