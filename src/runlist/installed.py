"""Where what was built for this installation is. It may lie apart from the sources, and importlib.resources, which
knows of that, too, takes longer to load than most commands.
"""

from __future__ import annotations

import sys
from pathlib import Path


def installed(*parts: str) -> Path:
    """A file or folder of the package by its path in it; where it would be if it is not there."""
    places = [Path(folder, *parts) for folder in sys.modules[__package__].__path__]
    return next((place for place in places if place.exists()), places[0])
