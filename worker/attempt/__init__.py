"""The supervisor of one attempt: starts training, watches it, keeps its journal, uploads its files, reports its end.

Imports the contract and the modules at the top of `worker`, and never `worker.node`. The supervisor waits in `select`,
and for the disk; all else that may block has a thread or a process of its own.
"""
