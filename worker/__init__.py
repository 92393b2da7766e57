"""The worker, which is the Celery program on a node, and which runs attempts.

Imports the contract, and never SQL, torch, the service or another part of `footplate`. `node/` and `attempt/` say what
may block.
"""
