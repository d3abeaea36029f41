"""The verbs `compare` and `trials` over gRPC."""

import base64
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar, Unpack

from google.protobuf.message import Message

from clients import options
from clients.errors import UnexpectedAnswer
from clients.grpc.proto_json import fill, page_of
from clients.grpc.trials_file import trials_file
from clients.http.events import MALFORMED
from clients.options import Ablation, CompareOptions, TrialsOptions, Uploaded
from clients.query_results import CompareResult, TrialsResult, read_compare, read_trials
from clients.results import Json, ModelInfo
from serve.wire import torsor_pb2 as pb

Answer = TypeVar("Answer")


class GrpcQueries(ABC):
    """What `GrpcClient` asks about ablations of tasks and of distributions."""

    target: str
    _stub: Any

    def compare(
        self, prompt: str, ablations: list[Ablation], **options_: Unpack[CompareOptions]
    ) -> CompareResult:
        """What comes next after a prompt, without and with each of the ablations."""
        body = options.compare_body(prompt, ablations, options_)
        return self._ask_page(self._stub.Compare, body, pb.CompareRequest(), read_compare)

    def trials(
        self,
        ablation: Ablation | None = None,
        trials: Uploaded | None = None,
        **options_: Unpack[TrialsOptions],
    ) -> TrialsResult:
        """How well a model of a task does on trials, left out: the bundle's own."""
        body = options.trials_body(ablation, trials, options_)
        if isinstance(trials, dict):  # this wire takes a file only
            file = trials_file(body.pop("trials"), self._task_of(options_.get("model")))
            body["trials"] = base64.b64encode(file).decode()
        elif trials is not None:
            body["trials"] = body.pop("safetensors")  # JSON's form of bytes, too
        return self._ask_page(self._stub.Trials, body, pb.TrialsRequest(), read_trials)

    @abstractmethod
    def models(self) -> tuple[ModelInfo, ...]:
        """The models that the server holds."""

    @abstractmethod
    def _ask(self, method: Any, request: Message) -> Any:
        """The reply to one question."""

    def _task_of(self, model: str | None) -> dict[str, Json]:
        """The task of a model, left out: of the first that has one; empty where there is none."""
        tasks = [held.task for held in self.models() if held.task and model in (None, held.id)]
        return tasks[0] if tasks else {}

    def _ask_page(
        self, method: Any, body: Json, request: Message, read: Callable[[Json], Answer]
    ) -> Answer:
        reply = self._ask(method, fill(request, body))
        try:
            return read(page_of(reply.page))
        except MALFORMED as error:
            found = f"a reply that can't be read ({error!r})"
            raise UnexpectedAnswer(self.target, found) from error
