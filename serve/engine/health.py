"""Readiness by model: five non-finite streams in a row turn it off."""

from collections import Counter

from serve.engine.stream import Stream
from serve.runtime.bundle import Bundle

MAX_SICK = 5  # streams in a row; one may be a bad request's doing, five are the model's


class Health:
    """Counts streams of plain models that ended because a value wasn't finite, a model each.

    A sick model stays so until a stream of it ends well, or it is loaded again or unloaded.
    """

    def __init__(self) -> None:
        self._num_sick = Counter[Bundle]()

    def problem(self, bundle: Bundle) -> str | None:
        """Why a model is not ready; None where it is."""
        if (count := self._num_sick[bundle]) < MAX_SICK:
            return None
        return f"the last {count} texts ended because a value was not finite; load it again"

    def note(self, stream: Stream) -> None:
        """A stream has ended. What an ablation drives out of range is its author's doing."""
        if stream.is_ablated:
            return
        if stream.error is not None and stream.error.code == "model_error":
            self._num_sick[stream.bundle] += 1
        elif stream.finish_reason in ("stop", "length"):
            self.forget(stream.bundle)

    def forget(self, bundle: Bundle) -> None:
        """A model ran well, was replaced or taken away: judge anew."""
        self._num_sick.pop(bundle, None)
