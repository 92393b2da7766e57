"""The built-in models, datasets, collators, metrics and callbacks. Plugins register theirs by the same entry points.

Imports the contract and the Trainer, and never Redis, Celery, SQL, the service or the worker. Components run in
training processes, where they may block.
"""
