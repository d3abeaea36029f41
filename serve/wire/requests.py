"""Requests, once for HTTP and gRPC. What is not honoured is refused.

Text is measured in characters: one token is one character of the model's vocabulary.
"""

from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from serve.wire.errors import invalid
from serve.wire.limits import (
    MAX_CHOICES,
    MAX_DETAILED,
    MAX_LOGPROBS,
    MAX_LOGPROBS_TOTAL,
    MAX_PROMPT_CHARACTERS,
    MAX_SEED,
    MAX_STATE_CHARACTERS,
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
    MAX_TOKENS,
)
from serve.wire.no_op_fields import NoOpFields, StreamOptions
from serve.wire.preview import shown
from serve.wire.prompts import Prompt, PromptField, prompt_list
from serve.wire.validation import Strict, explain, require_unicode, unknown_field

MAX_INDEX_DIGITS = 9


Unknown = Literal["error", "skip", "replace"]
AblationJson = dict[str, Any]


class GenerateRequest(Strict):
    """Write text: what HTTP's completions and pairs and gRPC's Generate have in common."""

    model: str | None = Field(None, description="id of a model; left out: the first one served")
    prompt: PromptField = Field(
        "",
        description="text or token ids (a token id is an index into the vocabulary), one or a "
        "list; empty: from the start. Of several prompts, choice i of prompt p has the index "
        "p * n + i; the seed of each choice is derived from the request's and that index",
    )
    max_tokens: int = Field(16, ge=0, le=MAX_TOKENS, description="characters to write at most")
    temperature: float = Field(1.0, ge=0, le=100, description="0: always the most probable")
    top_k: int = Field(0, ge=-1, le=2**31, description="keep the k most probable; 0 or -1: all")
    top_p: float = Field(1.0, gt=0, le=1, description="keep the smallest set of this probability")
    n: int = Field(1, ge=1, le=MAX_CHOICES, description="choices, each with a seed of its own")
    seed: int | None = Field(None, ge=0, le=MAX_SEED, description="left out: drawn and returned")
    stop: str | list[str] | None = Field(None, description="strings that end the text, left out")
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS, description="alternatives to show")
    echo: bool = Field(False, description="answer the prompt too")
    logit_bias: dict[str, float] | None = Field(
        None, description="index of a character: added to its logit; -100 forbids it"
    )
    unknown: Unknown | None = Field(
        None, description="characters of the prompt outside the vocabulary; left out: the server's"
    )
    ablation: AblationJson | None = Field(None, description="edits of the model's weights")
    state: str | None = Field(
        None,
        max_length=MAX_STATE_CHARACTERS,
        description="go on from this saved state; the seed is its own unless one is given",
    )
    save_state: bool = Field(False, description="answer the state after the last character")

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts one by one."""
        return prompt_list(self.prompt)

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        choices, given = self.n * len(self.prompts), self.n * sum(map(len, self.prompts))
        if choices > MAX_CHOICES:
            raise ValueError(
                f"n: found {choices} choices of {len(self.prompts)} prompts, expected at most "
                f"{MAX_CHOICES} (max_choices); send fewer prompts at once"
            )
        if (taken := given + choices * self.max_tokens) > MAX_TOKENS:
            raise ValueError(
                f"max_tokens: found {taken} characters of prompt and text over {choices} choices, "
                f"expected at most {MAX_TOKENS} (max_tokens); ask for less text or fewer choices"
            )
        described = choices * self.max_tokens + (given if self.echo else 0)
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
                raise ValueError(
                    f"logit_bias: found key {shown(key, 80)}, expected a character's index"
                )
            if not -100 <= value <= 100:
                raise ValueError(f"logit_bias.{key}: found {value}, expected -100 to 100")
        return self


class CompletionRequest(GenerateRequest, NoOpFields):
    """The body of `POST /v1/completions`: OpenAI's fields, and ours on top."""

    stream: bool = False
    stream_options: StreamOptions | None = None
    max_completion_tokens: int | None = Field(
        None, ge=0, le=MAX_TOKENS, description="another name of max_tokens"
    )

    @model_validator(mode="before")
    @classmethod
    def _take_other_name(cls, value: Any) -> Any:
        """`max_completion_tokens` stands for `max_tokens` where that is left out."""
        if isinstance(value, dict) and value.get("max_completion_tokens") is not None:
            return {"max_tokens": value["max_completion_tokens"], **value}
        return value

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if self.max_completion_tokens not in (None, self.max_tokens):
            raise ValueError(
                f"max_completion_tokens: found {self.max_completion_tokens} beside max_tokens "
                f"{self.max_tokens}, expected the same number; leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _check_stream_options(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: found without stream, expected stream to be true")
        return self

    @model_validator(mode="after")
    def _check_idle(self) -> Self:
        if self.best_of not in (None, self.n):
            raise ValueError(f"best_of: found {self.best_of}, expected n, which is {self.n}")
        if self.min_tokens and (self.stops or self.min_tokens > self.max_tokens):
            raise ValueError(
                f"min_tokens: found {self.min_tokens}, expected at most max_tokens and no stop; "
                "a text ends early at a stop string only"
            )
        return self


class PairRequest(GenerateRequest):
    """The body of `POST /v1/ablations/generate`: both texts, under the same random numbers."""

    prompt: str = Field("", max_length=MAX_PROMPT_CHARACTERS, description="empty: from the start")
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


class TextRequest(GenerateRequest):
    """One text, written as it comes: the body of BentoML's `POST /generate`."""

    prompt: str = Field("", max_length=MAX_PROMPT_CHARACTERS, description="empty: from the start")
    n: Literal[1] = 1
    logprobs: None = None


class TokenizeRequest(Strict):
    """The body of `POST /tokenize`."""

    model: str | None = None
    prompt: str = Field(max_length=MAX_PROMPT_CHARACTERS)
    unknown: Unknown | None = None
    add_special_tokens: bool = Field(False, description="there are none")
    return_token_strs: bool = False


class DetokenizeRequest(Strict):
    """The body of `POST /detokenize`."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0)]] = Field(max_length=MAX_PROMPT_CHARACTERS)


class LoadRequest(Strict):
    """The body of `POST /management/models`."""

    folder: str = Field(min_length=1, max_length=4096, description="of a bundle, on the server")


class ScoreRequest(Strict):
    """The body of `POST /v1/ablations/score`, and of gRPC's Score."""

    model: str | None = None
    text: str = Field(min_length=1, max_length=MAX_PROMPT_CHARACTERS)
    unknown: Unknown | None = None
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


Request = TypeVar("Request", bound=Strict)


def parse_request(kind: type[Request], value: Any) -> Request:
    """The checked request, or a `RequestError` naming the field, what was found and expected.

    A field that is null is left out, as OpenAI's clients mean it.
    """
    if not isinstance(value, dict):
        raise invalid("body", f"found {shown(value, 80)}, expected a JSON object")
    require_unicode(value)
    value = {k: v for k, v in value.items() if v is not None or k not in kind.model_fields}
    if len(value) > len(kind.model_fields):  # one is unknown; pydantic would look at all of them
        raise unknown_field(next(key for key in value if key not in kind.model_fields))
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise explain(error) from None
