"""The supervisor of one attempt: starts training, watches it, keeps its journal, uploads its files, reports its end.

Imports the contract and nothing of `worker.node`. The supervisor waits in `select` only; what may block has a thread or
a process of its own.
"""
