"""The line in which somebody types: a filter, a cap, a memory limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Input, Label


class Question(Horizontal):
    """Asks one thing at a time, and hides when it has no question. `answered` hears what was typed."""

    DEFAULT_CSS = """
    Question { height: 1; display: none; }
    Question.open { display: block; }
    Question Label { padding: 0 1; }
    Question Input { width: 1fr; height: 1; border: none; padding: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", show=False),
        Binding("ctrl+c", "app.quit", show=False, priority=True),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._answered: Callable[[str], None] = lambda _: None

    def compose(self) -> ComposeResult:
        yield Label(markup=False)
        yield Input(compact=True)

    def ask(self, what: str, value: str, answered: Callable[[str], None]) -> None:
        """Ask for something that is `value` now."""
        self._answered = answered
        self.query_one(Label).update(f"{what}:")
        field = self.query_one(Input)
        field.value = value
        field.cursor_position = len(value)
        self.add_class("open")
        field.focus()

    def action_close(self) -> None:
        """Ask no more."""
        self.remove_class("open")
        self.screen.focus_next("DataTable")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Tell the answer."""
        event.stop()
        self.action_close()
        self._answered(event.value.strip())
