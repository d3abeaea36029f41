"""What a request may hold, once for HTTP and gRPC. What is not honoured is refused.

Text is measured in characters: one token is one character of the model's vocabulary.
"""

from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from serve.wire.errors import RequestError, invalid

MAX_PROMPT_CHARACTERS = 1_000_000
MAX_TOKENS = 1_000_000  # that a request may take, prompt and text of all choices together
MAX_DETAILED = 100_000  # characters that a request may have described one by one
MAX_LOGPROBS_TOTAL = 200_000  # log-probabilities in one answer, alternatives included
MAX_CHOICES = 128
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1_000
MAX_LOGPROBS = 20
MAX_INDEX_DIGITS = 9
MAX_SEED = 2**63 - 1
MAX_STATE_CHARACTERS = 8 << 20

LIMITS = {  # by the names that errors say
    "max_prompt_characters": MAX_PROMPT_CHARACTERS,
    "max_tokens": MAX_TOKENS,
    "max_choices": MAX_CHOICES,
    "max_stops": MAX_STOPS,
    "max_stop_characters": MAX_STOP_CHARACTERS,
    "max_logprobs": MAX_LOGPROBS,
    "max_logprobs_total": MAX_LOGPROBS_TOTAL,
    "max_detailed": MAX_DETAILED,
}
LIMIT_OF = {  # a field's largest value or length
    "prompt": "max_prompt_characters",
    "text": "max_prompt_characters",
    "max_tokens": "max_tokens",
    "n": "max_choices",
    "logprobs": "max_logprobs",
}

Unknown = Literal["error", "skip", "replace"]
AblationJson = dict[str, Any]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class GenerateRequest(_Strict):
    """Write text: what HTTP's completions and pairs and gRPC's Generate have in common."""

    model: str | None = Field(None, description="id of a model; left out: the first one served")
    prompt: str = Field("", max_length=MAX_PROMPT_CHARACTERS, description="empty: from the start")
    max_tokens: int = Field(16, ge=0, le=MAX_TOKENS, description="characters to write at most")
    temperature: float = Field(1.0, ge=0, le=100, description="0: always the most probable")
    top_k: int = Field(0, ge=0, le=2**31, description="keep the k most probable; 0: all")
    top_p: float = Field(1.0, gt=0, le=1, description="keep the smallest set of this probability")
    n: int = Field(1, ge=1, le=MAX_CHOICES, description="choices, each with a seed of its own")
    seed: int | None = Field(None, ge=0, le=MAX_SEED, description="left out: drawn and returned")
    stop: str | list[str] | None = Field(None, description="strings that end the text, left out")
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS, description="alternatives to show")
    echo: bool = Field(False, description="answer the prompt too")
    logit_bias: dict[str, float] | None = Field(
        None, description="index of a character: added to its logit; -100 forbids it"
    )
    unknown: Unknown = Field("error", description="characters outside the vocabulary")
    ablation: AblationJson | None = Field(None, description="edits of the model's weights")
    state: str | None = Field(
        None,
        max_length=MAX_STATE_CHARACTERS,
        description="go on from this saved state; the seed is its own unless one is given",
    )
    save_state: bool = Field(False, description="answer the state after the last character")

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        if (taken := self.n * (len(self.prompt) + self.max_tokens)) > MAX_TOKENS:
            raise ValueError(
                f"max_tokens: found {taken} characters of prompt and text over {self.n} choices, "
                f"expected at most {MAX_TOKENS} (max_tokens); ask for less text or fewer choices"
            )
        described = self.n * (self.max_tokens + (len(self.prompt) if self.echo else 0))
        asked = 0 if self.logprobs is None else described * (1 + self.logprobs)
        if asked > MAX_LOGPROBS_TOTAL:
            raise ValueError(
                f"logprobs: found {asked} asked for over {described} characters, expected at most "
                f"{MAX_LOGPROBS_TOTAL} (max_logprobs_total); ask for less text or fewer "
                "alternatives"
            )
        return self

    @model_validator(mode="after")
    def _check_stops(self) -> Self:
        if len(self.stops) > MAX_STOPS:
            found = f"stop: found {len(self.stops)} strings"
            raise ValueError(f"{found}, expected at most {MAX_STOPS} (max_stops)")
        for stop in self.stops:
            if not 0 < len(stop) <= MAX_STOP_CHARACTERS:
                raise ValueError(
                    f"stop: found {len(stop)} characters, expected 1 to {MAX_STOP_CHARACTERS} "
                    "(max_stop_characters)"
                )
        return self

    @model_validator(mode="after")
    def _check_bias(self) -> Self:
        for key, value in (self.logit_bias or {}).items():
            if not key.isascii() or not key.isdigit() or len(key) > MAX_INDEX_DIGITS:
                raise ValueError(f"logit_bias: found key {key!r:.80}, expected a character's index")
            if not -100 <= value <= 100:
                raise ValueError(f"logit_bias.{key}: found {value}, expected -100 to 100")
        return self


