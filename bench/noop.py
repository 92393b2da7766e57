"""The server with which POST /jobs is compared: FastAPI with a route that does nothing and does not read the body."""

from __future__ import annotations

import sys

import uvicorn
from fastapi import FastAPI

app = FastAPI()


@app.post("/jobs", status_code=201)
async def noop() -> dict[str, str]:
    return {"id": "job"}


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), loop="uvloop", http="httptools", access_log=False, log_level="warning")
