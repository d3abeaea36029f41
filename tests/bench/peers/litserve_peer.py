"""LitServe and torch: requests that arrive together are written as one batch, up to 64.

    python litserve_peer.py PORT

Server-sent events, a character each. Of LitServe's two queues between processes this takes the fast
one.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import litserve
from torch_step import TorchStep

BATCH = 64
GATHER_S = 0.02  # to wait for others


class Writer(litserve.LitAPI):
    """Steps a whole batch until its longest text is done."""

    def setup(self, device: str) -> None:
        """Load the model."""
        del device
        self.model = TorchStep()

    def decode_request(self, request: dict[str, Any]) -> int:
        """The number of characters."""
        return int(request["max_tokens"])

    def predict(self, lengths: list[int]) -> Iterator[list[str]]:
        """A character a stream at a time; nothing for those that are done."""
        state, odds = self.model.start(len(lengths))
        for written in range(max(lengths)):
            state, odds, texts = self.model.step(state, odds)
            yield [t if written < n else "" for t, n in zip(texts, lengths, strict=True)]

    def encode_response(self, output: Iterator[list[str]]) -> Any:
        """The same as events."""
        for texts in output:
            yield [f"data: {json.dumps({'text': text})}\n\n" if text else "" for text in texts]


if __name__ == "__main__":
    api = Writer(max_batch_size=BATCH, batch_timeout=GATHER_S, stream=True)
    server = litserve.LitServer(api, accelerator="cpu", timeout=False, fast_queue=True)
    server.run(
        host="127.0.0.1",
        port=int(sys.argv[1]),
        num_api_servers=1,
        log_level="warning",
        generate_client_file=False,
    )
