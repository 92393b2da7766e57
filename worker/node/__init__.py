"""The Celery parent of a node: heartbeat, GPUs, the rights that training has, and the task that starts attempts.

Imports `worker.attempt` and the contract. Only threads of their own may block here, because the parent must drain at
any time.
"""
