"""One command, the whole system on this machine: Redis, migrate, service, nodes, a tidy stop. Only starts processes."""
