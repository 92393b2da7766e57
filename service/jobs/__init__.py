"""Operations on jobs, each in a file of its own and in one transaction.

Imports `service.store`, and knows no HTTP. An operation is a function of a connection, and runs in a thread of the
database. It may block for SQL only, and may run twice before its commit (docs/decisions/0001).
"""
