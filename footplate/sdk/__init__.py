"""The client of a Footplate service: `from footplate import Client, AsyncClient`.

client.py     the two clients
jobs.py       what one can do with jobs, as coroutines; blocking.py is a skin of it without `await`
asking.py     one request, sent again where that is safe
following.py  a stream of events that survives its connections
files.py      downloads
wire.py       the only place that waits: on an event loop, or by blocking
models.py     what the service answers
"""
