"""The control process, which places, dispatches, ingests, rescues and prunes. At most one works at a time.

Each duty of control is one async function. It takes a `ControlState`, does what is due, and returns. `duties.py` lists
all of them, and `process.py` runs each one in a loop. A duty that fails half-way is harmless, because what it has
committed is in SQL and its next run does the rest.
"""
