"""Statements about bundles, as a shelf of content."""

from __future__ import annotations

from service.store.content import Shelf
from service.store.rows import BundleRow
from service.store.tables import bundles

SHELF = Shelf(bundles, BundleRow, "sha256", "bundle", "POST /bundles takes it as a zip")
