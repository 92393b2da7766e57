"""The agreement between service, worker, training and clients: specs, states, events, messages and errors.

Imports only the standard library and pydantic, because every process of Footplate imports this package.
"""
