"""The client of a Footplate service: `from footplate import Client, AsyncClient`.

- `client.py`: the two clients
- `jobs.py`: operations on jobs, as coroutines. `blocking.py` derives the same methods without `await`
- `request.py`: one request, repeated if that is safe
- `follow.py`: a stream of events, which continues after a lost connection
- `files.py`: downloads
- `wire.py`: sends requests, and waits on an event loop or by blocking
- `models.py`: the service's answers
"""
