"""Texts of kernels: what is made of them, and what is refused, with the line; and that compilers for GPUs take them."""

from __future__ import annotations

import ctypes
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from runlist import blocks
from runlist.blocks import cubin, source
from runlist.blocks.host import Host
from runlist.blocks.page import Page, Stopper
from runlist.errors import NotSupportedError, RunlistError, UsageError
from runlist.trusted import Untrusted

ROOT = Path(__file__).parents[2]

WRITTEN = r"""
#define SIZE 16 /* } */
#define WHERE (blockIdx.x * blockDim.x + threadIdx.x)
// __global__ void not_this(int a) {
static const char* words = "__global__ void nor_this() {";
struct Pair { int first; float second; };
extern "C" __global__ void declared(int* a);
__device__ int twice(int a) { return 2 * a; }
__global__ __launch_bounds__(SIZE * 2) void
attributed(const int *__restrict__ in, unsigned long long int_count, float scale[], const Pair pair)
{ // {
  if (WHERE < int_count) scale[WHERE] = twice(in[WHERE]) * pair.second + pair.first; /* ) */
}
extern "C" {
__global__ void none() {}
}
"""


def test_kernels_are_found_with_their_parameters() -> None:
    found = source.kernels(WRITTEN)
    assert [each.name for each in found] == ["attributed", "none"]
    assert [(each.type, each.name) for each in found[0].parameters] == [
        ("int *", "in"), ("unsigned long long", "int_count"), ("float *", "scale"), ("Pair", "pair"),
    ]  # fmt: skip
    assert found[1].parameters == ()


def test_what_is_made_of_them_runs_and_keeps_its_lines(host: Host) -> None:
    made, before = source.resumable(WRITTEN, label="written.cu").splitlines(), WRITTEN.splitlines()
    counted = made[made.index("#line 1") + 1 :]
    assert len(counted) == len(before)
    for kept in ("#define SIZE", "struct Pair", "{ // {", "scale[WHERE] =", 'extern "C" {'):
        assert [kept in line for line in counted] == [kept in line for line in before]

    class Pair(ctypes.Structure):
        _fields_ = (("first", ctypes.c_int), ("second", ctypes.c_float))

    kernel = blocks.resumable(WRITTEN, "attributed", device=host)
    given, out = host.allocate(400), host.allocate(400)
    host.write(given, struct.pack("=100i", *range(100)))
    with kernel.launch(7, 16, [given, 100, out, Pair(1, 0.5)]) as running:
        assert running.wait(30)
    assert list(struct.unpack("=100f", host.read(out))) == [each + 1 for each in range(100)]
    with blocks.resumable(WRITTEN, "none", device=host).launch((2, 2), 1, []) as running:
        assert running.wait(30)


KERNEL = 'extern "C" __global__ void k(int* a) {{\n{}\n}}\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("int f() { return 1; }", "k.cu defines no kernel"),
        ("template <int N>\n__global__ void k(int* a) { a[N] = 1; }", "k.cu, line 2: kernel k is a template"),
        (KERNEL.format("auto g = cooperative_groups::this_grid(); g.sync();"), "kernel k uses this_grid, and so waits"),
        (KERNEL.format('int b; asm("mov.u32 %0, %ctaid.x;" : "=r"(b));'), "reads the physical block in assembler"),
        (KERNEL.format("if (a == nullptr) return;\n__shfl_sync(~0u, 1, 0);"), "returns early and uses __shfl_sync"),
        (KERNEL.format("if (a == nullptr) return;\n__syncthreads_or(1);"), "returns early and uses __syncthreads_or"),
        ("\n\n__device__ int f() { return blockIdx.x; }\n" + KERNEL.format("a[f()] = 1;"),
         "k.cu, line 3: a function that is no kernel reads blockIdx: make it a parameter"),
        ('extern "C" __global__ void k(int* a) { if (a) {', "line 1: nothing closes this {"),
        ("__global__ int;", "line 1: no name of a kernel follows __global__"),
    ],
)  # fmt: skip
def test_what_cannot_be_stopped_between_blocks_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        source.resumable(text, label="k.cu")


def test_a_kernel_is_named_among_several(host: Host) -> None:
    with pytest.raises(UsageError, match="has 2 kernels: name one of attributed, none"):
        blocks.resumable(WRITTEN, device=host)
    with pytest.raises(UsageError, match="defines no kernel other"):
        blocks.resumable(WRITTEN, "other", device=host)
    with pytest.raises(UsageError, match=r"no text of CUDA C\+\+ and no cupy.RawKernel"):
        blocks.resumable(7, device=host)
    assert blocks.resumable(SimpleNamespace(code=WRITTEN, name="none", options=()), device=host).name == "none"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([1], "has 2 parameters: 1 were given"),
        ([None, "x"], "'x' is no int (n)"),
        ([None, 1.5], "1.5 is no int (n)"),
        ([None, 1 << 31], "2147483648 is too large for int n"),
        (["x", 1], "a is a pointer, and 'x' no memory of the device"),
    ],
)
def test_bad_arguments_are_told(host: Host, arguments: list[object], said: str) -> None:
    kernel = blocks.resumable('extern "C" __global__ void k(float* a, int n) {}', device=host)
    with pytest.raises(UsageError, match=re.escape(said)):
        kernel.launch(1, 1, arguments)
    for grid in (0, (1, 2, 3, 4), (1, -1), "x"):
        with pytest.raises(UsageError, match="is no grid and no block"):
            kernel.launch(grid, 1, [None, 1])  # type: ignore[arg-type]


