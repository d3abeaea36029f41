"""One run of a model's graph `advance` for a client that keeps the state itself.

This is what the Open Inference Protocol asks for, over HTTP and gRPC alike. It has nothing to do
with the engine's streams: a run is over when it is answered.
"""

from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serve.kserve.inputs import step_inputs
from serve.kserve.tensors import DATATYPES
from serve.manifest.page import TensorSpec
from serve.models import Models
from serve.runtime.bundle import Bundle
from serve.wire.errors import RequestError, invalid, shutting_down
from serve.wire.open_inference import ModelMetadata, ServerMetadata, TensorMetadata
from serve.wire.preview import shown

Array = NDArray[Any]
Arrays = dict[str, Array]
MODEL_VERSION = "1"  # a served model has one version
PLATFORM = "onnx_onnxv1"
ANY_SIZE = -1


async def infer(
    models: Models, bundle: Bundle, decode: Callable[[], Arrays], wanted: Sequence[str]
) -> Arrays:
    """The `wanted` outputs of one run, all of them where none is named.

    `decode` gives the inputs that the client sent; it is called off the event loop. Raises
    `RequestError`.
    """
    if not models.engine.accepting:
        raise shutting_down()
    names = [spec.name for spec in bundle.manifest.graph.outputs]
    if unknown := [name for name in wanted if name not in names]:
        raise invalid(
            "outputs", f"found {shown(unknown[0], 80)}, expected some of {', '.join(names)}"
        )
    return await models.inference.run(_run, bundle, decode, list(wanted) or names)


def served(models: Models, model: str, version: str) -> Bundle:
    """The bundle of a model and version; `RequestError` if there is none."""
    if not model:
        raise invalid("model_name", f"missing, expected one of {', '.join(models.bundles)}")
    bundle = models.bundle(model)
    if version not in ("", MODEL_VERSION):
        found = f"found {shown(version, 80)}, expected {MODEL_VERSION!r} or none"
        raise RequestError("not_found", f"model_version: {found}", "model_version")
    return bundle


def server_metadata(extensions: Sequence[str]) -> ServerMetadata:
    """The server's name, version and extensions."""
    return ServerMetadata(name="torsor", version=_version(), extensions=tuple(extensions))


def model_metadata(bundle: Bundle) -> ModelMetadata:
    """The inputs and outputs of a model's graph."""
    graph = bundle.manifest.graph
    return ModelMetadata(
        name=bundle.name,
        versions=(MODEL_VERSION,),
        platform=PLATFORM,
        inputs=tuple(map(_tensor_metadata, graph.inputs)),
        outputs=tuple(map(_tensor_metadata, graph.outputs)),
    )


def _tensor_metadata(spec: TensorSpec) -> TensorMetadata:
    shape = tuple(ANY_SIZE if isinstance(size, str) else size for size in spec.shape)
    return TensorMetadata(name=spec.name, datatype=DATATYPES[spec.dtype], shape=shape)


def _run(bundle: Bundle, decode: Callable[[], Arrays], wanted: list[str]) -> Arrays:
    inputs = step_inputs(bundle.manifest, bundle.initial, decode())
    outputs = bundle.plain.session.run(inputs)
    for name, value in outputs.items():
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise invalid(
                name, "is not finite after this run; the given state or inputs are out of range"
            )
    return {name: outputs[name] for name in wanted}


def _version() -> str:
    try:
        return metadata.version("torsor")
    except metadata.PackageNotFoundError:  # served from a Bento, which installs no torsor
        return ""
