"""Requests to users' URLs about jobs that have changed their state.

Imports `service.store`. The code runs on control's event loop and must not block, so threads look up host names.
"""
