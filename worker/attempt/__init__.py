"""The supervisor of one attempt: starts training, watches it, keeps its journal, uploads its files, reports its end.

Imports nothing of `worker.node`. The supervisor waits in `select`, and for the disk; all else that may block has a
thread or a process of its own.
"""
