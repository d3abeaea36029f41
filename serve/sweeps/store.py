"""Sweeps on disk: an SQLite file in the data folder, so that no finished point is ever lost.

    sweeps   id, state, what was asked, of which weights, how far it is, what became of it
    points   of a sweep, by position: the ablation, and once it is done the point as JSON

Every method is one short transaction; call them from one thread, off the event loop. While a sweep
goes on its points are shown in order: what comes after one that isn't done is not shown yet.
"""

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from serve.sweeps.folder import lock_folder
from serve.wire.codec import Json, JsonObject
from serve.wire.errors import RequestError
from serve.wire.limits import MAX_SWEEPS
from serve.wire.query_responses import Sweep

FILE = "sweeps.sqlite"
VERSION = 1  # of the tables
MAX_ENDED = 1000  # that are kept; the oldest go
MAX_PAGE_CHARACTERS = 4 << 20  # of points that are read at once
BUSY_S = 10.0

SCHEMA = f"""
CREATE TABLE sweeps (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL,
    model TEXT NOT NULL,
    query TEXT NOT NULL,
    identity TEXT NOT NULL,
    owner TEXT,
    request TEXT NOT NULL,
    num_points INTEGER NOT NULL,
    num_done INTEGER NOT NULL DEFAULT 0,
    num_failed INTEGER NOT NULL DEFAULT 0,
    created REAL NOT NULL,
    started REAL,
    ended REAL,
    error TEXT,
    baseline TEXT
);
CREATE TABLE points (
    sweep INTEGER NOT NULL REFERENCES sweeps (number) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    ablation TEXT NOT NULL,
    point TEXT,
    PRIMARY KEY (sweep, position)
) WITHOUT ROWID;
PRAGMA user_version = {VERSION};
"""
ACTIVE = "state IN ('queued', 'running')"
SHOWN = (
    *("id", "state", "model", "query", "num_points", "num_done", "num_failed"),
    *("created", "started", "ended", "error", "baseline"),
)


class StoreError(ValueError):
    """A file that isn't a store of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSweep:
    """A sweep as it is taken in."""

    id: str
    model: str
    query: str
    identity: str  # of graph and weights
    owner: str | None  # name of the API key
    request: JsonObject
    ablations: Sequence[JsonObject]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A sweep to go on with, and its points that aren't done."""

    id: str
    model: str
    identity: str
    request: JsonObject
    todo: list[tuple[int, JsonObject]]  # position and ablation of the points to run


