"""The lists behind the import rules must stay complete: import-linter only forbids what it was told of."""

from __future__ import annotations

import tomllib

from tests.support.processes import REPOSITORY

RULES = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def test_every_module_of_the_worker_is_closed_to_the_trainer() -> None:
    rule = next(rule for rule in RULES if rule.get("source_modules") == ["footplate.trainer"])
    modules = {f"worker.{path.stem}" for path in (REPOSITORY / "worker").glob("*.py") if not path.stem.startswith("__")}

    missing = (modules | {"footplate.components"}) - set(rule["forbidden_modules"])

    assert not missing, f"add {sorted(missing)} to the rule {rule['name']!r} in pyproject.toml"
