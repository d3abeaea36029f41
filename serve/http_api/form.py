"""Forms as requests: multipart/form-data and application/x-www-form-urlencoded, beside JSON.

A field that may be a text is one; every other field is JSON, as in `max_tokens=100`.
"""

import json
from typing import Any, Literal, get_args, get_origin

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.types import Message

from serve.http_api.body import parse_body, read_body
from serve.wire.errors import RequestError, invalid
from serve.wire.preview import shown
from serve.wire.requests import Request as Asked
from serve.wire.requests import parse_request

EMPTY_BODY = b"{}"  # BentoML takes a missing body for {}
FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
MAX_FIELDS = 100


async def read_form_or_json(http: Request, kind: type[Asked]) -> Asked:
    """The body as a checked request; `RequestError` if it is none of this kind."""
    content = await read_body(http) or EMPTY_BODY
    media = http.headers.get("content-type", "").split(";")[0].strip().lower()
    if media not in FORMS or content.lstrip()[:1] == b"{":  # curl calls all that it sends a form
        if media and "json" not in media and media not in FORMS:
            expected = f"application/json, {FORMS[0]} or {FORMS[1]}"
            sentence = f"content-type: found {media!r:.80}, expected {expected}; send one of them"
            raise RequestError("unsupported_media_type", sentence, "content-type")
        return await parse_body(content, kind)
    form = await _parse(http, content)
    return parse_request(kind, {name: _value(kind, name, form[name]) for name in form})


async def _parse(http: Request, content: bytes) -> FormData:
    async def receive() -> Message:
        return {"type": "http.request", "body": content, "more_body": False}

    try:
        return await Request(http.scope, receive).form(max_files=0, max_fields=MAX_FIELDS)
    except (MultiPartException, HTTPException, KeyError, ValueError, AssertionError) as error:
        reason = getattr(error, "detail", None) or getattr(error, "message", None) or repr(error)
        expected = "expected one as its content-type says; send it with its boundary, or JSON"
        raise invalid("body", f"found no form ({reason!s:.200}), {expected}") from None


def _value(kind: type[Asked], name: str, found: Any) -> Any:
    field = kind.model_fields.get(name)
    if not isinstance(found, str):
        raise invalid(name, "found a file, expected a field of the form; send its content")
    if field is None or _takes_text(field.annotation):
        return found
    try:
        return json.loads(found)
    except ValueError:
        raise invalid(name, f"found {shown(found, 80)}, expected JSON; write it so") from None


def _takes_text(kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return any(isinstance(value, str) for value in get_args(kind))
    is_union = get_origin(kind) not in (dict, list)
    return kind is str or (is_union and any(map(_takes_text, get_args(kind))))
