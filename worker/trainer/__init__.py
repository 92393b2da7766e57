"""The library that trains: torch and Accelerate, usable alone. It knows no job, no queue, no Redis, no SQL.

Importing this package imports nothing; the names come from `footplate` or from the modules below.
"""
