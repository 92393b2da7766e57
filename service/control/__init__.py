"""The control process: the one process that places, dispatches, ingests, rescues and prunes."""
