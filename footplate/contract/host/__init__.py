"""The agreement between a node's supervisors and their training processes.

It holds the order that starts a rank, the wire format, folders, users, and the meaning of errors and exit codes.
"""
