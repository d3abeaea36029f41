"""The tokenizer as vLLM's paths show it, which lm-eval asks where it has none of its own.

    GET /tokenizer_info, POST /tokenize, POST /detokenize

One token is one character, or one byte, of the model's vocabulary.
"""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request, Response

from serve.http_api.body import read_request
from serve.http_api.long_json import json_response
from serve.http_api.openapi import documented
from serve.models import Host
from serve.offload import by_size
from serve.runtime.vocabulary import Vocabulary
from serve.wire import responses as pages
from serve.wire.requests import MAX_TOKENS, DetokenizeRequest, TokenizeRequest

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
        request = await read_request(http, TokenizeRequest)
        vocabulary = host_of().vocabularies[host_of().text_bundle(request.model).name]
        size = len(request.prompt)
        return await json_response(await by_size(size, _tokens, vocabulary, request))

    @app.post("/detokenize", **documented(pages.PromptPage, DetokenizeRequest))
    async def detokenize(http: Request) -> Json:
        request = await read_request(http, DetokenizeRequest)
        vocabulary = host_of().vocabularies[host_of().text_bundle(request.model).name]
        size = len(request.tokens)
        return {"prompt": await by_size(size, _text, vocabulary, request.tokens)}


def _tokens(vocabulary: Vocabulary, request: TokenizeRequest) -> Json:
    tokens = vocabulary.encode(request.prompt, "prompt", request.unknown).tolist()
    return {
        "count": len(tokens),
        "max_model_len": MAX_TOKENS,
        "tokens": tokens,
        "token_strs": [vocabulary.names[i] for i in tokens] if request.return_token_strs else None,
    }


def _text(vocabulary: Vocabulary, tokens: list[int]) -> str:
    return vocabulary.decode(vocabulary.check(tokens, "tokens"))
