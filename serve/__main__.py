"""Serve models: `torsor serve [BUNDLE ...] --port 3000 --grpc-port 3001`.

    torsor serve bundles/osm
    torsor serve                     the models that ship

Checks bundles, device and ports first, so what can't be served is said in one line; then hands over
to BentoML. HTTP at --port, gRPC at --grpc-port. Ctrl-C or SIGTERM stop it: running streams may
finish within the grace time.
"""

import argparse
import os
import socket
import sys
from dataclasses import fields
from pathlib import Path

from serve.packages import require_packages

require_packages()

from serve.bento.launch import become_server, bento_arguments, bento_environment
from serve.manifest.values import BundleError
from serve.native.library import status
from serve.native.threads import run_threads
from serve.runtime.bundle import Bundle, load_bundles
from serve.runtime.device import Device, DeviceError
from serve.settings import (
    DEVICES,
    LOG_FORMATS,
    UNKNOWN,
    Settings,
    environment_of,
    require_known,
    variable,
)
from serve.startup import check_settings

PATHS = (
    "keys",
    "tls_cert",
    "tls_key",
    "state_key",
    "data_folder",
    "bundles_root",
)  # settings that are files


def main(arguments: list[str] | None = None) -> int:
    """Check, then become the server; returns an exit code only if something is wrong."""
    options = make_parser().parse_args(arguments)
    try:
        device, environment = check(options)
    except (BundleError, DeviceError, ValueError, OSError) as error:
        print(f"torsor serve: {error}", file=sys.stderr)
        return 1
    os.environ.update(environment)
    become_server(device, bento_arguments(options))


def check(options: argparse.Namespace) -> tuple[Device, dict[str, str]]:
    """Announce what will be served, or say what is wrong; device and environment of the server.

    Raises `BundleError`, `DeviceError`, `ValueError` or `OSError`.
    """
    require_known(os.environ)
    settings = settings_of(options)
    check_settings(settings)
    bundles = load_bundles(settings.folders, settings.device, run_threads(settings.threads))
    require_free_port(options.host, options.port, "--port")
    if settings.grpc_port:
        require_free_port(settings.grpc_host, settings.grpc_port, "--grpc-port")
    announce(bundles, options)
    device = next(iter(bundles.values())).device
    return device, environment_of(settings) | bento_environment(options.port)


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    defaults = Settings()
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="torsor serve",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    add = parser.add_argument
    add("bundles", nargs="*", type=Path, help="bundle folders; default: the models that ship")
    add("--host", default="127.0.0.1", help="address of HTTP and gRPC (default: 127.0.0.1)")
    add("--port", type=int, default=3000, help="HTTP port (default: 3000)")
    add("--grpc-port", type=int, default=3001, help="gRPC port, 0: no gRPC (default: 3001)")
    add("--device", choices=DEVICES, default=defaults.device, help="(default: auto)")
    add("--threads", type=int, default=0, help="threads of one run on the CPU (default: at most 4)")
    add(
        "--max-streams",
        type=int,
        default=defaults.max_streams,
        help="running at once a model (default: 256)",
    )
    add(
        "--max-waiting",
        type=int,
        default=defaults.max_waiting,
        help="queued, then 429 (default: 1024)",
    )
    add(
        "--unknown",
        choices=UNKNOWN,
        default=defaults.unknown,
        help="characters that a model lacks, where a request doesn't say (default: error)",
    )
    add("--grace-s", type=float, default=defaults.grace_s, help="for running streams (default: 20)")
    _add_kept(parser, defaults)
    _add_data(parser)
    _add_timeouts(parser, defaults)
    _add_access(parser, defaults)
    return parser


