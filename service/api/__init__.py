"""The routes, each of which parses a request, calls one operation, and answers.

Imports `service.jobs`, `service.events`, `service.webhooks` and `service.store`. The code runs on the event loop and
must not block, so it passes operations to `Database.read` and `Database.write`.
"""