def test_a_text_that_is_wrong_is_told_with_its_line(host: Host) -> None:
    with pytest.raises(RunlistError, match=r"broken\.cu does not compile as C\+\+: broken\.cu:3:.*undeclared"):
        host.compile(source.resumable(KERNEL.format("\na[0] = undeclared;"), label="broken.cu"), "broken.cu")


def _mode(mode: int) -> Callable[[Path], None]:
    return lambda path: (path.touch(), path.chmod(mode))[0]


def _content(content: bytes) -> Callable[[Path], None]:
    return lambda path: (path.write_bytes(content), path.chmod(0o600))[1]


@pytest.mark.parametrize(
    ("spoil", "error", "said"),
    [
        (_mode(0o640), Untrusted, "others can open"),
        (_mode(0o602), Untrusted, "others can open"),
        (lambda path: path.symlink_to(path.with_name("other")), OSError, "symbolic links"),
        (lambda path: (path.write_text("other words"), path.chmod(0o600)), UsageError, "another kind of file"),
        (_content(bytes(8) + b"precious" * 511), UsageError, "another kind of file"),
        (_content(bytes(1 << 16)), UsageError, "another kind of file"),
        (lambda path: path.mkdir(), OSError, "directory"),
        (lambda path: path.parent.chmod(0o777), Untrusted, "others can write there"),
    ],
)
def test_a_page_that_others_could_change_is_not_used(
    page_path: Path, spoil: Callable[[Path], object], error: type[Exception], said: str
) -> None:
    spoil(page_path)
    with pytest.raises(error, match=said):
        Page(page_path)


def test_a_page_whose_maker_died_is_made_by_the_next(page_path: Path) -> None:
    page_path.write_bytes(bytes(4096))
    page_path.chmod(0o600)
    Page(page_path).close()
    assert page_path.read_bytes() == b"RLBLKS01" + bytes(4088)


def test_a_page_of_somebody_else_is_not_used(page_path: Path) -> None:
    import os

    if os.geteuid() != 0:
        pytest.skip("needs root, to make a file of another user")
    Page(page_path).close()
    os.chown(page_path, 12345, 12345)
    with pytest.raises(Untrusted, match="belongs to user 12345"):
        Stopper(page_path)


def test_a_kernel_may_have_the_name_of_a_function_of_the_c_library() -> None:
    """In a process of its own: what calls another function of that name may crash."""
    script = '''
from runlist import blocks
from runlist.blocks.host import Host

kernel = blocks.resumable(r"""extern "C" __global__ void advance(float* x) { x[blockIdx.x] += 1; }""", device=Host())
x = kernel.device.allocate(16)
kernel.device.write(x, bytes(16))
kernel.launch(grid=4, block=1, arguments=[x]).wait()
print(kernel.device.read(x) == b"\\0\\0\\x80?" * 4)
'''
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "True\n"), done


def test_nothing_of_gpus_is_imported_with_it() -> None:
    script = (
        "import runlist.blocks, sys; print([m for m in sys.modules if m.split('.')[0] in ('cupy', 'numba', 'cuda')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    script = "import runlist, sys; print('runlist.blocks' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def _sources() -> list[Path]:
    """Ours: those of `bench/foreign` need a runtime of CUDA 13, and ask for what cannot be resumed."""
    folders = (ROOT / "src" / "runlist", ROOT / "bench" / "papers", ROOT / "bench" / "programs")
    return sorted(path for folder in folders for path in folder.rglob("*.cu*") if path.suffix in (".cu", ".cuh"))


def test_a_program_whose_bindings_load_fast_may_ask_for_the_compiler_as_well() -> None:
    script = "from runlist.blocks import cubin; print(cubin.nvrtc_there())"
    said = [
        subprocess.run([sys.executable, "-c", first + script], capture_output=True, text=True, timeout=60)
        for first in ("", "from runlist.workloads import quick_cuda; ")
    ]
    assert (said[1].returncode, said[1].stdout) == (0, said[0].stdout), said


def test_all_sources_for_gpus_are_found() -> None:
    assert {"kernels.cu", "graph.cu", "blocks.cuh"} <= {path.name for path in _sources()}


@pytest.mark.parametrize("path", _sources(), ids=lambda path: path.name)
def test_compilers_for_gpus_take_every_source(path: Path) -> None:
    """With NVRTC and with nvcc, each where it is."""
    text = path.read_text()
    texts = [text, source.resumable(text, label=path.name)] if source.kernels(text) else [text]
    nvcc = shutil.which("nvcc")
    if nvcc is None and not cubin.nvrtc_there():
        pytest.skip("neither NVRTC nor nvcc is here")
    options = ("-I", str(path.parent))
    for each in texts:
        if cubin.nvrtc_there() and "#include <cstd" not in each:  # it has no library of C++
            assert cubin.compiled(each, path.name, "sm_90", options)[:4] == b"\x7fELF"
        if nvcc is not None:
            assert cubin.by_nvcc(nvcc, each, path.name, "sm_90", options)[:4] == b"\x7fELF"


def test_what_a_gpus_compiler_says_is_told() -> None:
    try:
        cubin.compiled(KERNEL.format("a[0] = undeclared;"), "broken.cu", "sm_90")
    except NotSupportedError as error:
        assert "no NVRTC and no nvcc" in str(error)  # noqa: PT017 (either is right, as the machine is)
    except RunlistError as error:
        assert re.search(r"broken\.cu does not compile: .*undeclared", str(error))  # noqa: PT017
