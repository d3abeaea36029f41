"""Train, export, serve, stream and ablate small sequence models on matrix groups.

`torsor COMMAND --help` says more. Where the server is comes from --url, else from TORSOR_URL or,
with --grpc, TORSOR_GRPC_URL. TORSOR_API_KEY holds the key, where the server wants one.

Exit codes: 0 done, 1 error, 2 wrong usage, 130 stopped by Ctrl-C.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from clients.command_line.parsers import add_ablation, add_compare, add_sweep, add_trials
from clients.errors import TorsorError

INTERRUPTED = 130


class _Room(NamedTuple):
    module: str  # handed the rest of the command line, by name, so the walls between rooms stand
    extra: str
    help: str


ROOMS = {
    "train": _Room("train.__main__", "train", "train a model; writes a run of checkpoints"),
    "export": _Room("export.__main__", "export", "turn a checkpoint into a bundle"),
    "serve": _Room("serve.__main__", "serve", "serve bundles over HTTP and gRPC"),
    "key": _Room("serve.gateway.keys", "serve", "make an API key for a server"),
    "demo": _Room(
        "clients.command_line.demo",
        "train,export,serve,client",
        "train, export, serve and ablate a small model, in one go",
    ),
}
POSITIONAL = {"command", "prompt", "file", "grid", "action", "what"}  # they have no flags
OURS = ("train", "export", "serve", "clients")


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit code. Wrong usage and --help leave by argparse's SystemExit."""
    words = sys.argv[1:] if arguments is None else arguments
    if words and words[0] in ROOMS:
        room = ROOMS[words[0]]
        return _guard(words[0], room.extra, lambda: _enter(room, words[1:]))
    options = make_parser().parse_args(words)
    return _guard(options.command, "client", lambda: _ask(options))


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="torsor", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, room in ROOMS.items():
        commands.add_parser(name, help=room.help, add_help=False)
    server, sampling = _server_options(), _sampling_options()
    generate = commands.add_parser(
        "generate",
        allow_abbrev=False,
        parents=[sampling, server],
        help="write text; it appears as it streams",
    )
    _add_prompt(generate)
    add_ablation(generate)
    generate.add_argument("--save-state", metavar="FILE", help="write the state at the end to FILE")
    generate.add_argument("--state", metavar="FILE", help="go on from the state in FILE")
    _add_ablate(commands, [sampling, server])
    _add_score(
        commands.add_parser(
            "score", allow_abbrev=False, parents=[server], help="bits per character of a text"
        )
    )
    commands.add_parser(
        "models", allow_abbrev=False, parents=[server], help="the models that the server holds"
    )
    manage = commands.add_parser(
        "manage",
        allow_abbrev=False,
        parents=[server],
        help="load, reload or unload a model; needs a key that may",
    )
    manage.add_argument("action", choices=("load", "reload", "unload"))
    manage.add_argument("what", metavar="FOLDER|MODEL", help="a folder on the server's machine")
    structure = commands.add_parser(
        "structure", allow_abbrev=False, parents=[server], help="what can be ablated"
    )
    _add_model(structure)
    told = "also draw the spectra of square targets into this SVG file"
    structure.add_argument("--plot", metavar="FILE", help=told)
    add_sweep(commands, server)
    told = "left out: the first model of a task that the server holds"
    add_trials(commands, server).add_argument("--model", metavar="ID", help=told)
    compare = add_compare(commands, server)
    _add_prompt(compare)
    _add_model(compare)
    _add_unknown(compare)
    return parser


def _server_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group("server")
    group.add_argument(
        "--url",
        help="where the server is (default: $TORSOR_URL or http://127.0.0.1:3000; "
        "with --grpc HOST:PORT or https://HOST:PORT, $TORSOR_GRPC_URL or 127.0.0.1:3001)",
    )
    group.add_argument("--ca", metavar="FILE", help="certificates to trust, PEM")
    group.add_argument("--grpc", action="store_true", help="ask over gRPC")
    group.add_argument("--json", action="store_true", help="print the answer as one JSON text")
    return parser


