"""The way of events from Redis to SQL, and from SQL to open sockets and curves.

Imports `service.jobs` and `service.store`. Functions that take a connection run in a thread of the database and may
block for SQL. `tail.py` runs on the event loop and must not block.
"""
