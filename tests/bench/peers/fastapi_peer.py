"""FastAPI and torch, as most people would write it: each request steps the model by itself.

    python fastapi_peer.py PORT

Server-sent events, a character each. The step runs on the event loop, since a thread a character
costs more; `sleep(0)` lets the other streams have their turn.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator

import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from torch_step import TorchStep

app, model = FastAPI(), TorchStep()


class Ask(BaseModel):
    """A request; other fields are not looked at."""

    max_tokens: int


@app.get("/ready")
async def ready() -> bool:
    """Whether requests are taken."""
    return True


@app.post("/generate")
async def generate(ask: Ask) -> StreamingResponse:
    """Text, a character an event."""

    async def events() -> AsyncIterator[str]:
        state, odds = model.start(1)
        for _ in range(ask.max_tokens):
            state, odds, (text,) = model.step(state, odds)
            yield f"data: {json.dumps({'text': text})}\n\n"
            await asyncio.sleep(0)
        yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
