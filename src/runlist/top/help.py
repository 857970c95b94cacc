"""The page of `?`."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Static

_KEYS = """\
arrows    choose a task
c         its next class
+ -       its weight, up or down by a quarter
k         its cap: 30%, 30ms/100ms, max for none
m         memory that its whole tree may have: 8G, max for none
s         suspend it, or resume it
u         take the last change back, and those before
/         only tasks with a text: process, user, class, state, group, command
escape    show everything again; close a question
p         sort by something else
ctrl+z    back to the shell; `fg` returns
q         quit"""

_BARS = (
    "Bars show the time and the memory of each GPU that are in use, and beside them how the background gives way to "
    "programs that pause, and the part of the GPU that switches cost. Lines below the table say why the task under the "
    "cursor has its share. Clients that share SMs by operation have a line each: HP has high priority, BE goes beside "
    "it by the rule; WAITS is a usual time in its queue. `runlist doctor PID` says what fits a program."
)
_TEXT = f"{_KEYS}\n\n{_BARS}\n\nAny key closes this page."
"""A terminal of 80 columns and 24 lines has room for all of it: a key cannot scroll."""


class Help(ModalScreen[None]):
    """What the keys do."""

    CSS = """
    Help { align: center middle; }
    #help { width: 82; max-width: 100%; height: auto; max-height: 100%; border: round $primary; background: $surface; }
    #help Static { padding: 0 1; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_open = True

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Static(_TEXT, markup=False)

    def on_key(self, event: Key) -> None:
        """Close, once. The key is nothing else: not one for the screen below."""
        event.stop()
        if self._is_open:
            self._is_open = False
            self.dismiss()
