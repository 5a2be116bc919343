#!/usr/bin/env python3
"""A sender that answers at once and watches the epochs: `GET /counts` says how many sends came, and how many came with an
epoch below one that it had seen of the same account. Those must be zero, whatever else was measured."""

import argparse
import asyncio
import json
import re

ANSWER = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{"sent":true}'
ACCOUNT = re.compile(rb"(?i)\r\nx-fencing-account: *([^\r]+)")
EPOCH = re.compile(rb"(?i)\r\nx-fencing-epoch: *(\d+)")
LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")


class Book:
    """What was received."""

    def __init__(self):
        self.sends = self.stale = self.unnamed = 0
        self.epochs: dict[bytes, int] = {}

    def note(self, head: bytes) -> None:
        self.sends += 1
        account, epoch = ACCOUNT.search(head), EPOCH.search(head)
        if not account or not epoch:
            self.unnamed += 1
            return
        seen, now = self.epochs.get(account[1], 0), int(epoch[1])
        if now < seen:
            self.stale += 1
        else:
            self.epochs[account[1]] = now

    def counts(self) -> dict:
        return {"sends": self.sends, "stale": self.stale, "unnamed": self.unnamed, "accounts": len(self.epochs)}


class Conversation(asyncio.Protocol):
    """One connection."""

    def __init__(self, book: Book):
        self.book, self.buffer = book, b""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data: bytes):
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end]
            length = LENGTH.search(head)
            whole = end + 4 + (int(length[1]) if length else 0)
            if len(self.buffer) < whole:
                return
            self.buffer = self.buffer[whole:]
            if head.startswith(b"GET /counts "):
                body = json.dumps(self.book.counts()).encode()
                self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            else:
                self.book.note(head)
                self.transport.write(ANSWER)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9000)
    options = parser.parse_args()
    book = Book()
    server = await asyncio.get_running_loop().create_server(lambda: Conversation(book), options.host, options.port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
