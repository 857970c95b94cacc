"""Runlist: share an NVIDIA GPU between unmodified processes, on the stock driver.

A program that wants to can say more of itself: `segment`, `request`, `report_latency`, `hint`. They are loaded when
they are used.
"""

__version__ = "0.7.0"

TYPE_CHECKING = False  # typing's own costs an import
if TYPE_CHECKING:
    from runlist.planes.process.library import include, library
    from runlist.tenant import hint, report_latency, request, segment
else:
    _WHERE = {
        "hint": "runlist.tenant",
        "include": "runlist.planes.process.library",
        "library": "runlist.planes.process.library",
        "report_latency": "runlist.tenant",
        "request": "runlist.tenant",
        "segment": "runlist.tenant",
    }

    def __getattr__(name: str) -> object:
        if name not in _WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(_WHERE[name]), name)
        return value


__all__ = ["__version__", "hint", "include", "library", "report_latency", "request", "segment"]
