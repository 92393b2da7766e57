"""SQL, and the only place with it: tables, statement functions that return frozen rows, and the connection."""

from service.store.schema import migrate, require_current

__all__ = ["migrate", "require_current"]
