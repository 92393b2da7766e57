"""Agreements between a node's processes, the supervisors of attempts and their training processes.

These are the order that starts a rank, the wire format, folders, users, and the meaning of exit codes.
"""
