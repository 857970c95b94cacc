"""The screen of `runlist top`."""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Static

from runlist.text import counted
from runlist.top import actions
from runlist.top.clients import client_lines
from runlist.top.feed import Feed, Key, Snapshot, Step
from runlist.top.help import Help
from runlist.top.question import Question
from runlist.top.rows import ORDERS, fitting, gpu_bars, headline, in_order, matching, next_order, reason
from runlist.top.terminal import Terminal
from runlist.views.layout import lines
from runlist.views.structs import TaskView

_ACTIONS: dict[str, actions.Action] = {
    "class": actions.next_class,
    "heavier": actions.heavier,
    "lighter": actions.lighter,
    "suspend": actions.suspend_or_resume,
}
_QUESTIONS = {
    "cap": ("cap of process {pid}, such as 30% or max", actions.cap, actions.set_cap),
    "memory": ("memory of process {pid} and all of its tree, such as 8G or max", actions.memory, actions.set_memory),
}


_ENDINGS = (signal.SIGTERM, signal.SIGHUP)

_REASON_NEEDS = 10
"""Lines of a screen that has room for it."""


class TopApp(App[None]):
    """A table of the tasks, lines above on the whole, a line below for messages. Looks every `interval_s` seconds.

    One loop alone uses the feed, in a thread, so that a silent daemon never stops the screen.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #headline { height: 1; text-style: reverse; padding: 0 1; }
    #gpus { height: auto; padding: 0 1; }
    #clients { height: auto; padding: 0 1; }
    #reason { height: auto; max-height: 2; padding: 0 1; color: $text-muted; }
    #message { height: auto; max-height: 3; padding: 0 1; }
    #message.trouble { color: $text-error; }
    DataTable { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark,h,f1", "help", "help", key_display="?"),
        Binding("q,ctrl+c", "quit", "quit", key_display="q"),  # early: of these, 80 columns show the first ones alone
        Binding("c", "change('class')", "class"),
        Binding("plus,equals_sign", "change('heavier')", "weight up", key_display="+"),
        Binding("minus", "change('lighter')", "down", key_display="-"),
        Binding("k", "ask('cap')", "cap"),
        Binding("m", "ask('memory')", "memory"),
        Binding("s", "change('suspend')", "suspend"),
        Binding("u", "undo", "undo"),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("escape", "show_all", show=False),
        Binding("p", "sort", "sort"),
        Binding("ctrl+z", "suspend_process", show=False),
    ]

    def __init__(self, feed: Feed, interval_s: float = 1.0) -> None:
        super().__init__(driver_class=Terminal)
        self._feed = feed
        self._interval_s = interval_s
        self._asked: asyncio.Queue[Step] = asyncio.Queue()
        self._snapshot = Snapshot(message="connecting")
        self._order = next(iter(ORDERS))
        self._filter = ""
        self._keys: list[Key] = []  # of the rows, from the top
        self.ended_by: signal.Signals | None = None
        """The signal that ended it."""

    def compose(self) -> ComposeResult:
        yield Static(id="headline", markup=False)
        yield Static(id="gpus", markup=False)
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Static(id="clients", markup=False)
        yield Static(id="reason", markup=False)
        yield Static(id="message", markup=False)
        yield Question()
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        for number in _ENDINGS:
            asyncio.get_running_loop().add_signal_handler(number, self._end_by, number)
        self._show(self._snapshot)
        self.query_one(DataTable).focus()
        self.run_worker(self._follow())

    def _end_by(self, number: signal.Signals) -> None:
        """Give the terminal back before the end: it is in another mode, and shows another screen."""
        self.ended_by = number
        self.exit()

    def on_resize(self) -> None:
        self._show(self._snapshot)

    def on_data_table_row_highlighted(self) -> None:
        """The cursor is somewhere else."""
        self._show_reason()

    def action_change(self, name: str) -> None:
        """Do something to the task under the cursor."""
        if (key := self._selected()) is not None:
            self._asked.put_nowait(partial(self._feed.act, key, _ACTIONS[name]))

    def action_ask(self, name: str) -> None:
        """Ask for a value for the task under the cursor, which may be gone when it is given."""
        words, old, change = _QUESTIONS[name]
        key = self._selected()
        task = self._found(key)
        if key is None or task is None:
            return

        def answered(value: str) -> None:
            if value and value != old(task):
                self._asked.put_nowait(partial(self._feed.act, key, partial(change, value)))

        self.query_one(Question).ask(words.format(pid=key.pid), old(task), answered)

    def action_undo(self) -> None:
        """Take the last change back."""
        self._asked.put_nowait(self._feed.undo)

    def action_filter(self) -> None:
        """Ask for the text that tasks are to have in them."""
        self.query_one(Question).ask("show only", self._filter, self._show_only)

    def action_show_all(self) -> None:
        """Forget the filter."""
        self._show_only("")

    def action_help(self) -> None:
        """Say what the keys do."""
        self.push_screen(Help())

    def action_sort(self) -> None:
        """Sort by something else."""
        self._order = next_order(self._order)
        self._show(self._snapshot)

    def _show_only(self, text: str) -> None:
        self._filter = text
        self._show(self._snapshot)

    def _selected(self) -> Key | None:
        row = self._table().cursor_row
        return self._keys[row] if 0 <= row < len(self._keys) else None

    def _found(self, key: Key | None) -> TaskView | None:
        return next((task for task in self._snapshot.tasks if Key.of(task) == key), None)

    def _table(self) -> DataTable[Text]:
        table: DataTable[Text] = self.screen_stack[0].query_one(DataTable)
        return table

    async def _follow(self) -> None:
        """Look again and again, and in between do what keys ask for."""
        clock = asyncio.get_running_loop().time
        try:
            while True:
                self._show(await asyncio.to_thread(self._feed.look))
                again_at = clock() + self._interval_s
                while (left := again_at - clock()) > 0:
                    try:
                        async with asyncio.timeout(left):
                            step = await self._asked.get()
                    except TimeoutError:
                        break
                    self._show(await asyncio.to_thread(step))
        finally:
            self._feed.close()

    def _show(self, snapshot: Snapshot) -> None:
        """Draw everything anew; the cursor stays with its task. A row is one cell: Textual draws each at some cost."""
        self._snapshot = snapshot
        below = self.screen_stack[0]  # a page of help may be above it
        if not below.query(DataTable):  # it ends, and the terminal has another size at that moment
            return
        table, selected = self._table(), self._selected()
        left = table.scroll_x
        tasks = in_order(matching(snapshot.tasks, self._filter), self._order)
        titles, *rows = lines(fitting(tasks, self.size.width), tasks)
        self._keys = [Key.of(task) for task in tasks]
        with self.batch_update():
            table.clear(columns=True)
            table.add_column(Text(titles))
            table.add_rows([Text(line)] for line in rows)
            if selected in self._keys:
                table.move_cursor(row=self._keys.index(selected), animate=False)
            table.scroll_to(x=left, animate=False)
            below.query_one("#headline", Static).update(headline(snapshot, self._order, self._filter))
            bars = gpu_bars(snapshot, self.size.width, self.size.height)
            below.query_one("#gpus", Static).update("\n".join(bars))
            below.query_one("#gpus").display = bool(bars)
            beside = client_lines(tasks, self.size.width, self.size.height)
            below.query_one("#clients", Static).update("\n".join(beside))
            below.query_one("#clients").display = bool(beside)
            self._show_reason()
            message = below.query_one("#message", Static)
            message.update(snapshot.message or self._hint(bool(tasks)))
            message.set_class(snapshot.trouble, "trouble")

    def _show_reason(self) -> None:
        """Say why the task under the cursor has its share, where the screen has room for that."""
        task = self._found(self._selected())
        text = "" if task is None or self.size.height < _REASON_NEEDS else reason(task, self.size.width)
        line = self.screen_stack[0].query_one("#reason", Static)
        line.update(text)
        line.display = bool(text)

    def _hint(self, any_tasks: bool) -> str:
        """What to say when there is no news."""
        if any_tasks:
            return ""
        if self._filter and self._snapshot.tasks:
            return f"none of {counted(len(self._snapshot.tasks), 'task')} has {self._filter!r} in it: escape shows all"
        return "no tasks: `runlist run` or `runlist attach` one"
