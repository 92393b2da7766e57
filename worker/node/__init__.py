"""The Celery parent of a node: heartbeat, GPUs, the rights that training has, and the task that starts attempts.

Imports `worker.attempt` and the contract. Only separate threads may block, because the parent must be able to drain at
any time.
"""