class SweepStore:
    """The sweeps of one data folder, which it holds alone.

    Raises `FolderBusy`, `OSError` where the folder can't be written, `StoreError` for a file of
    another version.
    """

    def __init__(self, folder: Path) -> None:
        self._lock = lock_folder(folder)
        try:
            self._db = _open(folder / FILE)
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Let go of the folder."""
        self._db.close()
        os.close(self._lock)

    def add(self, new: NewSweep) -> None:
        """Take a sweep in, queued; `RequestError` if too many wait."""
        with self._transaction():
            (active,) = self._db.execute(f"SELECT count(*) FROM sweeps WHERE {ACTIVE}").fetchone()
            if active >= MAX_SWEEPS:
                raise RequestError(
                    "queue_full",
                    f"found {active} sweeps queued or running, expected fewer than {MAX_SWEEPS} "
                    "(max_sweeps); wait for one to end, or cancel one",
                )
            cursor = self._db.execute(
                "INSERT INTO sweeps (id, state, model, query, identity, owner, request, "
                "num_points, created) VALUES (?, 'queued', ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(new.id, new.model, new.query, new.identity, new.owner),
                    *(_dump(new.request), len(new.ablations), _now()),
                ),
            )
            rows = ((cursor.lastrowid, i, _dump(a)) for i, a in enumerate(new.ablations))
            self._db.executemany(
                "INSERT INTO points (sweep, position, ablation) VALUES (?, ?, ?)", rows
            )

    def next(self) -> Job | None:
        """The sweep to go on with: the one that was running, else the oldest that waits."""
        row = self._db.execute(
            "SELECT number, id, model, identity, request FROM sweeps "
            f"WHERE {ACTIVE} ORDER BY state = 'queued', number LIMIT 1"
        ).fetchone()
        if row is None:
            return None
        number, name, model, identity, request = row
        todo = self._db.execute(
            "SELECT position, ablation FROM points WHERE sweep = ? AND point IS NULL "
            "ORDER BY position",
            (number,),
        )
        pairs = [(position, json.loads(ablation)) for position, ablation in todo]
        asked = json.loads(request)
        return Job(id=name, model=model, identity=identity, request=asked, todo=pairs)

    def begin(self, name: str) -> bool:
        """A sweep runs; False if it has ended already."""
        with self._transaction():
            begun = self._db.execute(
                "UPDATE sweeps SET state = 'running', started = ifnull(started, ?) "
                f"WHERE id = ? AND {ACTIVE}",
                (_now(), name),
            ).rowcount
        return bool(begun)

    def compare_with(self, name: str, baseline: JsonObject) -> None:
        """Save the plain model's numbers, which all points of a sweep are compared with."""
        with self._transaction():
            self._db.execute("UPDATE sweeps SET baseline = ? WHERE id = ?", (_dump(baseline), name))

    def save(self, name: str, position: int, point: JsonObject) -> None:
        """A point of a running sweep is done; of one that has ended it is too late."""
        failed = point["error"] is not None
        with self._transaction():
            done = self._db.execute(
                "UPDATE points SET point = ? WHERE position = ? AND point IS NULL AND sweep = "
                "(SELECT number FROM sweeps WHERE id = ? AND state = 'running')",
                (_dump(point), position, name),
            ).rowcount
            if done:
                self._db.execute(
                    "UPDATE sweeps SET num_done = num_done + 1, num_failed = num_failed + ? "
                    "WHERE id = ?",
                    (failed, name),
                )

    def end(self, name: str, state: str, error: Json = None) -> bool:
        """A sweep is done, cancelled or failed; False if it had ended already."""
        with self._transaction():
            ended = self._db.execute(
                f"UPDATE sweeps SET state = ?, ended = ?, error = ? WHERE id = ? AND {ACTIVE}",
                (state, _now(), None if error is None else _dump(error), name),
            ).rowcount
            self._db.execute(
                f"DELETE FROM sweeps WHERE NOT {ACTIVE} AND number NOT IN (SELECT number FROM "
                f"sweeps WHERE NOT {ACTIVE} ORDER BY ended DESC, number DESC LIMIT ?)",
                (MAX_ENDED,),
            )
        return bool(ended)

    def remove(self, name: str) -> None:
        """Forget a sweep that has ended."""
        with self._transaction():
            self._db.execute(f"DELETE FROM sweeps WHERE id = ? AND NOT {ACTIVE}", (name,))

    def get(self, name: str) -> tuple[Sweep, str | None] | None:
        """A sweep, and whose it is; None if there is none."""
        row = self._db.execute(
            f"SELECT owner, {', '.join(SHOWN)} FROM sweeps WHERE id = ?", (name,)
        ).fetchone()
        return None if row is None else (_sweep(row[1:]), row[0])

    def every(self) -> list[tuple[Sweep, str | None]]:
        """The sweeps, the newest first."""
        rows = self._db.execute(
            f"SELECT owner, {', '.join(SHOWN)} FROM sweeps ORDER BY number DESC"
        )
        return [(_sweep(row[1:]), row[0]) for row in rows]

    def points(self, name: str, start: int, limit: int) -> list[tuple[int, str]]:
        """Position and JSON of points that may be shown, from a position on; at most `limit`."""
        rows = self._db.execute(
            f"""SELECT position, point FROM points JOIN sweeps ON sweep = number
            WHERE id = ? AND position >= ? AND point IS NOT NULL AND (NOT {ACTIVE} OR position <
                ifnull((SELECT min(position) FROM points WHERE sweep = number AND point IS NULL),
                    num_points))
            ORDER BY position LIMIT ?""",
            (name, start, limit),
        )
        found, num_characters = list[tuple[int, str]](), 0
        for position, point in rows:
            found.append((position, point))
            num_characters += len(point)
            if num_characters > MAX_PAGE_CHARACTERS:
                break
        return found

    def count(self) -> dict[str, int]:
        """The numbers of sweeps that are queued, and running."""
        found = self._db.execute(
            f"SELECT state, count(*) FROM sweeps WHERE {ACTIVE} GROUP BY state"
        )
        return {"queued": 0, "running": 0} | dict(found)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


def _open(path: Path) -> sqlite3.Connection:
    path.touch(mode=0o600)
    try:
        # The worker's thread is the only one; the one that opens and closes may be another
        db = sqlite3.connect(path, timeout=BUSY_S, check_same_thread=False)
        db.isolation_level = None  # transactions begin where we say so
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version == 0:
            db.executescript(f"BEGIN; {SCHEMA} COMMIT;")
        elif version != VERSION:
            db.close()
            raise StoreError(
                f"{path}: found version {version} of the tables, expected {VERSION}; use the "
                "torsor that wrote it, or name another folder with --data-folder"
            )
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            db.execute(f"PRAGMA {pragma}")
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path}: can't be used as a store of sweeps ({error})") from None
    return db


def _sweep(row: Sequence[Json]) -> Sweep:
    found = dict(zip(SHOWN, row, strict=True))
    for key in ("error", "baseline"):
        found[key] = None if found[key] is None else json.loads(found[key])
    return Sweep(**found)


def _dump(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _now() -> float:
    return round(time.time(), 3)
