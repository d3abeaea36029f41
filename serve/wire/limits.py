"""Every limit of a server, by the name that its errors say. `GET /v1/limits` shows them.

| limit                 | of what                                                                  |
|-----------------------|--------------------------------------------------------------------------|
| queue_timeout_s       | from arrival to a slot                                                   |
| first_timeout_s       | from the slot to the first written character; scoring has none           |
| total_timeout_s       | from arrival to the last character                                       |
| unread_timeout_s      | that a stream rests because its client doesn't read                      |
| body_timeout_s        | for the body of a request over HTTP                                      |
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
| max_controls          | random controls of each of them                                          |
| max_body_bytes        | of a request over HTTP                                                   |
| max_json_parts        | strings, lists and objects in such a body                                |
| max_json_numbers      | values in its lists and objects                                          |
| max_message_bytes     | of a request over gRPC                                                   |
| max_message_fields    | fields in such a message, those of inner ones too                        |

Those of API keys stand in serve/gateway/keys.py.
"""

from serve.engine.engine import Limits
from serve.grpc_api.interceptor import MAX_MESSAGE_FIELDS
from serve.http_api.body import MAX_JSON_NUMBERS, MAX_JSON_PARTS
from serve.models import MAX_QUEUED_ABLATIONS, MAX_QUEUED_INFERENCES, MAX_QUEUED_TRIALS
from serve.offload import MAX_QUEUED_LARGE
from serve.queries.trial_data import MAX_TRIAL_BYTES
from serve.sweeps.store import MAX_SWEEPS
from serve.wire import requests
from serve.wire.queries import QUERY_LIMITS

MAX_BODY_BYTES = 16 << 20
BODY_TIMEOUT_S = 30.0
MAX_MESSAGE_BYTES = MAX_BODY_BYTES


def all_limits(engine: Limits) -> dict[str, float]:
    """The limits of a server whose engine has these: name and value, seconds or a count."""
    return {
        "queue_timeout_s": engine.queue_timeout_s,
        "first_timeout_s": engine.first_timeout_s,
        "total_timeout_s": engine.total_timeout_s,
        "unread_timeout_s": engine.unread_timeout_s,
        "body_timeout_s": BODY_TIMEOUT_S,
        "max_streams": engine.max_streams,
        "max_waiting": engine.max_waiting,
        "max_held_characters": engine.max_held_characters,
        "max_background": engine.max_background,
        "max_queued_background": engine.max_queued_background,
        "max_queued_ablations": MAX_QUEUED_ABLATIONS,
        "max_queued_inferences": MAX_QUEUED_INFERENCES,
        "max_queued_trials": MAX_QUEUED_TRIALS,
        "max_queued_large": MAX_QUEUED_LARGE,
        **requests.LIMITS,
        **QUERY_LIMITS,
        "max_sweeps": MAX_SWEEPS,
        "max_trial_bytes": MAX_TRIAL_BYTES,
        "max_body_bytes": MAX_BODY_BYTES,
        "max_json_parts": MAX_JSON_PARTS,
        "max_json_numbers": MAX_JSON_NUMBERS,
        "max_message_bytes": MAX_MESSAGE_BYTES,
        "max_message_fields": MAX_MESSAGE_FIELDS,
    }
