"""Configures the docs site. `make docs` builds the site with Sphinx and MyST from the Markdown pages of this folder.

The pages are also read as plain files, so their links are relative paths in the repository. Before Sphinx reads a page,
`relink` turns the links that lead out of this folder into links that the site can follow.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from pygments.lexers.data import JsonLexer
from sphinx.application import Sphinx

REPOSITORY = Path(__file__).resolve().parents[1]
COPIES = {
    "developers/contributing": "CONTRIBUTING.md",
    "developers/changelog": "CHANGELOG.md",
    "developers/figures": "bench/results.md",
    "explanation/security-policy": "SECURITY.md",
}
"""The pages of the site that show a file from elsewhere in the repository."""

project = "Footplate"
author = "the Footplate authors"
html_title = "Footplate"

extensions = ["myst_parser", "sphinx_copybutton"]
exclude_patterns = ["decisions/template.md"]
myst_heading_anchors = 4  # The anchors are those of GitHub, so one link works in both places.
# A spec in a page may leave out a value with "…", and a fence may be in a language that has no colours.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False


def setup(app: Sphinx) -> None:
    app.add_lexer("jsonc", JsonLexer)
    app.connect("source-read", read_page)


def read_page(app: Sphinx, name: str, source: list[str]) -> None:
    origin = COPIES.get(name, f"docs/{name}.md")
    text = (REPOSITORY / origin).read_text(encoding="utf-8") if name in COPIES else source[0]
    source[0] = relink(text, origin, f"docs/{name}.md")


def relink(text: str, origin: str, page: str) -> str:
    """Rewrites the links of a text from the file `origin` for the page `page`.

    A file that the site does not show becomes its path. A link that leads nowhere stays, and Sphinx refuses it.
    """
    copies = {path: f"docs/{name}.md" for name, path in COPIES.items()}

    def new_link(match: re.Match[str]) -> str:
        label, target, anchor = match[1], match[2], match[3] or ""
        path = os.path.normpath(os.path.join(os.path.dirname(origin), target))
        path = copies.get(path, path)
        if path.startswith("docs/") and path != "docs/decisions/template.md":
            return f"[{label}]({os.path.relpath(path, os.path.dirname(page))}{anchor})"
        if not (REPOSITORY / path).exists():
            return match[0]
        return f"{label} (`{path}`)" if path not in label else f"`{path}`"

    return re.sub(r"(?<!!)\[([^\]]*)\]\((?![a-z]+:)([^)#\s]+)(#[^)]*)?\)", new_link, text)
