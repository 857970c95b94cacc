"""The terminal that `top` reads keys from."""

from __future__ import annotations

from textual.drivers.linux_driver import LinuxDriver


class Terminal(LinuxDriver):
    """Textual's own, which ends the program at the first byte that is no UTF-8, as one of another encoding sends for a
    letter.
    """

    def run_input_thread(self) -> None:
        while True:
            try:
                return super().run_input_thread()
            except UnicodeDecodeError:  # what was typed is none of the keys
                continue
