"""One training process: a spec becomes parts, a Trainer and an outcome. Also the warm parent that forks such processes.

Imports the contract, the Trainer and the components. Never Redis, Celery, SQL, the service or the worker, because
training holds no credentials. Everything here may block.
"""
