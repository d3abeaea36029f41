"""A BentoML service that does nothing: how long BentoML itself takes to be ready.

bentoml serve bentoml_empty:Empty --port PORT
"""

import bentoml


@bentoml.service
class Empty:
    """Says yes."""

    @bentoml.api
    async def yes(self) -> bool:
        """Yes."""
        return True
