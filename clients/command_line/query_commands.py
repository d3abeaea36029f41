"""The commands `torsor trials` and `torsor compare`, and `torsor ablate --text`."""

import json
from argparse import Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING

from clients.command_line import query_tables, tables
from clients.command_line.inputs import (
    asked_ablation,
    read_ablation,
    read_bytes,
    read_edits,
    read_json,
    read_prompt,
    read_text,
)
from clients.errors import ServerError, UnfitRequest
from clients.options import Uploaded
from clients.query_results import TrialsResult
from clients.results import Json, to_json

if TYPE_CHECKING:  # only the client that is asked for is loaded
    from clients.grpc_client import GrpcClient
    from clients.http_client import HttpClient

    Client = HttpClient | GrpcClient

BROUGHT = ("trials", "safetensors")  # the fields of trials that a caller brings
SAMPLING = ("max_tokens", "seed", "temperature", "top_k", "top_p", "stop")  # of a text to write
ALWAYS = ("replay_accuracy", "fvu", "delta_fvu", "s_delta_t")  # at the top of the page


def trials(client: "Client", args: Namespace) -> None:
    """Scores of a model of a task."""
    given = {"model": args.model, "resamples": args.resamples, "seed": args.seed}
    ablation = asked_ablation(args)
    uploaded = None if args.trials is None else _uploaded(args.trials)
    try:
        result = client.trials(ablation, uploaded, **given)
    except (ServerError, UnfitRequest) as error:
        if uploaded is None or (error.field or "").partition(".")[0] not in BROUGHT:
            raise
        raise ValueError(f"--trials: {args.trials}: {error}") from None
    page = json.dumps(trials_page(result), ensure_ascii=False)
    print(page if args.json else query_tables.trials(result))


def _uploaded(path: str) -> Uploaded:
    """Trials in a file: an object of JSON, or a safetensors file, which begins with its length."""
    content = read_bytes(path, "--trials: ")
    if content[:1] in (b"{", b"[", b" ", b"\n") and b"\0" not in content[:8]:
        page = read_json(content.decode(errors="replace"), "--trials", f" in {path}")
        if not isinstance(page, dict):
            expected = "an object with inputs, targets and perhaps mask"
            raise ValueError(f"--trials: found a list in {path}, expected {expected}")
        return page
    return content


def compare(client: "Client", args: Namespace) -> None:
    """What comes next after a prompt."""
    named = [read_ablation(source) for source in args.ablation or []]
    ablations = [a for a in (*named, read_edits(args.edit)) if a is not None]
    if not ablations:
        raise ValueError("--ablation: found none, expected some, or --edit: give what to compare")
    given = {"model": args.model, "unknown": args.unknown, "top": args.top}
    result = client.compare(read_prompt(args.prompt), ablations, **given)
    print(to_json(result) if args.json else query_tables.compare(result))


def ablate_text(client: "Client", args: Namespace) -> None:
    """Bits per character of a text, without and with an ablation."""
    if args.prompt:
        raise ValueError("--text: found beside a prompt, expected one of them: leave one out")
    for name in SAMPLING:
        if getattr(args, name) is not None:
            found = f"--{name.replace('_', '-')}: found beside --text, which is scored, not written"
            raise ValueError(f"{found}; leave one of them out")
    text = read_text(args.text, "--text: ")
    result = client.score(text, asked_ablation(args), model=args.model, unknown=args.unknown)
    print(to_json(result) if args.json else tables.score(result))


def trials_page(result: TrialsResult) -> dict[str, Json]:
    """The answer's page, with the scores of the model in question at its top, by name."""
    scores = result.baseline if result.ablated is None else result.ablated
    top = dict.fromkeys(ALWAYS) | scores | (result.delta or {})
    return top | asdict(result)