def _sampling_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    add = parser.add_argument_group("sampling").add_argument
    add("--max-tokens", type=int, metavar="N", help="characters to write (200)")
    add("--seed", type=int, metavar="N", help="the same seed gives the same text")
    add("--temperature", type=float, metavar="T", help="0: always the most probable (1)")
    add("--top-k", type=int, metavar="K", help="keep the k most probable (all)")
    add("--top-p", type=float, metavar="P", help="keep the smallest set of this probability (1)")
    add("--stop", action="append", metavar="S", help="a string that ends the text; repeatable")
    _add_model(parser)
    _add_unknown(parser)
    return parser


def _add_prompt(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prompt", nargs="?", default="", help="left out: from the start; -: read from stdin"
    )


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="ID", help="left out: the first that the server holds")


def _add_unknown(parser: argparse.ArgumentParser) -> None:
    choices = ("error", "skip", "replace")
    parser.add_argument(
        "--unknown", choices=choices, help="characters outside the vocabulary (error)"
    )


def _add_ablate(commands: Any, parents: list[argparse.ArgumentParser]) -> None:
    ablate = commands.add_parser(
        "ablate",
        allow_abbrev=False,
        parents=parents,
        help="the same prompt with and without an ablation",
        description="Write the same prompt's text with and without an ablation, under the same "
        "random numbers; with --text, score a text both ways.",
    )
    _add_prompt(ablate)
    ablate.add_argument(
        "--text", metavar="FILE", help="score this text both ways instead of writing; -: stdin"
    )
    add_ablation(ablate, required=True)


def _add_score(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a UTF-8 text; -: stdin")
    parser.add_argument("--limit", type=_positive, metavar="N", help="only its first N characters")
    add_ablation(parser)
    _add_model(parser)
    _add_unknown(parser)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"found {value}, expected 1 or more")
    return value


def _enter(room: _Room, words: list[str]) -> int:
    code: int = import_module(room.module).main(words)
    return code


def _ask(options: argparse.Namespace) -> int:
    from clients.command_line import commands  # loads the client extra, which --help must not need

    try:
        commands.run(options)
    except BrokenPipeError:
        raise
    except (TorsorError, ValueError, OSError) as error:
        print(f"torsor {options.command}: {in_flags(str(error), options)}", file=sys.stderr)
        return 1
    return 0


def in_flags(message: str, options: argparse.Namespace) -> str:
    """An error in the command line's words: its flags in place of the fields of requests.

    A field stands at the beginning, where one that was given is at fault, and in a remedy such as
    "set unknown to skip".
    """
    given = {name for name, value in vars(options).items() if value is not None} - POSITIONAL
    field, rest = re.match(r"(\w*)(.*)", message, re.DOTALL).groups()  # type: ignore[union-attr]
    if field in given and rest[:1] in (":", "[", "."):
        message = _flag(field) + rest
    known = set(vars(options)) - POSITIONAL
    return re.sub(
        r"\bset (\w+) to\b",
        lambda found: f"set {_flag(found[1])} to" if found[1] in known else found[0],
        message,
    )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _guard(name: str, extra: str, run: Callable[[], int]) -> int:
    try:
        code = run()
        sys.stdout.flush()
        return code
    except ModuleNotFoundError as error:
        return _name_extra(name, extra, error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has seen enough. What is still buffered must not fail again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _name_extra(name: str, extra: str, error: ModuleNotFoundError) -> int:
    package = (error.name or "").partition(".")[0]
    if package in OURS and (other := _hiding(package)):
        told = f"{other} hides the package {package} of torsor"
        print(f"torsor {name}: {told}; rename it, or run in another folder", file=sys.stderr)
        return 1
    if package in OURS or not package:
        raise error
    print(
        f"torsor {name} needs the {extra} extra ({package} is not installed): "
        f"pip install 'torsor[{extra}]' (from a checkout: pip install -e '.[{extra}]')",
        file=sys.stderr,
    )
    return 1


def _hiding(package: str) -> str | None:
    """The file or folder of another project that is imported in place of a package of ours."""
    spec, root = find_spec(package), Path(__file__).parent.parent.parent
    if spec is None:
        return None
    places = [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.origin else ())]
    others = [place for place in places if not Path(place).is_relative_to(root)]
    return others[0] if others else None


if __name__ == "__main__":
    sys.exit(main())
