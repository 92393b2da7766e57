"""SQL, and the only place with it: tables, statement functions that return frozen rows, and the connection."""

from service.store.schema import is_reachable, migrate, schema_is_current

__all__ = ["is_reachable", "migrate", "schema_is_current"]
