"""What the exporter is told on its command line: addresses, names of others, passwords, certificates; and its file."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from runlist import files
from runlist.errors import RunlistError, UsageError
from runlist.integrations.exporter import serve


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9878", ("127.0.0.1", 9878)),
        (":1", ("", 1)),
        ("[::1]:80", ("::1", 80)),
        ("host:0", ("host", 0)),
        ("[127.0.0.1]:9878", ("127.0.0.1", 9878)),
    ],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert serve.parse_address(text) == expected


@pytest.mark.parametrize(
    "text", ["", "9878", "host", "host:", "host:x", "host:70000", "::1:80", "host:-1", "h:\uff11", "h:" + "9" * 5000]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError, match="write an address and a port"):
        serve.parse_address(text)


def test_names_of_nobody() -> None:
    assert serve.parse_dialects("dcgm, hami,dcgm") == ["dcgm", "hami"]
    with pytest.raises(UsageError, match="take dcgm, kai, hami"):
        serve.parse_dialects("dcgm,prom")


def test_a_file_is_replaced_at_once_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "runlist.prom"
    path.write_text("old")
    files.replace(path, b"new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert list(tmp_path.iterdir()) == [path]
    missing = tmp_path / "none" / "runlist.prom"
    with pytest.raises(OSError, match="No such file"):
        files.replace(missing, b"new")


def test_a_password_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("prometheus:secret\n")
    path.chmod(0o644)
    with pytest.raises(RunlistError, match="chmod 600"):
        serve.read_password(path)
    path.chmod(0o600)
    assert serve.read_password(path).allows("Basic cHJvbWV0aGV1czpzZWNyZXQ=")
    for wrong in (
        b"no colon",
        b":secret",
        b"prometheus:",
        b"",
        b"\xff\xfe:secret",
        b"prometheus:" + bytes(1 << 20),
        b"prometheus:secret\nother:secret\n",
    ):
        path.write_bytes(wrong)
        with pytest.raises(UsageError, match="name:password"):
            serve.read_password(path)


@pytest.mark.parametrize(("name", "why"), [(".", "not a file"), ("/dev/zero", "not a file"), ("none", "No such file")])
def test_a_password_file_that_is_none_is_said_to_be_none(name: str, why: str, tmp_path: Path) -> None:
    """To take rights from a folder or a device of the machine, as of a file that others can read, helps nobody."""
    with pytest.raises(UsageError, match=why) as refused:
        serve.read_password(tmp_path / name)
    assert "chmod" not in str(refused.value)


@pytest.mark.parametrize(
    ("certificate", "key", "why"),
    [
        ("certificate", "locked", "the key asks for a password"),
        ("certificate", "other", "KEY_VALUES_MISMATCH"),
        ("certificate", "text", "no PEM"),
        ("text", "text", "no PEM"),
        ("certificate", "missing", "No such file or directory"),
        ("certificate", ".", "Is a directory"),
    ],
)
def test_what_is_no_certificate_with_its_key_is_one_line(certificate: str, key: str, why: str, tmp_path: Path) -> None:
    """And nobody is asked for a password: a service has no terminal."""
    for name in ("key", "other"):
        subject = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=x"]
        openssl(tmp_path, *subject, "-keyout", name, "-out", "certificate" if name == "key" else "its")
    openssl(tmp_path, "pkcs8", "-topk8", "-in", "key", "-out", "locked", "-passout", "pass:secret")
    (tmp_path / "text").write_text("a:b\n")
    serve.tls_context(tmp_path / "certificate", tmp_path / "key")
    with pytest.raises(UsageError, match=why) as refused:
        serve.tls_context(tmp_path / certificate, tmp_path / key)
    assert str(tmp_path / certificate) in str(refused.value)


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, stdin=subprocess.DEVNULL)
