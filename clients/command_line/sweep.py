"""`torsor sweep`: start the sweeps of a grid file, watch them, and write what comes of them.

The server runs them, so stopping this command, or losing the connection, ends nothing: the folder
remembers their ids, and the same command goes on watching. A sweep that has ended is not run again.
"""

import json
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clients.command_line.grid_file import Planned, in_file, read_sweep_file
from clients.command_line.progress import Progress
from clients.command_line.sweep_folder import SweepFolder, chart_of, summary_page
from clients.command_line.tables import NOTHING, align, number
from clients.errors import ConnectionFailed, ServerError, StreamBroken
from clients.files import make_folder, write_whole
from clients.plots.png import painter
from clients.sweep_results import Sweep, SweepPoint, SweepPoints
from serve.folder_lock import hold_folder

if TYPE_CHECKING:
    from clients.grpc_client import GrpcClient
    from clients.http_client import HttpClient

    Client = HttpClient | GrpcClient

LOCK = ".torsor-sweep.lock"
PATIENCE_S = 60.0  # that a server may be away while it starts again
RETRY_S = 1.0

Result = tuple[str, Sweep, SweepPoints]


def sweep(client: "Client", args: Namespace) -> None:
    """Run the command; `ValueError` if a sweep has not been done."""
    plans = () if args.cancel else read_sweep_file(args.grid)
    draw = painter() if args.png else None
    out = Path(args.out)
    make_folder(out, "--out")
    if args.cancel:  # also while another command watches
        return _cancel(client, SweepFolder(out), args)
    with hold_folder(out, out / LOCK, "wait until it has ended, or choose another --out"):
        _run(client, SweepFolder(out), plans, args, draw)


def _run(
    client: "Client", folder: SweepFolder, plans: Sequence[Planned], args: Namespace, draw: Any
) -> None:
    for plan in plans:
        _compare_with_memory(folder, plan, args.again)
        if plan.note:
            print(f"torsor sweep: {plan.note}", file=sys.stderr)
    try:
        results = [_finish(client, folder, plans, plan) for plan in plans]
    except KeyboardInterrupt:
        print(f"\nThe sweeps go on without us. {_way_back(args)}", file=sys.stderr)
        raise
    except (ConnectionFailed, StreamBroken):
        print(f"torsor sweep: {_way_back(args)}", file=sys.stderr)
        raise
    if draw is not None:
        for result in results:
            write_whole(Path(args.out) / f"{result[0]}.png", draw(*chart_of(*result)))
    if args.json:
        pages = [summary_page(*result) for result in results]
        print(json.dumps(pages, ensure_ascii=False))
    else:
        print("\n\n".join(summary_table(*result) for result in results))
    _require_done(results)


def summary_table(name: str, sweep: Sweep, points: Sequence[SweepPoint]) -> str:
    """One line a point."""
    score = sweep.headline
    head = ("POINT", "MASS", score.upper(), f"Δ {score}", "PER MASS", "CONTROLS")
    rows = [head, *(_row(point, score) for point in points)]
    failed = f", {sweep.num_failed} failed" if sweep.num_failed else ""
    title = f"{name}: {sweep.model}, {sweep.query}, {len(points)} of {sweep.num_points} points"
    base = (sweep.baseline or {}).get(score)
    shown = "" if base is None else f"; the plain model: {score} {number(base, '.4f')}"
    return f"{title}{failed}{shown}\n\n{align(rows)}"


def _row(point: SweepPoint, score: str) -> tuple[str, ...]:
    if point.error is not None:
        return point.name, *[NOTHING] * 4, f"failed: {point.error['message']}"
    spread = point.controls_deviation
    controls = number(point.controls_mean, "+.4f")
    controls += "" if spread is None else f" ± {number(spread, '.4f')}"
    return (
        point.name,
        number(point.mass, ".4f"),
        number(point.scores.get(score), ".4f"),
        number(point.delta, "+.4f"),
        number(point.per_mass, "+.4f"),
        controls,
    )


