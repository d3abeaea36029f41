"""The tokenizer as vLLM's paths show it, which lm-eval asks where it has none of its own.

    GET /tokenizer_info, POST /tokenize, POST /detokenize

One token is one character, or one byte, of the model's vocabulary.
"""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request, Response

from serve.docs import documented
from serve.host import Host
from serve.long_json import json_response
from serve.openai_api import read_json
from serve.wire import pages
from serve.wire.requests import MAX_TOKENS, DetokenizeRequest, TokenizeRequest, parse_request

Json = dict[str, Any]


def add_tokenizer(app: FastAPI, host_of: Callable[[], Host]) -> None:
    """Add the paths to the app."""

    @app.get("/tokenizer_info", **documented(pages.TokenizerPage))
    async def info() -> Json:
        host = host_of()
        bundle = host.text_bundle(None)
        size = len(host.vocabularies[bundle.name])
        return {
            "tokenizer_class": bundle.manifest.symbols,
            "vocab_size": size,
            "model_max_length": MAX_TOKENS,
            "bos_token": None,
            "eos_token": None,
            "pad_token": None,
        }

    @app.post("/tokenize", **documented(pages.TokensPage, TokenizeRequest))
    async def tokenize(http: Request) -> Response:
        request = parse_request(TokenizeRequest, await read_json(http))
        vocabulary = host_of().vocabularies[host_of().text_bundle(request.model).name]
        tokens = vocabulary.encode(request.prompt, "prompt", request.unknown).tolist()
        names = [vocabulary.names[i] for i in tokens] if request.return_token_strs else None
        page = {
            "count": len(tokens),
            "max_model_len": MAX_TOKENS,
            "tokens": tokens,
            "token_strs": names,
        }
        return await json_response(page)

    @app.post("/detokenize", **documented(pages.PromptPage, DetokenizeRequest))
    async def detokenize(http: Request) -> Json:
        request = parse_request(DetokenizeRequest, await read_json(http))
        vocabulary = host_of().vocabularies[host_of().text_bundle(request.model).name]
        tokens = vocabulary.check(request.tokens, "tokens").tolist()
        return {"prompt": vocabulary.decode(tokens)}
