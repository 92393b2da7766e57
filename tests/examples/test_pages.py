"""The tutorials and guides work as they are written: each page's snippets run in order, on one system."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from docs import spec_page
from tests.examples.conftest import Examples
from tests.support.pages import DOCS, paste, snippets

PREPARE = re.compile(r"^python examples/([a-z-]+)/prepare\.py \.footplate\n", re.MULTILINE)
PRINTED = {
    "tutorials/first-job.md": ["succeeded (completed)", "model.safetensors", "stopping (cancel)"],
    "tutorials/bert-csv.md": ["valid: ", "succeeded (completed)", "eval_accuracy", "'label': 'good'"],
    "tutorials/lora-chat.md": ["succeeded (completed)", "config.json", "model.safetensors", "tokenizer.json"],
    "tutorials/own-code.md": ["succeeded (completed)", "failed", "my_code.py"],
    "reference/rest.md": ['"state":"succeeded"', "did you mean 'toy/regression'?"],
    "guides/resume-and-fork.md": ["succeeded (completed)", "max_steps"],
    "guides/sweep.md": ["rate-0.1-2", "succeeded", "eval_loss", "/training/learning_rate"],
    "guides/try-a-checkpoint.md": ["succeeded (completed)", '{"output": ['],
    "guides/migrate-from-cron-and-tmux.md": ["step 2 loss", "result.txt", "rate 0.1"],
}


@pytest.mark.parametrize("page", PRINTED)
def test_the_snippets_of_a_page_run_in_order(page: str, examples: Examples, tmp_path: Path) -> None:
    (tmp_path / ".footplate").symlink_to(examples.system.folder)
    commands = snippets(page)
    for folder in PREPARE.findall("\n".join(commands)):
        examples.prepare(folder)

    output = paste([PREPARE.sub("", command) for command in commands], tmp_path, examples.system.url)

    assert [text for text in PRINTED[page] if text not in output] == [], output


def test_the_keys_of_the_tutorial_about_a_server_work_until_they_are_deleted(
    examples: Examples, tmp_path: Path
) -> None:
    bootstrap, *others = snippets("tutorials/server.md")
    key = paste([bootstrap], tmp_path, "").strip()
    url_file = tmp_path / "url"
    settings = {"FOOTPLATE_API_KEY": key, "FOOTPLATE_PORT": "0", "FOOTPLATE_URL_FILE": str(url_file),
                "FOOTPLATE_HOST": "0.0.0.0"}  # fmt: skip
    service = examples.system.run("service", "api", name="keyed", **settings)
    service.until(url_file.exists, within=30, what="the service with an API key listens")

    url = url_file.read_text().strip()
    output = paste(others, tmp_path, url, FOOTPLATE_API_KEY=key)
    service.terminate()

    assert url.startswith("http://127.0.0.1:")
    assert re.search(r"anna +vision +code read submit", output), "anna can submit her code and see her jobs"
    assert "ok     key" in output
    assert re.search(r"key_\w+ deleted", output)


SPECS = [
    (path, block)
    for path in sorted(DOCS.rglob("*.md"))
    if path.name not in ("spec.md", "CHANGELOG.md")
    for block in re.findall(r"```json\n(.*?)```", path.read_text(), re.DOTALL)
]


@pytest.mark.parametrize(("path", "block"), SPECS, ids=lambda value: getattr(value, "stem", ""))
def test_the_json_of_a_page_is_valid_and_its_specs_are_accepted(path: Path, block: str) -> None:
    example: dict[str, Any] = json.loads(block.replace('"bundle": "…"', f'"bundle": "{spec_page.SHA256}"'))

    if "model" in example or "loop" in example:
        spec_page.checked(example, "")
