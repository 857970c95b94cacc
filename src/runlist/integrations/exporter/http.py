"""A small HTTP server for scrapers: bounded in connections, time and memory, whoever connects."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import errno
import hmac
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

MAX_CONNECTIONS = 64
"""Connections at a time. One more ends the one that has been silent for longest."""

MAX_HEAD = 16 << 10
"""Bytes of a request's head."""

MAX_BODY = 64 << 10
"""Bytes of a request's body, which is read and forgotten."""

HEAD_S, IDLE_S, SEND_S, GOODBYE_S = 10.0, 120.0, 20.0, 2.0
"""How long a request, or an agreement on keys, may take to arrive, the next one may be waited for, each piece of an
answer may take, and the end of TLS.
"""

_PIECE = 64 << 10
_BACKLOG = 256
_AT_ONCE = 32
"""How many connections asyncio takes in before it goes on with those that are to end for them."""

_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked. Names of headers are in small letters."""

    method: str
    path: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Response:
    """What is answered."""

    status: HTTPStatus
    body: bytes
    content_type: str = _TEXT
    headers: Mapping[str, str] | None = None


Answer = Callable[[Request], Awaitable[Response]]


def plain(status: HTTPStatus, line: str, **headers: str) -> Response:
    """A line of text."""
    return Response(
        status, f"{line}\n".encode(), headers={name.replace("_", "-"): text for name, text in headers.items()}
    )


class Password:
    """Asks for a user's name and password (RFC 7617)."""

    def __init__(self, name: str, password: str) -> None:
        self._expected = f"{name}:{password}".encode()

    def allows(self, header: str) -> bool:
        """Whether the header `Authorization` has them."""
        scheme, _, words = header.partition(" ")
        try:
            given = base64.b64decode(words.strip(), validate=True)
        except (binascii.Error, ValueError):
            return False
        return hmac.compare_digest(given, self._expected) and scheme.lower() == "basic"


