"""Models that come and go while the server runs: closed, but for API keys that may manage.

    POST   /management/models {"folder": "bundles/new"}     serve one more, or replace its namesake
    POST   /management/models/{model}/reload                read its folder again
    DELETE /management/models/{model}                       serve it no more

Streams that run go on with the model they began with. A folder that holds no whole bundle changes
nothing. Folders are paths on the server's machine, so a key that may manage may make the server
read any bundle there.

The tokenizer as vLLM's paths show it, which lm-eval asks where it has none of its own.

    GET /tokenizer_info, POST /tokenize, POST /detokenize

One token is one character, or one byte, of the model's vocabulary.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response

from serve.gateway.request_log import current_request
from serve.http_api.body import read_request
from serve.http_api.openapi import documented
from serve.http_api.responses import json_response
from serve.models import Models
from serve.offload import offload_if_large
from serve.runtime.vocabulary import Vocabulary
from serve.wire import responses as pages
from serve.wire.errors import RequestError
from serve.wire.limits import MAX_TOKENS
from serve.wire.requests import DetokenizeRequest, LoadRequest, TokenizeRequest

log = logging.getLogger("torsor")

Json = dict[str, Any]


def add_management(app: FastAPI, models_of: Callable[[], Models]) -> None:
    """Add the paths to the app."""

    @app.post("/management/models", **documented(pages.ModelPage, LoadRequest))
    async def load(http: Request) -> Json:
        require_manager()
        request = await read_request(http, LoadRequest)
        return _loaded(models_of(), await models_of().load(Path(request.folder)))

    @app.post("/management/models/{model}/reload", **documented(pages.ModelPage))
    async def reload(model: str) -> Json:
        require_manager()
        return _loaded(models_of(), await models_of().reload(model))

    @app.delete("/management/models/{model}", **documented(pages.UnloadedPage))
    async def unload(model: str) -> Json:
        require_manager()
        models_of().unload(model)
        log.info("unloaded %s", model)
        return {"id": model, "unloaded": True}


def require_manager() -> None:
    """`RequestError` unless the request's key may manage."""
    call = current_request()
    if call is None or call.key is None or not call.key.manage:
        raise RequestError(
            "forbidden",
            "management: closed, expected an API key that may manage; make one: "
            "torsor key NAME --file keys.toml --manage, and serve with --keys keys.toml",
        )


def _loaded(models: Models, bundle: Any) -> Json:
    log.info("loaded %s", bundle.name)
    return models.describe(bundle)


def add_tokenizer(app: FastAPI, models_of: Callable[[], Models]) -> None:
    """Add the paths to the app."""

    @app.get("/tokenizer_info", **documented(pages.TokenizerPage))
    async def info() -> Json:
        models = models_of()
        bundle = models.text_bundle(None)
        size = len(models.vocabularies[bundle.name])
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
        vocabulary = models_of().vocabularies[models_of().text_bundle(request.model).name]
        size = len(request.prompt)
        return await json_response(await offload_if_large(size, _tokens, vocabulary, request))

    @app.post("/detokenize", **documented(pages.PromptPage, DetokenizeRequest))
    async def detokenize(http: Request) -> Json:
        request = await read_request(http, DetokenizeRequest)
        vocabulary = models_of().vocabularies[models_of().text_bundle(request.model).name]
        size = len(request.tokens)
        return {"prompt": await offload_if_large(size, _text, vocabulary, request.tokens)}


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
