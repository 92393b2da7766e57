"""SQL, and the only place with it: tables, statement functions that return frozen rows, and the connection."""
