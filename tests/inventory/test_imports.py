"""Checks that no modules of the product import each other in a cycle."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp


def test_no_modules_import_each_other_in_a_cycle() -> None:
    graph = grimp.build_graph("footplate", "service", "worker", "migrations", exclude_type_checking_imports=True)

    TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()
