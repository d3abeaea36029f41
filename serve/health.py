"""Whether plain models stay within the numbers, judged by the streams that end."""

from serve.stream import Stream

MAX_SICK = 5  # streams in a row; one may be a bad request's doing, five are the model's


class Health:
    """Counts streams of plain models that ended because a value wasn't finite."""

    def __init__(self) -> None:
        self._num_sick = 0

    @property
    def good(self) -> bool:
        """Whether fewer than `MAX_SICK` in a row did."""
        return self._num_sick < MAX_SICK

    def note(self, stream: Stream) -> None:
        """A stream has ended. What an ablation drives out of range is its author's doing."""
        if stream.session is not stream.bundle.plain.session:
            return
        if stream.error is not None and stream.error.code == "model_error":
            self._num_sick += 1
        elif stream.finish_reason in ("stop", "length"):
            self._num_sick = 0

    def forgive(self) -> None:
        """A model was replaced or taken away: judge anew."""
        self._num_sick = 0
