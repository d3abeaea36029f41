"""The inputs of one run of `advance` that a client brings: checked, and completed by defaults.

Letters: B rows, K steps, V vocabulary; `serve.manifest.page` explains the inputs. What may be left
out:

    state tensors: the initial state     position: 0          num_steps: K     forced: -1, sample
    temperature: 1      top_k: 0, all    top_p: 1, all        bias: 0
    uniform: where no character is drawn
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serve.engine.sampling import UNIFORM_BITS
from serve.manifest.page import Manifest, TensorSpec
from serve.wire.errors import invalid
from serve.wire.limits import MAX_ROWS

Array = NDArray[Any]
Arrays = Mapping[str, Array]
RANGES: dict[str, tuple[float, float, str]] = {
    "position": (0, 2**62, "0 to 2^62"),
    "temperature": (0, 100, "0 to 100"),
    "top_k": (0, 2**31, "0 to 2^31"),
    "top_p": (np.nextafter(np.float32(0), np.float32(1)), 1, "above 0, at most 1"),
    "uniform": (0, np.nextafter(np.float32(1), np.float32(0)), "0 to below 1"),
}


def step_inputs(manifest: Manifest, initial: Arrays, given: Arrays) -> dict[str, Array]:
    """All inputs of one run; `RequestError` names the one that isn't as expected.

    `initial` is the state of one fresh stream.
    """
    specs = {spec.name: spec for spec in manifest.graph.inputs}
    if unknown := [name for name in given if name not in specs]:
        raise invalid(unknown[0], f"unknown input, expected some of {', '.join(specs)}")
    sizes = _sizes(manifest, [specs[name] for name in given], given)
    inputs = _defaults(manifest, initial, sizes) | dict(given)
    _check_values(manifest, inputs)
    if manifest.task is None:
        _check_characters("forced", inputs["forced"], -1, len(manifest.vocabulary))
        _check_sampling(inputs, drawn="uniform" in given)
    elif manifest.task.inputs == "characters":
        _check_characters("inputs", inputs["inputs"], 0, manifest.task.input_size)
    return inputs


def _sizes(manifest: Manifest, specs: Sequence[TensorSpec], given: Arrays) -> dict[str, int]:
    """B and K, the same in all inputs."""
    sizes: dict[str, int] = {}
    for spec in specs:
        found = given[spec.name]
        if str(found.dtype) != spec.dtype:
            raise invalid(spec.name, f"found {found.dtype}, expected {spec.dtype}")
        expected = tuple(sizes.get(n, n) if isinstance(n, str) else n for n in spec.shape)
        fits = len(found.shape) == len(expected) and all(
            isinstance(want, str) or size == want
            for size, want in zip(found.shape, expected, strict=True)
        )
        if not fits:
            shape = f"({', '.join(map(str, expected))})"
            raise invalid(spec.name, f"found shape {found.shape}, expected {shape}")
        sizes |= {
            n: size for n, size in zip(spec.shape, found.shape, strict=True) if isinstance(n, str)
        }
    steps = manifest.graph.max_steps
    if "K" not in sizes:
        names = "forced or uniform" if manifest.task is None else "inputs"
        raise invalid(names.split()[0], f"missing, expected {names}, which say how many steps")
    for letter, most in (("K", steps), ("B", MAX_ROWS)):
        if not 1 <= sizes[letter] <= most:
            name = next(spec.name for spec in specs if letter in spec.shape)
            raise invalid(name, f"found {letter} = {sizes[letter]}, expected 1 to {most}")
    return sizes


def _defaults(manifest: Manifest, initial: Arrays, sizes: dict[str, int]) -> dict[str, Array]:
    K, B = sizes["K"], sizes["B"]
    inputs = {f"state.{name}": np.repeat(value[None], B, axis=0) for name, value in initial.items()}
    inputs |= {"position": np.zeros(B, np.int64), "num_steps": np.full(B, K, np.int64)}
    if manifest.task is not None:
        return inputs
    return inputs | {
        "forced": np.full((K, B), -1, np.int64),
        "uniform": np.zeros((K, B), np.float32),
        "temperature": np.ones(B, np.float32),
        "top_k": np.zeros(B, np.int64),
        "top_p": np.ones(B, np.float32),
        "bias": np.zeros((B, len(manifest.vocabulary)), np.float32),
    }


def _check_values(manifest: Manifest, inputs: dict[str, Array]) -> None:
    for name, value in inputs.items():
        if name != "bias" and value.dtype.kind == "f" and not np.isfinite(value).all():
            raise invalid(name, "found a value that is not finite, expected finite numbers")
        if name in RANGES:
            least, most, words = RANGES[name]
            if (wrong := value[(value < least) | (value > most)]).size:
                raise invalid(name, f"found {wrong[0]}, expected {words}")
    every = manifest.graph.correct_every
    K = len(inputs["forced"] if manifest.task is None else inputs["inputs"])
    most_steps = np.full_like(inputs["num_steps"], K)
    if every:
        most_steps = np.minimum(most_steps, every - inputs["position"] % every)
    outside = (inputs["num_steps"] < 0) | (inputs["num_steps"] > most_steps)
    if outside.any():
        row = int(outside.argmax())
        found = f"found {inputs['num_steps'][row]} in row {row} at position"
        where = f"{inputs['position'][row]}, expected 0 to {most_steps[row]}"
        rule = f"; no run may cross a multiple of {every}, say fewer num_steps" if every else ""
        raise invalid("num_steps", f"{found} {where}{rule}")


def _check_characters(name: str, found: Array, least: int, size: int) -> None:
    if (wrong := found[(found < least) | (found >= size)]).size:
        raise invalid(name, f"found {wrong[0]}, expected {least} to {size - 1}")


def _check_sampling(inputs: dict[str, Array], drawn: bool) -> None:
    scaled = inputs["uniform"].astype(np.float64) * 2.0**UNIFORM_BITS
    if (scaled != np.floor(scaled)).any():
        remedy = f"floor(u * 2^{UNIFORM_BITS}) / 2^{UNIFORM_BITS}"
        raise invalid("uniform", f"expected multiples of 2^-{UNIFORM_BITS}; send {remedy}")
    bias = inputs["bias"]
    if not (np.isfinite(bias) | np.isneginf(bias)).all():
        raise invalid("bias", "found NaN or infinity, expected finite numbers or -infinity")
    if np.isneginf(bias).all(axis=-1).any():
        raise invalid("bias", "forbids every character of a row, expected one that may be written")
    steps = np.arange(len(inputs["forced"]))[:, None]
    sampled = (inputs["forced"] < 0) & (steps < inputs["num_steps"]) & (inputs["temperature"] > 0)
    if sampled.any() and not drawn:
        raise invalid(
            "uniform", "missing, expected a random number for every character that is not forced"
        )