def _compare_with_memory(folder: SweepFolder, plan: Planned, again: bool) -> None:
    known = folder.known(plan.name)
    if again:
        folder.forget(plan.name)
    elif known is not None and known[1] != plan.digest:
        raise ValueError(
            f"{folder.path}: found a sweep {plan.name!r} of another question there, expected the "
            "one of this grid file; start it anew with --again, or choose another --out"
        )


def _finish(
    client: "Client", folder: SweepFolder, plans: Sequence[Planned], plan: Planned
) -> Result:
    """The sweep of a plan, ended and written; whatever can be started is started first."""
    if (ended := folder.ended(plan.name)) is not None:
        return plan.name, *ended
    _start_all(client, folder, plans)
    while (known := folder.known(plan.name)) is None:  # the server takes no more yet
        time.sleep(RETRY_S)
        _start_all(client, folder, plans)
    sweep = _known(client, plan.name, known[0])
    bar, points = Progress(plan.name, sweep.num_points), list[SweepPoint]()
    bar.show(0)
    num_failed = 0
    try:
        for item in _follow(client, sweep.id):
            if isinstance(item, Sweep):
                sweep = item
                break
            points.append(item)
            num_failed += item.error is not None
            bar.show(len(points), f", {num_failed} failed" if num_failed else "")
    finally:
        bar.close()
    folder.finish(plan.name, sweep, SweepPoints(points))
    return plan.name, sweep, SweepPoints(points)


def _known(client: "Client", name: str, id: str) -> Sweep:
    try:
        return client.sweeps.get(id)
    except ServerError as error:
        if error.code != "not_found":
            raise
        raise ValueError(
            f"{name}: this server knows no sweep {id}, expected the one that was started; name "
            "the server that runs it with --url, or start it anew with --again"
        ) from None


def _start_all(client: "Client", folder: SweepFolder, plans: Sequence[Planned]) -> None:
    for plan in plans:
        if folder.known(plan.name) is not None:
            continue
        try:
            folder.remember(plan.name, client.sweeps.start(**plan.options), plan.digest)
        except ServerError as error:
            if error.code == "queue_full":
                return  # those that are there come first
            raise ValueError(f"{plan.name}: {in_file(str(error))}") from None


def _follow(client: "Client", id: str) -> Iterator[SweepPoint | Sweep]:
    """Watch a sweep, also over a server that stops and starts again meanwhile."""
    start, lost_at = 0, 0.0
    while True:
        try:
            with closing(client.sweeps.watch(id, start)) as items:
                for item in items:
                    lost_at = 0.0
                    start += isinstance(item, SweepPoint)
                    yield item
            return
        except (ConnectionFailed, StreamBroken, ServerError) as error:
            is_away = not isinstance(error, ServerError) or error.code == "unavailable"
            lost_at = lost_at or time.monotonic()
            if not is_away or time.monotonic() - lost_at > PATIENCE_S:
                raise
        time.sleep(RETRY_S)


def _cancel(client: "Client", folder: SweepFolder, args: Namespace) -> None:
    cancelled = list[dict[str, Any]]()
    for name in folder.names():
        known = folder.known(name)
        assert known is not None
        found = _known(client, name, known[0])
        if not found.is_over:
            found = client.sweeps.cancel(found.id)
        cancelled.append({"name": name, "id": found.id, "state": found.state})
    if args.json:
        print(json.dumps(cancelled, ensure_ascii=False))
    elif not cancelled:
        print(f"{folder.path} remembers no sweep that goes on")
    for entry in [] if args.json else cancelled:
        print(f"{entry['name']}: {entry['state']}")


def _way_back(args: Namespace) -> str:
    command = f"torsor sweep {args.grid} --out {args.out}"
    return f"Go on watching: {command}; end them: {command} --cancel"


def _require_done(results: Sequence[Result]) -> None:
    for name, sweep, _ in results:
        if sweep.state == "failed":
            why = (sweep.error or {}).get("message", "no reason is known")
            raise ValueError(f"{name}: the sweep failed: {why}; start it anew with --again")
        if sweep.state == "cancelled":
            raise ValueError(f"{name}: the sweep was cancelled; start it anew with --again")
