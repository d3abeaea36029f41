"""Every limit of a server, by the name that its errors say. `GET /v1/limits` shows them.

| limit                 | of what                                                                  |
|-----------------------|--------------------------------------------------------------------------|
| queue_timeout_s       | from arrival to a slot                                                   |
| first_timeout_s       | from the slot to the first written character; scoring has none           |
| total_timeout_s       | from arrival to the last character                                       |
| unread_timeout_s      | that a stream rests because its client doesn't read                      |
| body_timeout_s        | for the body of a request over HTTP                                      |
| header_timeout_s      | for its headers                                                          |
| max_connections       | open at once over HTTP; probes are answered above it                     |
| max_header_bytes      | of its first line and headers                                            |
| max_headers           | headers                                                                  |
| max_streams           | streams that run at once, a model; the others wait                       |
| max_waiting           | streams that wait                                                        |
| max_held_characters   | of the prompts of all streams that wait or run                           |
| max_background        | streams of sweeps that run at once, a model, beside `max_streams`        |
| max_queued_background | of them that wait                                                        |
| max_queued_ablations  | ablations that are being prepared                                        |
| max_queued_inferences | single runs that wait                                                    |
| max_queued_trials     | queries of trials that wait                                              |
| max_queued_large      | requests of more than 256 KiB that wait to be read                       |
| max_prompt_characters | characters of a prompt, or of a text to score                            |
| max_tokens            | characters that a request may take, prompt and text of all choices       |
| max_choices           | `n`                                                                      |
| max_stops             | stop strings                                                             |
| max_stop_characters   | characters of one of them                                                |
| max_logprobs          | alternatives a character                                                 |
| max_logprobs_total    | log-probabilities in one answer                                          |
| max_detailed          | characters of a text that is scored with detail                          |
| max_compared          | ablations in one comparison                                              |
| max_top               | characters of a distribution that are named                              |
| max_resamples         | resamples of trials, for their intervals                                 |
| max_trial_bytes       | of trials that a caller brings                                           |
| max_sweep_text        | characters of a text that a sweep scores                                 |
| max_sweeps            | sweeps that are queued or running                                        |
| max_points            | points of a sweep                                                        |
| max_grid_characters   | of the JSON of all points that a grid spans                              |
| max_grid_bytes        | of a grid over gRPC                                                      |
| max_controls          | random controls of each of them                                          |
| max_body_bytes        | of a request over HTTP                                                   |
| max_json_parts        | strings, lists and objects in such a body                                |
| max_json_numbers      | values in its lists and objects                                          |
| max_message_bytes     | of a request over gRPC                                                   |
| max_message_fields    | fields in such a message, those of inner ones too                        |

Those of API keys stand in serve/gateway/keys.py, the defaults of an engine's own in
serve/engine/limits.py. Below the table's are limits that errors state without a name.
"""

from collections.abc import Mapping

BODY_TIMEOUT_S = 30.0
HEADER_TIMEOUT_S = 20.0
MAX_HEADER_BYTES = 1 << 16
MAX_HEADERS = 128
UNREAD_TIMEOUT_S = 30.0
MAX_QUEUED_ABLATIONS = 256
MAX_QUEUED_INFERENCES = 16
MAX_QUEUED_TRIALS = 16
MAX_QUEUED_LARGE = 64
MAX_PROMPT_CHARACTERS = 1_000_000
MAX_TOKENS = 1_000_000
MAX_CHOICES = 128
MAX_STOPS = 64
MAX_STOP_CHARACTERS = 1_000
MAX_LOGPROBS = 20
MAX_LOGPROBS_TOTAL = 200_000
MAX_DETAILED = 100_000
MAX_COMPARED = 64
MAX_TOP = 256
MAX_RESAMPLES = 10_000
MAX_SWEEP_TEXT = 100_000
MAX_POINTS = 4096
MAX_CONTROLS = 32
MAX_SWEEPS = 16
MAX_GRID_CHARACTERS = 8 << 20
MAX_GRID_BYTES = 1 << 20
MAX_TRIAL_BYTES = 16 << 20
MAX_BODY_BYTES = 16 << 20
MAX_JSON_PARTS = 50_000
MAX_JSON_NUMBERS = MAX_PROMPT_CHARACTERS + MAX_JSON_PARTS  # a prompt of token ids fits
MAX_MESSAGE_BYTES = MAX_BODY_BYTES
MAX_MESSAGE_FIELDS = 200_000

MAX_SEED = 2**63 - 1  # of a text
MAX_EDIT_SEED = 2**53 - 1  # of edits and resamples, which go through JSON of doubles and come back
MAX_EDITS = 64  # of one ablation
MAX_NAME = 100  # characters of its name
MAX_STATE_CHARACTERS = 8 << 20  # of a saved state
MAX_UPLOAD_CHARACTERS = 12 << 20  # of a safetensors file in base64
MAX_TENSORS = 256  # of an inference, inputs and outputs each
MAX_AXES = 8  # of one of them
MAX_ROWS = 256  # of an inference; their logits and states must fit into an answer

LIMITS: dict[str, float | None] = {  # in the order of the table; None: the engine has its own
    "queue_timeout_s": None,
    "first_timeout_s": None,
    "total_timeout_s": None,
    "unread_timeout_s": None,
    "body_timeout_s": BODY_TIMEOUT_S,
    "header_timeout_s": HEADER_TIMEOUT_S,
    "max_connections": None,
    "max_header_bytes": MAX_HEADER_BYTES,
    "max_headers": MAX_HEADERS,
    "max_streams": None,
    "max_waiting": None,
    "max_held_characters": None,
    "max_background": None,
    "max_queued_background": None,
    "max_queued_ablations": MAX_QUEUED_ABLATIONS,
    "max_queued_inferences": MAX_QUEUED_INFERENCES,
    "max_queued_trials": MAX_QUEUED_TRIALS,
    "max_queued_large": MAX_QUEUED_LARGE,
    "max_prompt_characters": MAX_PROMPT_CHARACTERS,
    "max_tokens": MAX_TOKENS,
    "max_choices": MAX_CHOICES,
    "max_stops": MAX_STOPS,
    "max_stop_characters": MAX_STOP_CHARACTERS,
    "max_logprobs": MAX_LOGPROBS,
    "max_logprobs_total": MAX_LOGPROBS_TOTAL,
    "max_detailed": MAX_DETAILED,
    "max_compared": MAX_COMPARED,
    "max_top": MAX_TOP,
    "max_resamples": MAX_RESAMPLES,
    "max_sweep_text": MAX_SWEEP_TEXT,
    "max_points": MAX_POINTS,
    "max_controls": MAX_CONTROLS,
    "max_sweeps": MAX_SWEEPS,
    "max_grid_characters": MAX_GRID_CHARACTERS,
    "max_grid_bytes": MAX_GRID_BYTES,
    "max_trial_bytes": MAX_TRIAL_BYTES,
    "max_body_bytes": MAX_BODY_BYTES,
    "max_json_parts": MAX_JSON_PARTS,
    "max_json_numbers": MAX_JSON_NUMBERS,
    "max_message_bytes": MAX_MESSAGE_BYTES,
    "max_message_fields": MAX_MESSAGE_FIELDS,
}


def all_limits(own: Mapping[str, float]) -> dict[str, float]:
    """The limits of a server that has these of its own: name and value, seconds or a count."""
    return {name: own[name] if limit is None else limit for name, limit in LIMITS.items()}
