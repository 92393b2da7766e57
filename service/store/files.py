"""Statements about uploaded files, as a shelf of content."""

from __future__ import annotations

from service.store.content import Shelf
from service.store.rows import FileRow
from service.store.tables import files

SHELF = Shelf(files, FileRow, "id", "file", "POST /files takes it, and GET /files lists those that there are")
