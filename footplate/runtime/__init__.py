"""The training process, which builds what a spec names, trains and reports, and the warm parent that forks it.

Imports the contract, the Trainer and the components. Never imports Redis, Celery, SQL, the service or the worker,
because training has no credentials. Everything here may block.
"""
