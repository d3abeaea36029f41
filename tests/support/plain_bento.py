"""A BentoML service as its documentation has it, without any patch of ours. Not a test.

python -m bentoml serve plain_bento:Plain --working-dir tests/support
"""

from collections.abc import AsyncGenerator

import bentoml


@bentoml.service(name="plain")
class Plain:
    """Says one word, and a text that ends in a mistake."""

    @bentoml.api
    async def hello(self) -> str:
        """One word."""
        return "hello"

    @bentoml.api
    async def broken(self) -> AsyncGenerator[str, None]:
        """A text that breaks off."""
        yield "some"
        raise ValueError("after the first chunk")
