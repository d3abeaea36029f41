"""Commands of `torsor` that ask a server. Text goes to stdout, notes about it to stderr."""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, cast

from clients.command_line import tables
from clients.command_line.inputs import (
    asked_ablation,
    read_ablation,
    read_bytes,
    read_edits,
    read_file,
    read_json,
    read_prompt,
    read_text,
)
from clients.errors import ServerError, UnfitRequest
from clients.files import write_whole
from clients.options import GenerateOptions, PairOptions, Uploaded
from clients.plots.spectrum import spectrum_plot
from clients.query_results import TrialsResult
from clients.results import Chunk, join_pair, to_json
from serve.wire.codec import JsonObject

if TYPE_CHECKING:  # only the client that is asked for is loaded
    from clients.grpc_client import GrpcClient
    from clients.http_client import HttpClient

    Client = HttpClient | GrpcClient


MAX_TOKENS = 200  # characters to write, unless --max-tokens says otherwise


def run(args: Namespace) -> None:
    """Run the command; raises the errors of clients/errors.py, and ValueError for bad input."""
    with open_client(args.url, args.grpc, args.ca) as client:
        COMMANDS[args.command](client, args)


def open_client(url: str | None, over_grpc: bool, ca: str | None) -> "Client":
    """The client of the server at `url`, else at the environment's, else at the usual address.

    The API key is the environment's: a command line can be read by everybody on the machine.
    """
    api_key = os.environ.get("TORSOR_API_KEY")
    if over_grpc:
        from clients.grpc_client import DEFAULT_TARGET, GrpcClient

        target = url or os.environ.get("TORSOR_GRPC_URL") or DEFAULT_TARGET
        return GrpcClient(target, api_key=api_key, ca=ca)
    from clients.http_client import DEFAULT_URL, HttpClient

    url = url or os.environ.get("TORSOR_URL") or DEFAULT_URL
    return HttpClient(url, api_key=api_key, ca=ca)


def _generate(client: "Client", args: Namespace) -> None:
    options = GenerateOptions(**_sampling(args))  # type: ignore[typeddict-item]  # not all of them
    options["ablation"] = asked_ablation(args)
    options["save_state"] = True if args.save_state else None
    options["state"] = read_file(args.state, "--state: ").strip() if args.state else None
    prompt, states = read_prompt(args.prompt), list[str]()
    if args.json:
        completion = client.complete(prompt, **options)
        states += [choice.state for choice in completion.choices if choice.state]
        print(to_json(completion))
    else:
        with closing(client.generate(prompt, **options)) as stream:
            _write(_noting(stream, states), drawn=args.seed is None and not args.state)
    if args.save_state and not states:
        raise ValueError("--save-state: the server answered no state, expected one; is it older?")
    if args.save_state:
        write_whole(Path(args.save_state), states[-1] + "\n")


def _noting(stream: Iterable[Chunk], states: list[str]) -> Iterator[Chunk]:
    for chunk in stream:
        if chunk.state is not None:
            states.append(chunk.state)
        yield chunk


def _write(stream: Iterable[Chunk], drawn: bool) -> None:
    last, ablation = "\n", None
    try:
        for chunk in stream:
            if drawn and chunk.seed is not None:
                print(f"seed {chunk.seed}", file=sys.stderr, flush=True)
                drawn = False
            sys.stdout.write(chunk.text)
            sys.stdout.flush()
            last = chunk.text[-1:] or last
            ablation = chunk.summary.ablation if chunk.summary else ablation
    finally:
        # On a terminal the shell's prompt, notes and errors begin a line of their own
        if sys.stdout.isatty() and last != "\n":
            print(file=sys.stderr)
    for verb, line in tables.changes(ablation):
        print(f"{verb} {line}", file=sys.stderr)


def _ablate(client: "Client", args: Namespace) -> None:
    if args.text is not None:
        return ablate_text(client, args)
    ablation = asked_ablation(args)
    assert ablation is not None  # argparse requires it
    pair = join_pair(client.generate_pair(read_prompt(args.prompt), ablation, **_sampling(args)))
    print(to_json(pair) if args.json else tables.pair(pair))


def _score(client: "Client", args: Namespace) -> None:
    ablation = asked_ablation(args)
    text = read_text(args.file, "FILE: ")
    result = client.score(text[: args.limit], ablation, model=args.model, unknown=args.unknown)
    print(to_json(result) if args.json else tables.score(result))


def _models(client: "Client", args: Namespace) -> None:
    models = client.models()
    print(to_json(models) if args.json else tables.models(models))


def _manage(client: "Client", args: Namespace) -> None:
    if args.grpc:
        raise ValueError("--grpc: models are managed over HTTP only; leave it out")
    http = cast("HttpClient", client)
    if args.action == "unload":
        http.unload(args.what)
        print(json.dumps({"id": args.what, "unloaded": True}) if args.json else "unloaded")
        return
    model = http.load(args.what) if args.action == "load" else http.reload(args.what)
    print(to_json(model) if args.json else f"serves {model.id}")


def _structure(client: "Client", args: Namespace) -> None:
    if args.plot is not None and Path(args.plot).suffix.lower() != ".svg":
        expected = "a name that ends in .svg; it draws SVG only"
        raise ValueError(f"--plot: found {args.plot!r:.200}, expected {expected}")
    structure = client.structure(args.model)
    print(to_json(structure) if args.json else tables.structure(structure), flush=True)
    if args.plot is not None:
        write_whole(Path(args.plot), spectrum_plot(structure))


def _sweep(client: "Client", args: Namespace) -> None:
    from clients.command_line.sweep import sweep  # only here is what it needs

    sweep(client, args)


def _sampling(args: Namespace) -> PairOptions:
    return PairOptions(
        model=args.model,
        max_tokens=MAX_TOKENS if args.max_tokens is None else args.max_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        seed=args.seed,
        stop=args.stop,
        unknown=args.unknown,
    )


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
    print(page if args.json else tables.trials(result))


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
    print(to_json(result) if args.json else tables.compare(result))


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


def trials_page(result: TrialsResult) -> JsonObject:
    """The answer's page, with the scores of the model in question at its top, by name."""
    scores = result.baseline if result.ablated is None else result.ablated
    top = dict.fromkeys(ALWAYS) | scores | (result.delta or {})
    return top | asdict(result)


COMMANDS: dict[str, Callable[["Client", Namespace], None]] = {
    "generate": _generate,
    "ablate": _ablate,
    "score": _score,
    "models": _models,
    "manage": _manage,
    "structure": _structure,
    "trials": trials,
    "compare": compare,
    "sweep": _sweep,
}