def _add_kept(parser: argparse.ArgumentParser, defaults: Settings) -> None:
    add = parser.add_argument_group("what is kept").add_argument
    add(
        "--state-cache-mb",
        type=int,
        default=defaults.state_cache_mb,
        help="of states that known beginnings of prompts lead to, 0: none (default: 64)",
    )
    add(
        "--ablation-cache-mb",
        type=int,
        default=defaults.ablation_cache_mb,
        help="of ablated models that are kept ready, 0: none (default: 256)",
    )
    add(
        "--state-key",
        type=Path,
        help="file with the secret that saved states are signed with;\n"
        "servers with the same one take each other's (default: one made in the cache)",
    )


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument_group("management").add_argument(
        "--bundles-root",
        type=Path,
        metavar="DIR",
        help="what folders that torsor manage load names are relative to, and stay below\n"
        "(default: the working folder)",
    )
    parser.add_argument_group("sweeps").add_argument(
        "--data-folder",
        type=Path,
        default=os.environ.get(variable("data_folder")) or None,
        help="where sweeps and their points are kept (default: torsor in the user's data home)",
    )


def _add_timeouts(parser: argparse.ArgumentParser, defaults: Settings) -> None:
    add = parser.add_argument_group("limits of a stream, in seconds").add_argument
    for name, help in (
        ("queue_timeout_s", "from arrival to a slot"),
        ("first_timeout_s", "from the slot to the first written character"),
        ("total_timeout_s", "from arrival to the last character"),
    ):
        default = getattr(defaults, name)
        option = f"--{name.replace('_', '-')}"
        add(option, type=float, default=default, help=f"{help} (default: {default:g})")


def _add_access(parser: argparse.ArgumentParser, defaults: Settings) -> None:
    add = parser.add_argument_group("access and log").add_argument
    add("--keys", type=Path, help="file of API keys, see torsor key (default: everybody may ask)")
    add("--tls-cert", type=Path, help="certificate chain, PEM; for HTTP and gRPC")
    add("--tls-key", type=Path, help="its private key, PEM")
    add(
        "--cors",
        nargs="+",
        metavar="ORIGIN",
        default=[],
        help="origins of web pages that may call, such as https://lab.example (default: none)",
    )
    add("--log-format", choices=LOG_FORMATS, default=defaults.log_format, help="(default: text)")


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings that the options say; `ValueError` names one that is out of range."""
    if not 1 <= options.port <= 65535:
        raise ValueError(f"--port: found {options.port}, expected 1 to 65535")
    if options.port == options.grpc_port:
        raise ValueError(f"--grpc-port: found {options.port} for both, expected two ports")
    if odd := [path for path in options.bundles if os.pathsep in str(path.resolve())]:
        raise ValueError(
            f"bundles: found {odd[0]}, expected a path without {os.pathsep!r}; rename it"
        )
    given = {f.name: getattr(options, f.name) for f in fields(Settings) if f.name in vars(options)}
    given["cors"] = " ".join(given["cors"])
    paths = {name: given[name] for name in PATHS}
    given |= {name: str(path.resolve()) if path else "" for name, path in paths.items()}
    folders = os.pathsep.join(str(path.resolve()) for path in options.bundles)
    return Settings(**given | {"bundles": folders, "grpc_host": options.host})


def require_free_port(host: str, port: int, option: str) -> None:
    """`OSError` with a remedy if the port is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise OSError(
                f"{option}: {host}:{port} can't be used ({error.strerror}); choose another one"
            ) from None


def announce(bundles: dict[str, Bundle], options: argparse.Namespace) -> None:
    """Say what is served, where, and on what."""
    for name, bundle in bundles.items():
        parameters, session = bundle.manifest.num_parameters, bundle.plain.session
        runs_on = f"{session.provider}, {session.kernels}"
        print(f"{name}: {bundle.manifest.family}, {parameters:,} parameters, {runs_on}")
    print(status())
    grpc = f", gRPC {options.host}:{options.grpc_port}" if options.grpc_port else ""
    scheme = "https" if options.tls_cert else "http"
    print(f"{scheme}://{options.host}:{options.port}{grpc}; Ctrl-C stops", flush=True)


if __name__ == "__main__":
    sys.exit(main())
