"""The screen of `runlist top`."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Static

from runlist.top import actions
from runlist.top.feed import Feed, Key, Snapshot
from runlist.top.rows import ORDERS, fitting, headline, in_order, next_order
from runlist.views.layout import lines

_ACTIONS: dict[str, actions.Action] = {
    "class": actions.next_class,
    "heavier": actions.heavier,
    "lighter": actions.lighter,
    "suspend": actions.suspend_or_resume,
}


class TopApp(App[None]):
    """A table of the tasks, a line above on the whole, a line below for messages. Looks every `interval_s` seconds.

    One loop alone uses the feed, in a thread, so that a silent daemon never stops the screen.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #headline { height: 1; text-style: reverse; padding: 0 1; }
    #message { height: auto; max-height: 3; padding: 0 1; }
    #message.trouble { color: $text-error; }
    DataTable { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "change('class')", "class"),
        Binding("plus,equals_sign", "change('heavier')", "weight up", key_display="+"),
        Binding("minus", "change('lighter')", "down", key_display="-"),
        Binding("s", "change('suspend')", "suspend/resume"),
        Binding("p", "sort", "sort"),
        Binding("q,ctrl+c", "quit", "quit", key_display="q"),
    ]

    def __init__(self, feed: Feed, interval_s: float = 1.0) -> None:
        super().__init__()
        self._feed = feed
        self._interval_s = interval_s
        self._asked: asyncio.Queue[tuple[Key, actions.Action]] = asyncio.Queue()
        self._snapshot = Snapshot(message="connecting")
        self._order = next(iter(ORDERS))
        self._keys: list[Key] = []  # of the rows, from the top

    def compose(self) -> ComposeResult:
        yield Static(id="headline", markup=False)
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Static(id="message", markup=False)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self._show(self._snapshot)
        self.run_worker(self._follow())

    def on_resize(self) -> None:
        self._show(self._snapshot)

    def action_change(self, name: str) -> None:
        """Do something to the task under the cursor."""
        row = self.query_one(DataTable).cursor_row
        if 0 <= row < len(self._keys):
            self._asked.put_nowait((self._keys[row], _ACTIONS[name]))

    def action_sort(self) -> None:
        """Sort by something else."""
        self._order = next_order(self._order)
        self._show(self._snapshot)

    async def _follow(self) -> None:
        """Look again and again, and in between do what keys ask for."""
        clock = asyncio.get_running_loop().time
        try:
            while True:
                self._show(await asyncio.to_thread(self._feed.look))
                again_at = clock() + self._interval_s
                while (left := again_at - clock()) > 0:
                    try:
                        key, action = await asyncio.wait_for(self._asked.get(), left)
                    except TimeoutError:
                        break
                    self._show(await asyncio.to_thread(self._feed.act, key, action))
        finally:
            self._feed.close()

    def _show(self, snapshot: Snapshot) -> None:
        """Draw everything anew; the cursor stays with its task. A row is one cell: Textual draws each at some cost."""
        self._snapshot = snapshot
        table: DataTable[Text] = self.query_one(DataTable)
        selected = self._keys[table.cursor_row] if 0 <= table.cursor_row < len(self._keys) else None
        left = table.scroll_x
        tasks = in_order(snapshot.tasks, self._order)
        titles, *rows = lines(fitting(tasks, self.size.width), tasks)
        self._keys = [Key.of(task) for task in tasks]
        with self.batch_update():
            table.clear(columns=True)
            table.add_column(Text(titles))
            table.add_rows([Text(line)] for line in rows)
            if selected in self._keys:
                table.move_cursor(row=self._keys.index(selected), animate=False)
            table.scroll_to(x=left, animate=False)
            self.query_one("#headline", Static).update(headline(snapshot, self._order))
            message = self.query_one("#message", Static)
            message.update(snapshot.message or ("" if tasks else "no tasks: `runlist run` or `runlist attach` one"))
            message.set_class(snapshot.trouble, "trouble")