class _BadRequest(Exception):
    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class Server:
    """Serves GET and HEAD by `answer`. `dropped` counts connections that were ended for others."""

    def __init__(self, answer: Answer, password: Password | None = None) -> None:
        self.dropped = 0
        self._answer = answer
        self._password = password
        self._tls: ssl.SSLContext | None = None
        self._server: asyncio.Server | None = None
        self._waiting: dict[asyncio.StreamWriter, None] = {}  # those that say nothing, the longest silent first
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._shaking_hands: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Begin; returns the address. Raises OSError."""
        self._tls = tls
        self._server = await asyncio.start_server(self._accepted, host, port, limit=MAX_HEAD, backlog=_AT_ONCE)
        for listener in self._server.sockets:
            with socket.socket(fileno=os.dup(listener.fileno())) as same:
                same.listen(_BACKLOG)
        address = self._server.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    async def close(self) -> None:
        """Hang up."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._open):
            self._end(writer)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._make_room()
        self._open.add(writer)
        raw, agreed = writer.transport, False
        try:
            if self._tls is not None:
                await self._shake_hands(writer, self._tls)
                agreed = True
            within = HEAD_S
            while await self._one(reader, writer, within):
                within = IDLE_S
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ssl.SSLError):
            pass  # it went away, or takes too long
        finally:
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()
            if agreed and writer in self._open:  # the other side has to say goodbye, too
                self._waiting[writer] = None
                with contextlib.suppress(OSError, TimeoutError):
                    await asyncio.wait_for(writer.wait_closed(), GOODBYE_S)
                raw.abort()
            self._waiting.pop(writer, None)
            self._open.discard(writer)

    def _make_room(self) -> None:
        """End those that said nothing for longest; where all are being answered, one of these."""
        while len(self._open) >= MAX_CONNECTIONS:
            silent = next(iter(self._waiting), None) or next(iter(self._open))
            self._waiting.pop(silent, None)
            self._open.discard(silent)
            self.dropped += 1
            self._end(silent)

    def _end(self, writer: asyncio.StreamWriter) -> None:
        if (task := self._shaking_hands.get(writer)) is not None:
            task.cancel()  # asyncio knows no other end of that in order
        else:
            writer.transport.abort()

    async def _shake_hands(self, writer: asyncio.StreamWriter, tls: ssl.SSLContext) -> None:
        """Agree on keys. It counts as a connection meanwhile; nothing may be awaited before."""
        task = asyncio.current_task()
        assert task is not None
        self._waiting[writer] = None
        self._shaking_hands[writer] = task
        try:
            await writer.start_tls(tls, ssl_handshake_timeout=HEAD_S)
        finally:
            del self._shaking_hands[writer]

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, within: float) -> bool:
        """One request; whether another may follow."""
        self._waiting[writer] = None
        try:
            async with asyncio.timeout(within):
                head = await reader.readuntil(b"\r\n\r\n")
                request = _parsed(head)
                await _skip_body(reader, request)
            self._waiting.pop(writer, None)
            response = await self._respond(request)
        except asyncio.IncompleteReadError as error:
            if not error.partial.strip():
                return False
            request, response = None, plain(HTTPStatus.BAD_REQUEST, "half a request")
        except asyncio.LimitOverrunError:
            request, response = None, plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the head is too long")
        except _BadRequest as error:
            request, response = None, plain(error.status, error.status.phrase)
        self._waiting.pop(writer, None)
        lasts = request is not None and _lasts(request)
        await _send(writer, response, head_only=request is not None and request.method == "HEAD", lasts=lasts)
        return lasts

    async def _respond(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return plain(HTTPStatus.METHOD_NOT_ALLOWED, "GET or HEAD", Allow="GET, HEAD")
        if self._password is not None and not self._password.allows(request.headers.get("authorization", "")):
            return plain(HTTPStatus.UNAUTHORIZED, "a name and a password", WWW_Authenticate='Basic realm="runlist"')
        return await self._answer(request)


def _parsed(head: bytes) -> Request:
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise _BadRequest(HTTPStatus.BAD_REQUEST)
    headers: dict[str, str] = {}
    for line in lines[1:]:
        if not line:
            break
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise _BadRequest(HTTPStatus.BAD_REQUEST)
        headers[name.lower()] = value.strip()
    if words[2] == "HTTP/1.0":
        headers.setdefault("connection", "close")
    return Request(words[0], words[1].partition("?")[0], headers)


async def _skip_body(reader: asyncio.StreamReader, request: Request) -> None:
    if "transfer-encoding" in request.headers:
        raise _BadRequest(HTTPStatus.NOT_IMPLEMENTED)
    length = request.headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()) or len(length) > 9:
        raise _BadRequest(HTTPStatus.BAD_REQUEST)
    if int(length) > MAX_BODY:
        raise _BadRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    await reader.readexactly(int(length))


def _lasts(request: Request) -> bool:
    return "close" not in request.headers.get("connection", "").lower()


async def _send(writer: asyncio.StreamWriter, response: Response, *, head_only: bool, lasts: bool) -> None:
    """In pieces: a client that reads nothing holds one of them, and not a whole answer."""
    lines = [
        f"HTTP/1.1 {response.status.value} {response.status.phrase}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body)}",
        "X-Content-Type-Options: nosniff",
        f"Connection: {'keep-alive' if lasts else 'close'}",
        *(f"{name}: {text}" for name, text in (response.headers or {}).items()),
    ]
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    body = b"" if head_only else response.body
    writer.write(head + body[:_PIECE])
    for start in range(_PIECE, len(body), _PIECE):
        async with asyncio.timeout(SEND_S):
            await writer.drain()
        writer.write(body[start : start + _PIECE])
    async with asyncio.timeout(SEND_S):
        await writer.drain()
    if not lasts:
        with contextlib.suppress(OSError, RuntimeError):
            if writer.can_write_eof():
                writer.write_eof()


def reason(error: OSError) -> str:
    """Why one cannot listen, in words."""
    match error.errno:
        case errno.EADDRINUSE:
            return "something listens there already: name another port with --listen"
        case errno.EADDRNOTAVAIL:
            return "this machine has no such address"
        case errno.EACCES:
            return "no right to that port: take one above 1023"
        case _:
            return error.strerror or str(error)
