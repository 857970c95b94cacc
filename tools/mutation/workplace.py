"""A copy of the tree with a virtual environment of its own, in which anything may be broken."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from mutation import plugin

Work = TypeVar("Work")
Result = TypeVar("Result")

_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "build", "dist", "__pycache__", ".*_cache", ".hypothesis")
_STARTS_COVERAGE = "import os; 'MUTATION_RECORD' in os.environ and __import__('record_coverage')\n"


class Workplace:
    """The copy, below a temporary folder. Its interpreter finds the copy's package, also in processes that are started
    isolated, as the daemon's are.
    """

    def __init__(self, original: Path, folder: Path) -> None:
        self.root = folder / "tree"
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self._clock = itertools.count(int(time.time()) - 100_000_000)
        shutil.copytree(original, self.root, symlinks=True, ignore=_LEFT_OUT)
        shutil.copytree(original / ".venv", self.root / ".venv", symlinks=True)
        self.python = self.root / ".venv" / "bin" / "python"
        (self.site,) = (self.root / ".venv" / "lib").glob("python*/site-packages")
        for path in [*self.site.glob("*editable*"), *self.site.glob("*.pth"), *self.python.parent.iterdir()]:
            if path.is_file() and not path.is_symlink():
                text = path.read_bytes()
                path.write_bytes(text.replace(bytes(original), bytes(self.root)))
        (self.site / "record_coverage.pth").write_text(_STARTS_COVERAGE)
        shutil.copy(Path(__file__).with_name("record_coverage.py"), self.site)
        shutil.copy(plugin.__file__, self.site / "mutation_plugin.py")

    def write(self, path: str, source: bytes) -> None:
        """Change a file, with a time that no other version of it had: Python takes a compiled file by that."""
        file = self.root / path
        file.write_bytes(source)
        now = next(self._clock)
        os.utime(file, (now, now))

    def run(
        self, words: Sequence[str], limit_s: float | None = None, environment: Mapping[str, str] | None = None
    ) -> tuple[int | None, str]:
        """A command in the copy: its exit code, None when it took too long, and the end of what it printed. What it
        started ends with it.
        """
        with (self.folder / "output").open("wb") as output:
            process = subprocess.Popen(
                words, cwd=self.root, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                env={**os.environ, **(environment or {}), "TMPDIR": str(self.empty("tmp"))},
            )  # fmt: skip
            try:
                code: int | None = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                self._end_all(process)
        return code, (self.folder / "output").read_text(errors="replace")[-20_000:]

    def pytest(
        self, words: Sequence[str], limit_s: float | None = None, environment: Mapping[str, str] | None = None
    ) -> tuple[int | None, str]:
        """Pytest in the copy."""
        options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "mutation_plugin"]
        return self.run([str(self.python), *options, *words], limit_s, environment)

    def empty(self, name: str) -> Path:
        """An empty folder beside the copy."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(exist_ok=True)
        return folder

    def _end_all(self, process: subprocess.Popen[bytes]) -> None:
        """End a process, and all that runs with the copy's interpreter or from a file of the copy: daemons leave the
        session of those who started them.
        """
        if process.poll() is None:
            process.kill()
        process.wait()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid() and self._is_ours(entry):
                try:
                    os.kill(int(entry.name), 9)
                except OSError:
                    continue

    def _is_ours(self, entry: Path) -> bool:
        """By its command line alone: whoever looks into the folder with a shell is not to be ended."""
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        ours = bytes(self.folder) + b"/"  # number 1 is not number 12
        return words[0].startswith(ours) or ours in b" ".join(words[:2])


@contextmanager
def workplaces(original: Path, count: int) -> Iterator[list[Workplace]]:
    """So many workplaces, which are gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="mutants-"))
    folder.chmod(0o755)  # some tests have processes of other users, which read the copy
    try:
        yield [Workplace(original, folder / str(number)) for number in range(count)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def side_by_side(
    places: Sequence[Workplace], work: Iterable[Work], do: Callable[[Workplace, Work], Result]
) -> Iterator[Result]:
    """What came of each piece of work, as it ends: a workplace has one at a time."""
    free: SimpleQueue[Workplace] = SimpleQueue()
    for place in places:
        free.put(place)

    def one(piece: Work) -> Result:
        place = free.get()
        try:
            return do(place, piece)
        finally:
            free.put(place)

    with ThreadPoolExecutor(len(places)) as threads:
        try:
            for done in as_completed([threads.submit(one, piece) for piece in work]):
                yield done.result()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def say(*words: object) -> None:
    """A line to whoever waits."""
    print(*words, file=sys.stderr, flush=True)
