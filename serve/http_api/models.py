"""Models that come and go while the server runs, and their vocabularies as tokenizers.

    POST   /management/models {"folder": "bundles/new"}     serve one more, or replace its namesake
    POST   /management/models/{model}/reload                read its folder again
    DELETE /management/models/{model}                       serve it no more
    GET    /tokenizer_info                                  as vLLM's paths show it, which lm-eval
    POST   /tokenize, POST /detokenize                      asks where it has no tokenizer itself

Management is closed, but for API keys that may manage. Streams that run go on with the model they
began with. A folder that holds no whole bundle changes nothing. Folders are paths on the server's
machine, so a key that may manage may make the server read any bundle there.

One token is one character, or one byte, of the model's vocabulary.
"""

import logging
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from serve.gateway.request_log import current_request
from serve.http_api.body import read_request
from serve.http_api.responses import json_response
from serve.http_api.routes import ModelsOf, Route
from serve.models import Models
from serve.offload import offload_if_large
from serve.queries.prompts import report_unknown
from serve.runtime.bundle import Bundle
from serve.runtime.vocabulary import Vocabulary
from serve.wire.errors import RequestError
from serve.wire.limits import MAX_TOKENS
from serve.wire.requests import DetokenizeRequest, LoadRequest, TokenizeRequest
from serve.wire.responses import Model, Prompt, Tokenizer, Tokens, Unloaded

log = logging.getLogger("torsor")


async def load(models_of: ModelsOf, http: Request) -> Response:
    """Serve one more model, or another one under the name of one that is served."""
    require_manager()
    request = await read_request(http, LoadRequest)
    return await _loaded(models_of(), await models_of().load(Path(request.folder)))


async def reload(models_of: ModelsOf, http: Request) -> Response:
    """Read a served model's folder again."""
    require_manager()
    return await _loaded(models_of(), await models_of().reload(http.path_params["model"]))


async def unload(models_of: ModelsOf, http: Request) -> Response:
    """Serve a model no more."""
    require_manager()
    model = http.path_params["model"]
    models_of().unload(model)
    log.info("unloaded %s", model)
    return await json_response(Unloaded(id=model, unloaded=True))


def require_manager() -> None:
    """`RequestError` unless the request's key may manage."""
    call = current_request()
    if call is None or call.key is None or not call.key.manage:
        raise RequestError(
            "forbidden",
            "management: closed, expected an API key that may manage; make one: "
            "torsor key NAME --file keys.toml --manage, and serve with --keys keys.toml",
        )


async def _loaded(models: Models, bundle: Bundle) -> Response:
    log.info("loaded %s", bundle.name)
    return await json_response(models.describe(bundle))


async def info(models_of: ModelsOf, http: Request) -> Response:
    """The tokenizer of the first model of text."""
    del http
    models = models_of()
    bundle = models.text_bundle(None)
    tokenizer = Tokenizer(
        tokenizer_class=bundle.manifest.symbols,
        vocab_size=len(models.vocabularies[bundle.name]),
        model_max_length=MAX_TOKENS,
    )
    return await json_response(tokenizer)


async def tokenize(models_of: ModelsOf, http: Request) -> Response:
    """The token ids of a text."""
    request = await read_request(http, TokenizeRequest)
    models = models_of()
    request.unknown = request.unknown or models.unknown
    vocabulary = models.vocabularies[models.text_bundle(request.model).name]
    size = len(request.prompt)
    return await json_response(await offload_if_large(size, _tokens, vocabulary, request))


async def detokenize(models_of: ModelsOf, http: Request) -> Response:
    """The text of token ids."""
    request = await read_request(http, DetokenizeRequest)
    vocabulary = models_of().vocabularies[models_of().text_bundle(request.model).name]
    size = len(request.tokens)
    return await json_response(await offload_if_large(size, _prompt, vocabulary, request.tokens))


def _tokens(vocabulary: Vocabulary, request: TokenizeRequest) -> Tokens:
    unknown = request.unknown or "error"
    found, counts = vocabulary.encode_counted(request.prompt, "prompt", unknown)
    tokens = tuple(found.tolist())
    names = tuple(vocabulary.names[i] for i in tokens) if request.return_token_strs else None
    return Tokens(
        count=len(tokens),
        max_model_len=MAX_TOKENS,
        tokens=tokens,
        token_strs=names,
        unknown=report_unknown(unknown, [counts]),
    )


def _prompt(vocabulary: Vocabulary, tokens: list[int]) -> Prompt:
    return Prompt(prompt=vocabulary.decode(vocabulary.check(tokens, "tokens")))


MANAGEMENT = "/management/models"
ROUTES = (
    Route("GET", "/tokenizer_info", info, answers=Tokenizer),
    Route("POST", "/tokenize", tokenize, asks=TokenizeRequest, answers=Tokens),
    Route("POST", "/detokenize", detokenize, asks=DetokenizeRequest, answers=Prompt),
    Route("POST", MANAGEMENT, load, asks=LoadRequest, answers=Model),
    Route("POST", f"{MANAGEMENT}/{{model}}/reload", reload, answers=Model),
    Route("DELETE", f"{MANAGEMENT}/{{model}}", unload, answers=Unloaded),
)