class StreamOptions(_Strict):
    """OpenAI's `stream_options`."""

    include_usage: bool = False


class CompletionRequest(GenerateRequest):
    """The body of `POST /v1/completions`: OpenAI's fields, and ours on top.

    Fields of OpenAI's that we don't honour may hold the value that asks for nothing.
    """

    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="accepted and not used")
    best_of: Literal[1] | None = None
    suffix: None = None
    frequency_penalty: Literal[0] | None = None
    presence_penalty: Literal[0] | None = None

    @model_validator(mode="after")
    def _check_stream_options(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: found without stream, expected stream to be true")
        return self


class PairRequest(GenerateRequest):
    """The body of `POST /v1/ablations/generate`: both texts, under the same random numbers."""

    stream: bool = False

    @model_validator(mode="after")
    def _check_pair(self) -> Self:
        if self.n != 1:
            raise ValueError(f"n: found {self.n}, expected 1; a pair is one text of each branch")
        if self.logprobs is not None:
            raise ValueError("logprobs: found a number, expected none; use /v1/ablations/score")
        if self.state is not None or self.save_state:
            raise ValueError("state: found in a pair, expected none; use /v1/completions")
        return self


class ScoreRequest(_Strict):
    """The body of `POST /v1/ablations/score`, and of gRPC's Score."""

    model: str | None = None
    text: str = Field(min_length=1, max_length=MAX_PROMPT_CHARACTERS)
    unknown: Unknown = "error"
    ablation: AblationJson | None = None
    detail: bool = Field(False, description="also per-character log-probabilities and KL")

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        if self.detail and len(self.text) > MAX_DETAILED:
            raise ValueError(
                f"detail: found a text of {len(self.text)} characters, expected at most "
                f"{MAX_DETAILED} (max_detailed); cut the text, or ask for no detail"
            )
        return self


Request = TypeVar("Request", bound=_Strict)


def parse_request(kind: type[Request], value: Any) -> Request:
    """The checked request, or a `RequestError` naming the field, what was found and expected.

    A field that is null is left out, as OpenAI's clients mean it.
    """
    if not isinstance(value, dict):
        raise invalid("body", f"found {value!r:.80}, expected a JSON object")
    value = {k: v for k, v in value.items() if v is not None or k not in kind.model_fields}
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise _explain(error) from None


def _explain(error: ValidationError) -> RequestError:
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"] if not _is_branch(part))
    if first["type"] == "extra_forbidden":
        field = ".".join(str(part) for part in first["loc"])
        return invalid(field, "unknown field; remove it, the server does not honour it")
    if first["type"] == "value_error":  # our own sentences already name field and remedy
        message = first["msg"].removeprefix("Value error, ")
        return RequestError("invalid_request", message, message.split(":")[0])
    if first["type"] == "missing":
        return invalid(field, "missing, expected a value")
    if first["type"] in ("string_too_long", "string_too_short"):
        bounds = first["ctx"]
        expected = f"at {'most' if 'max_length' in bounds else 'least'} {[*bounds.values()][0]}"
        found = f"found {len(first['input'])} characters, expected {expected}"
        return invalid(field, found + _limit_name(field, first["type"]))
    found = f"{first['input']!r:.80}"
    expected = first["msg"].removeprefix("Input should be ")
    return invalid(
        field or "body", f"found {found}, expected {expected}{_limit_name(field, first['type'])}"
    )


def _limit_name(field: str, kind: str) -> str:
    is_limit = kind in ("string_too_long", "less_than_equal") and field in LIMIT_OF
    return f" ({LIMIT_OF[field]})" if is_limit else ""


def _is_branch(part: int | str) -> bool:
    # pydantic names the branch of a union in the location ("str", "list[str]")
    return isinstance(part, str) and part in ("str", "list[str]")
