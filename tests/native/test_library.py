"""librunlist.so from C and C++ programs, heard on a real socket."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import runlist
from runlist.daemon.requests.messages import Effect, Kind
from tests.fixtures.compiler import CXX, C, cmake, compiler
from tests.fixtures.daemon import NOBODY, needs_root, short_path, wait_for
from tests.fixtures.ear import Ear, ear
from tests.native.guests import headers

__all__ = ["ear", "short_path"]

SOURCE = Path(__file__).with_name("tenant.c")
STRICT = ("-O1", "-Wall", "-Wextra", "-Werror", "-pedantic")
LANGUAGES = {
    "c11": (C, ("-std=c11", "-D_GNU_SOURCE")),
    "c++20": (CXX, ("-xc++", "-std=c++20")),
}
FUNCTIONS = {"rl_segment_begin", "rl_segment_end", "rl_segment_in_force", "rl_report_latency_ns", "rl_hint_ns",
             "rl_request_begin", "rl_request_end"}  # fmt: skip
OPERATIONS = {"rl_operations_admission", "rl_operations_client", "rl_operations_counters",
              "rl_operations_latencies", "rl_operations_log", "rl_operations_profile", "rl_operations_start",
              "rl_operations_stop", "rl_operations_take",
              "orion_set_client_idx", "orion_start_scheduler", "orion_stop_scheduler"}  # fmt: skip
INTERPOSED = {"read", "__read_chk", "readv", "recv", "__recv_chk", "recvfrom", "__recvfrom_chk", "recvmsg", "recvmmsg",
              "accept", "epoll_wait", "epoll_pwait", "poll", "__poll_chk",
              "accept4", "ioctl", "runlist_emulated_ioctl", "dlsym", "dlvsym", "dlopen", "dlmopen",
              "__asan_default_options"}  # fmt: skip
HOOKS = Path(__file__).parents[2] / "native" / "hooks"


@pytest.fixture(scope="module", params=LANGUAGES)  # not the session's: tests of another file use it, too
def program(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The test's tenant, in each language that the header is for, where every user can run it."""
    which, options = LANGUAGES[request.param]
    folder = Path(tempfile.mkdtemp(prefix="rl-"))
    folder.chmod(0o755)
    shutil.copy(runlist.library(), folder)
    built = folder / "tenant"
    words = [*options, *STRICT, f"-I{runlist.include()}", str(SOURCE), "-xnone", "-o", str(built), "-pthread"]
    link = [f"-L{folder}", "-lrunlist", f"-Wl,-rpath,{folder}"]
    done = subprocess.run([*compiler(*which), *words, *link], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    yield built
    shutil.rmtree(folder)


class Program:
    """A running tenant: says what each call returned, and whether errno stayed."""

    def __init__(self, path: Path, environment: dict[str, str], **options: object) -> None:
        self._process = subprocess.Popen(
            [path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, **options
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def do(self, command: str, number: int = 0) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command} {number}\n")
        self._process.stdin.flush()
        result, error = self._process.stdout.readline().split()
        assert error == "77", "errno was touched"
        return int(result)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def start(program: Path, short_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts tenants; they are killed with the test."""
    started: list[Program] = []

    def run(environment: dict[str, str] | None = None, **options: object) -> Program:
        named = {"RUNLIST_MESSAGES": str(short_path / "messages.sock")}
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("RUNLIST_", "XDG_"))}
        started.append(Program(program, {**plain, **(named if environment is None else environment)}, **options))
        return started[-1]

    yield run
    for one in started:
        one.close()


@pytest.fixture
def tenant(ear: Ear, start: Callable[..., Program]) -> Program:
    return start()


def read_elf(*options: str) -> list[list[str]]:
    """Words of each line that readelf prints of the library."""
    tool = shutil.which("readelf")
    if tool is None:
        pytest.skip("no readelf here")
    printed = subprocess.run(
        [tool, "-W", *options, runlist.library()], capture_output=True, text=True, check=True
    ).stdout
    return [line.split() for line in printed.splitlines() if line.strip()]


def hooked() -> set[str]:
    """Functions that the lists of native/hooks put ours before."""
    lists = sorted(HOOKS.glob("*.inc"))
    return {name for file in lists for name in re.findall(r"^HOOK\(\w+, (\w+)\)", file.read_text(), re.MULTILINE)}


def test_the_library_needs_a_c_library_and_nothing_else() -> None:
    dynamic = read_elf("-d")
    tags = {words[1].strip("()"): words[2:] for words in dynamic if len(words) > 2}
    needed = {words[-1].strip("[]") for words in dynamic if "(NEEDED)" in words}
    assert needed == {"libc.so.6"}, "and not glibc's dynamic linker, which a program of musl does not find"
    assert tags["SONAME"][-1] == "[librunlist.so]"
    assert "TEXTREL" not in tags
    assert "TEXTREL" not in tags.get("FLAGS", [])
    assert int(tags["INIT_ARRAYSZ"][0]) <= 5 * 8, "ours of preload, arrivals, dl and door, and the linker's own"
    segments = {words[0]: words for words in read_elf("-l")}
    assert "E" not in segments["GNU_STACK"][6]
    assert int(segments.get("TLS", ["0"] * 6)[5], 16) <= 64


def test_the_library_exports_what_it_must_and_brings_no_cxx_runtime() -> None:
    functions = [words for words in read_elf("--dyn-syms") if words[0].endswith(":") and len(words) > 7]
    exported = {words[7] for words in functions if words[6].isdigit() and words[3] != "NOTYPE"}
    assert exported == FUNCTIONS | OPERATIONS | INTERPOSED | hooked()
    needed = {words[7] for words in functions if words[6] == "UND"}
    assert not {name for name in needed if name.startswith(("_Z", "__gxx", "__cxa_throw", "_Unwind"))}
    versions = {name.partition("GLIBC_")[2] for name in needed if "GLIBC_" in name}
    assert all(tuple(int(part) for part in version.split(".")) <= (2, 28) for version in versions), versions


def test_all_that_can_be_said(ear: Ear, tenant: Program) -> None:
    assert tenant.do("begin", -5) == 0
    heard = ear.next()
    assert (heard.pid, heard.uid) == (tenant.pid, os.getuid())
    assert (heard.message.kind, heard.message.priority) == (Kind.SEGMENT_BEGIN, -5)
    assert [tenant.do("report", 7), tenant.do("hint", 1 << 62), tenant.do("end")] == [0, 0, 0]
    assert [ear.said() for _ in range(3)] == [("REPORT_LATENCY", 7), ("HINT", 1 << 62), ("SEGMENT_END", 0)]
    assert tenant.do("end") == -errno.EINVAL
    assert not ear.messages.dropped


def test_the_inner_priority_holds_then_the_outer_one_again(ear: Ear, tenant: Program) -> None:
    for priority in (3, 1):
        assert tenant.do("begin", priority) == 0
    assert tenant.do("end") == tenant.do("end") == 0
    said = [ear.said() for _ in range(4)]
    assert said == [("SEGMENT_BEGIN", 3), ("SEGMENT_BEGIN", 1), ("SEGMENT_BEGIN", 3), ("SEGMENT_END", 0)]


def test_the_highest_priority_of_all_threads_holds(ear: Ear, tenant: Program) -> None:
    assert tenant.do("begin", 3) == 0
    for priority in (7, 1):
        assert tenant.do("beside", priority) == 0
        assert tenant.do("apart") == 0
    assert tenant.do("end") == 0
    said = [ear.said() for _ in range(4)]
    assert said == [("SEGMENT_BEGIN", 3), ("SEGMENT_BEGIN", 7), ("SEGMENT_BEGIN", 3), ("SEGMENT_END", 0)]


def test_there_is_room_for_so_many_segments(ear: Ear, tenant: Program) -> None:
    assert [tenant.do("begin", 1) for _ in range(65)] == [0] * 64 + [-errno.ENOSPC]
    assert [tenant.do("end") for _ in range(65)] == [0] * 64 + [-errno.EINVAL]
    assert [ear.said() for _ in range(2)] == [("SEGMENT_BEGIN", 1), ("SEGMENT_END", 0)]


IN_FORCE_NS = 50e6
LOOK_AGAIN_S = 1.0


def in_time(tenant: Program, at_least_ns: float = 0) -> bool:
    """Whether a beginning is answered before it stops waiting. A busy machine may be late, so not only once."""
    for _ in range(5):
        waited = tenant.do("timed", 1)
        assert waited >= at_least_ns
        tenant.do("end")
        if waited < IN_FORCE_NS:
            return True
        time.sleep(1.1 * LOOK_AGAIN_S)
    return False


def test_a_beginning_waits_for_the_daemons_word(ear: Ear, tenant: Program) -> None:
    ear.pause_s = 0.02
    assert in_time(tenant, 20e6)


def test_a_beginning_does_not_wait_for_ever_and_not_again_at_once(ear: Ear, tenant: Program) -> None:
    ear.answers = False
    assert tenant.do("timed", 1) >= IN_FORCE_NS
    tenant.do("end")
    waited = []
    for _ in range(20):
        waited.append(tenant.do("timed", 1))
        tenant.do("end")
    assert min(waited) < IN_FORCE_NS


def test_a_process_that_is_not_managed_does_not_wait(ear: Ear, tenant: Program) -> None:
    ear.managed = False
    assert in_time(tenant)
    assert ear.messages.dropped["foreign"] >= 1


def test_without_a_daemon_nothing_happens(start: Callable[..., Program]) -> None:
    tenant = start()
    absent = -errno.ENOTCONN
    assert [tenant.do(word, 1) for word in ("begin", "report", "hint", "end")] == [absent] * 4
    assert tenant.do("end") == -errno.EINVAL
    assert tenant.do("cost") < 100_000


def test_a_daemon_that_comes_later_is_told_what_holds(short_path: Path, start: Callable[..., Program]) -> None:
    tenant = start()
    assert tenant.do("begin", 9) == -errno.ENOTCONN
    for _ in range(2):  # and one that comes after it
        with Ear(short_path / "messages.sock") as ear:
            wait_for(lambda: tenant.do("report", 1) == 0)
            assert ear.said() == ("SEGMENT_BEGIN", 9)
            assert ear.said() == ("REPORT_LATENCY", 1)
        assert tenant.do("report", 1) == -errno.ENOTCONN


@pytest.mark.parametrize("file", ["x" * 200, "", "/", "\udcff"])
def test_paths_that_are_none(start: Callable[..., Program], file: str) -> None:
    assert start({"RUNLIST_MESSAGES": file, "RUNLIST_SOCKET": "/nowhere/x"}).do("report", 1) == -errno.ENOTCONN


@pytest.mark.parametrize(
    "environment",
    [
        {"RUNLIST_SOCKET": "{}/runlist/daemon.sock", "RUNLIST_DEVICE": "emulated"},
        {"RUNLIST_EMULATED_GPU": "{}/runlist", "RUNLIST_DEVICE": "emulated", "XDG_RUNTIME_DIR": "/nowhere"},
        {"RUNLIST_MESSAGES": "{}/runlist/messages-4711.sock", "RUNLIST_DEVICE": "emulated"},  # its daemon has ended
        pytest.param({"XDG_RUNTIME_DIR": "{}"}, marks=needs_root),
    ],
)
def test_the_daemon_is_found_beside_its_stream_socket(
    short_path: Path, start: Callable[..., Program], environment: dict[str, str]
) -> None:
    folder = short_path / "runlist"
    folder.mkdir()
    for reached in (short_path, folder):
        reached.chmod(0o755)
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if "RUNLIST_DEVICE" not in environment else {}
    with Ear(folder / "messages.sock") as ear:
        tenant = start({name: value.format(short_path) for name, value in environment.items()}, **user)
        assert tenant.do("report", 4) == 0
        assert ear.said() == ("REPORT_LATENCY", 4)


@needs_root
def test_another_users_tenant(ear: Ear, short_path: Path, start: Callable[..., Program]) -> None:
    assert start(user=NOBODY, group=NOBODY, extra_groups=[], cwd="/").do("report", 1) == -errno.ENOTCONN  # 0700
    short_path.chmod(0o711)
    with Ear(short_path / "m2") as open_ear:
        tenant = start({"RUNLIST_MESSAGES": str(short_path / "m2")}, user=NOBODY, group=NOBODY, extra_groups=[])
        assert tenant.do("report", 1) == 0
        heard = open_ear.next()
        assert (heard.pid, heard.uid) == (tenant.pid, NOBODY)


@needs_root
@pytest.mark.parametrize("fault", ["another's", "open to others", "a link"])
def test_a_place_where_others_can_write_is_left_alone(
    short_path: Path, start: Callable[..., Program], fault: str
) -> None:
    """What it holds could change between a look and the connection."""
    place = short_path / "place"
    place.mkdir()
    with Ear(place / "messages.sock"):
        if fault == "another's":
            os.chown(place, 4711, 4711)
        elif fault == "open to others":
            place.chmod(0o1777)
        else:
            place = short_path / "link"
            place.symlink_to("place")
        for name in ("RUNLIST_SOCKET", "RUNLIST_MESSAGES"):
            assert start({name: str(place / "other.sock")}).do("report", 1) == -errno.ENOTCONN


def test_a_child_of_fork_is_another_process(ear: Ear, tenant: Program) -> None:
    tenant.do("begin", 2)
    assert tenant.do("fork") == 0
    tenant.do("end")
    heard = [ear.next() for _ in range(4)]
    assert [one.pid == tenant.pid for one in heard] == [True, False, False, True]
    assert [one.message.priority for one in heard] == [2, 40, 0, 0]
    numbers = [one.message.sequence for one in heard]
    assert [(numbers[3] - numbers[0]) % (1 << 32), (numbers[2] - numbers[1]) % (1 << 32)] == [1, 1]
    assert (numbers[1] - numbers[0]) % (1 << 32) > 100  # nobody is to know where they begin


def test_a_program_knows_whether_its_segment_is_in_force(ear: Ear, tenant: Program) -> None:
    assert tenant.do("force") == -errno.EINVAL
    assert [tenant.do("begin", 2), tenant.do("force")] == [0, 1]
    for effect in (Effect.NOT_IN_FORCE, Effect.IN_FORCE):  # the daemon says so when it changes
        assert ear.do(lambda effect=effect: ear.answer(effect))
        wait_for(lambda effect=effect: tenant.do("force") == (effect is Effect.IN_FORCE))
    for effect in (Effect.UNTOLD, Effect.NOT_IN_FORCE, Effect.NOT_MANAGED):  # UNTOLD: daemons before 0.5
        ear.effect = effect
        assert [tenant.do("begin", 5), tenant.do("force"), tenant.do("end")] == [0, 0, 0]
    ear.effect = Effect.IN_FORCE
    assert [tenant.do("begin", 5), tenant.do("force"), tenant.do("end"), tenant.do("end")] == [0, 1, 0, 0]
    assert tenant.do("force") == -errno.EINVAL
    ear.managed = False
    assert [tenant.do("begin", 5), tenant.do("force")] == [0, 0]


def test_without_a_daemon_no_segment_is_in_force(start: Callable[..., Program]) -> None:
    tenant = start()
    assert [tenant.do("begin", 1), tenant.do("force")] == [-errno.ENOTCONN, 0]


def test_threads_and_signals(ear: Ear, tenant: Program) -> None:
    assert tenant.do("threads") == 0
    assert tenant.do("signals") == 0
    wait_for(lambda: tenant.do("report", 123_456) == 0)
    kinds = []
    while (said := ear.said()) != ("REPORT_LATENCY", 123_456):
        kinds.append(said)
    assert [kind for kind, _ in kinds if kind.startswith("SEGMENT")][-1] == "SEGMENT_END"
    assert not ear.messages.dropped


def test_a_descriptor_that_was_closed_behind_its_back(ear: Ear, tenant: Program) -> None:
    assert tenant.do("report", 1) == 0
    assert tenant.do("closed") == 0
    assert tenant.do("report", 2) == 0


def test_a_full_queue_delays_and_drops_but_never_hangs(short_path: Path, start: Callable[..., Program]) -> None:
    ear = Ear(short_path / "messages.sock")
    with ear:
        tenant = start()
        ear.do(lambda: ear.loop.remove_reader(ear.messages._socket))  # a daemon that is stopped
        results = [tenant.do("report", 1) for _ in range(2000)]
        assert results[-1] == -errno.EAGAIN
        assert [tenant.do("begin", 6), tenant.do("end")] == [-errno.EAGAIN, 0]  # nothing to say any more
        assert tenant.do("begin", 7) == -errno.EAGAIN
        ear.do(lambda: ear.loop.add_reader(ear.messages._socket, ear.messages._read))
        wait_for(lambda: tenant.do("report", 2) == 0)
        while (said := ear.said())[0] == "REPORT_LATENCY":
            pass
        assert said == ("SEGMENT_BEGIN", 7)  # the next message told what was missed


def test_headers_that_lack_functions(tmp_path: Path) -> None:
    """As those of CUDA 12 do: what is not declared is not hooked, and the log names it."""
    for folder in headers()[1::2]:
        for header in Path(folder).glob("*.h"):
            (tmp_path / header.name).write_text(header.read_text().replace("cuGraphUpload", "cuGraphSend"))
    configure = cmake(HOOKS.parents[1], tmp_path / "build", CUDA_INCLUDE_DIR=str(tmp_path))
    done = subprocess.run(configure, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "-- Not in this cuda.h, so left alone: cuGraphUpload, cuGraphUpload_ptsz\n" in done.stdout
    for name in ("cuda.inc", "nvml.inc"):
        rows = (HOOKS / name).read_text().splitlines(keepends=True)
        kept = "".join(row for row in rows if "cuGraphUpload" not in row)
        assert (tmp_path / "build" / "native" / "lists" / "hooks" / name).read_text() == kept
