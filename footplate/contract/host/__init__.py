"""What the processes of one node agree on: the supervisor of an attempt and the training processes that it starts.

Both sides import this folder: the order that starts a rank, the wire between them, folders, users and exit codes.
Standard library and pydantic only.
"""
