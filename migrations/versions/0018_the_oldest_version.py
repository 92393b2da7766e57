"""The oldest version that can be upgraded. It changes nothing, because new databases are made from the tables"""

from __future__ import annotations

revision = "0018"
down_revision = None
