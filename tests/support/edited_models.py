"""Models that were changed on disk, and texts that they write in this process."""

import asyncio
import dataclasses
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from serve.manifest.page import WEIGHTS_FILE
from serve.manifest.read import describe_file, read_manifest, write_manifest
from serve.models import Models
from serve.queries.generate import open_generation
from serve.runtime.bundle import load_bundles
from serve.settings import SHIPPED
from serve.wire.requests import GenerateRequest, parse_request

OSM, TANH = "osm-rnn-shakespeare", "tanh-rnn-shakespeare"


def run(work: Callable[[Models], Awaitable[None]], *names: str) -> None:
    """A host in an event loop, with its engine's thread."""

    async def inside() -> None:
        host = Models(load_bundles([SHIPPED / name for name in names], "cpu", 1))
        host.start()
        try:
            await asyncio.wait_for(work(host), 60)
        finally:
            host.close()

    asyncio.run(inside())


def asked(fields: dict[str, Any]) -> GenerateRequest:
    return parse_request(GenerateRequest, fields)


async def write(host: Models, **fields: Any) -> str:
    writing = await open_generation(host, asked({"seed": 1, "max_tokens": 60} | fields))
    return "".join([piece.text async for piece in writing.chunks()])


def edited(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of a bundle with other weights, whole and consistent."""
    shutil.copytree(SHIPPED / OSM, folder)
    weights = dict(load_file(folder / WEIGHTS_FILE))
    change(weights)
    (folder / WEIGHTS_FILE).write_bytes(layout(SHIPPED / OSM / WEIGHTS_FILE, weights))
    manifest = read_manifest(SHIPPED / OSM)
    files = manifest.files | {WEIGHTS_FILE: describe_file(folder / WEIGHTS_FILE)}
    write_manifest(folder, dataclasses.replace(manifest, files=files))
    return folder


def layout(file: Path, weights: dict[str, Any]) -> bytes:
    """Other values in the very places of a safetensors file, where the graph looks for them."""
    content = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    for name, value in weights.items():
        first, last = (start + offset for offset in header[name]["data_offsets"])
        content[first:last] = value.tobytes()
    return bytes(content)
