"""Fields of OpenAI's completions and of its dialects, which hold what asks for nothing.

The rule: such a field that is null, or asks for what is done anyway, is accepted; one that asks
for something else is refused by name.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from serve.wire.validation import Strict


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


# The one number that asks for nothing; JSON may write it 0 or 0.0.
Zero = Annotated[Literal[0], BeforeValidator(_whole)]
One = Annotated[Literal[1], BeforeValidator(_whole)]


class StreamOptions(Strict):
    """OpenAI's `stream_options`."""

    include_usage: bool = Field(default=False, description="usage in an event of its own, the last")
    continuous_usage_stats: bool = Field(default=False, description="usage so far in every event")


class TextFormat(Strict):
    """OpenAI's `response_format`, of free text."""

    type: Literal["text"]


class NoOpFields(Strict):
    """Fields that OpenAI's and vLLM's clients send, and this server does not honour.

    Each may hold what asks for nothing. These models have neither an end token nor special tokens,
    so both values of a switch that speaks of them do.
    """

    user: str | None = None
    best_of: int | None = Field(None, description="n, or left out")
    suffix: None = None
    frequency_penalty: Zero | None = None
    presence_penalty: Zero | None = None
    repetition_penalty: One | None = None
    length_penalty: One | None = None
    min_p: Zero | None = None
    use_beam_search: Literal[False] | None = None
    include_stop_str_in_output: Literal[False] | None = None
    stop_token_ids: list[int] | None = Field(None, max_length=0)
    min_tokens: int | None = Field(None, ge=0, description="at most max_tokens, without stop")
    ignore_eos: bool | None = None
    add_special_tokens: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    metadata: dict[str, str] | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    response_format: TextFormat | None = None
    typical_p: One | None = None
    priority: Zero | None = None
    truncate_prompt_tokens: None = None
    prompt_logprobs: None = None
    allowed_token_ids: None = None
    bad_words: list[str] | None = Field(None, max_length=0)
    logits_processors: list[str] | None = Field(None, max_length=0)
    return_tokens_as_token_ids: Literal[False] | None = None
    return_token_ids: Literal[False] | None = None
    structured_outputs: None = None
    guided_json: None = None
    guided_regex: None = None
    guided_choice: None = None
    guided_grammar: None = None
    request_id: None = None
    cache_salt: None = None
    kv_transfer_params: None = None
    vllm_xargs: None = None
