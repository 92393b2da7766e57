"""The agreements of a node's processes, the supervisor of an attempt and the training processes that it starts.

They are orders, wire format, folders, users and exit codes.

Both sides import this folder. It imports the standard library and pydantic only.
"""
