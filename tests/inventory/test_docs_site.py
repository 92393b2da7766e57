"""Builds the docs site as `make docs` does. Warnings are errors, and no page loads anything from another server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.conf import relink
from tests.support.processes import REPOSITORY


def test_the_built_docs_site_has_every_page_and_loads_nothing_from_other_servers(tmp_path: Path) -> None:
    """A broken link, an unknown anchor or an unlisted page fails the build. One test, because a build takes seconds."""
    site = tmp_path / "html"
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", tmp_path / "cache"]
    process = subprocess.run([*build, "docs", site], cwd=REPOSITORY, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr

    pages = {path.relative_to(REPOSITORY / "docs").with_suffix("") for path in (REPOSITORY / "docs").rglob("*.md")}
    built_pages = {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    assert pages - built_pages == {Path("decisions/template")}

    loads = re.compile(r"<(?:script|img|source|iframe)[^>]*\"https?://[^>]*>|<link[^>]*stylesheet[^>]*https?://[^>]*>")
    styles = re.compile(r"(?:@import|url\()[^;)]*https?://")
    assert [match[0] for path in site.rglob("*.html") for match in loads.finditer(path.read_text())] == []
    assert [path.name for path in site.rglob("*.css") if styles.search(path.read_text())] == []

    assert "footplate_artifact" in (site / "searchindex.js").read_text(), "the search must find words of the pages"
    assert (site / "search.html").exists()


@pytest.mark.parametrize(
    ("origin", "link", "rewritten"),
    [
        ("README.md", "[the spec](docs/reference/spec.md#model)", "[the spec](../reference/spec.md#model)"),
        ("docs/guides/hub.md", "[rights](../../SECURITY.md)", "[rights](../explanation/security-policy.md)"),
        ("docs/guides/hub.md", "[example](../../examples/two-nodes)", "example (`examples/two-nodes`)"),
        ("docs/guides/hub.md", "[nothing](../../nowhere.md)", "[nothing](../../nowhere.md)"),
        ("docs/guides/hub.md", "[elsewhere](https://example.org/a.md)", "[elsewhere](https://example.org/a.md)"),
    ],
)
def test_a_link_is_rewritten_to_a_page_of_the_site_or_becomes_a_plain_path(
    origin: str, link: str, rewritten: str
) -> None:
    assert relink(link, origin, "docs/guides/hub.md") == rewritten
