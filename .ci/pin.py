"""Print the requirement of a package as pyproject.toml pins it: `python .ci/pin.py torch`."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"].values()
print(next(pin for extra in extras for pin in extra if pin.split("==")[0] == sys.argv[1]))
