"""What all pages are, which answers are described by."""

from pydantic import BaseModel, ConfigDict


class Page(BaseModel):
    """The schema of an answer; made when somebody asks for it, not at every start."""

    model_config = ConfigDict(defer_build=True)
