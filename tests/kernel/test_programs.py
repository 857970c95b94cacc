"""Programs that the kernel does not take: what its verifier says of them."""

from __future__ import annotations

import errno
import struct

import pytest

from runlist.planes.kernel.bpf import Refused, load_program, why_not
from tests.fixtures.kernel import needs_kernel

pytestmark = needs_kernel
RETURN = struct.pack("<BBhi", 0x95, 0, 0, 0)
ZERO = struct.pack("<BBhi", 0xB7, 0, 0, 0)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (RETURN, "R0 !read_ok"),  # EACCES
        (struct.pack("<BBhi", 0xB7, 15, 0, 0) + RETURN, "R15 is invalid"),  # EINVAL
    ],
)
def test_the_verifiers_last_word_is_told(code: bytes, said: str) -> None:
    with pytest.raises(Refused) as refused:
        load_program("tried", code, "GPL")
    assert refused.value.errno in (errno.EACCES, errno.EINVAL)
    assert why_not("tried", refused.value) == f"the kernel refuses the program tried: {said}"


def test_one_that_the_verifier_does_not_see_is_refused_for_another_reason() -> None:
    with pytest.raises(OSError, match="Argument list too long") as error:
        load_program("tried", ZERO * 1_000_001 + RETURN, "GPL")
    assert not isinstance(error.value, Refused)
    assert why_not("tried", error.value) == "the kernel does not load the program tried: Argument list too long"
