"""The service, which accepts, stores, places and reports jobs.

Imports the contract, and never torch, the worker or another part of `footplate`. Its processes run an event loop that
must not block, so SQL runs in the threads of `store/database.py`.
"""
