"""SQL, and the only place with it: tables, statement functions that return frozen rows, and the connection.

Imports the contract. Functions that take a connection run in the threads of `database.py`, and may block for SQL only.
"""
