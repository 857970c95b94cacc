"""Runlist: share an NVIDIA GPU between unmodified processes, on the stock driver.

`manage` has this very process managed for a while, and `Client` talks to the daemon about any. A program that wants to
can say more of itself: `segment`, `request`, `report_latency`, `hint`. All are loaded when they are used.
"""

TYPE_CHECKING = False  # typing's own costs an import
if TYPE_CHECKING:
    from runlist.client import Client
    from runlist.managing import manage
    from runlist.planes.process.library import include, library
    from runlist.tenant import hint, report_latency, request, segment
    from runlist.version import __version__
else:
    _WHERE = {
        "Client": "runlist.client",
        "__version__": "runlist.version",
        "hint": "runlist.tenant",
        "include": "runlist.planes.process.library",
        "library": "runlist.planes.process.library",
        "manage": "runlist.managing",
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

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "Client", "__version__", "hint", "include", "library", "manage", "report_latency", "request", "segment",
]  # fmt: skip
