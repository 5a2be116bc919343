#!/usr/bin/env python3
"""What others do to a healthy client: its p99 alone, and beside each kind of trouble.

    python3 loadtest/exposed.py                                   # 5,000 slow connections; exits 1 where a limit is missed
    python3 loadtest/exposed.py --slow 300 --sends 200 --no-limits    # whatever the machine: only what must hold anyway

Trouble is made by processes of their own: `slow` (silent connections, heads, bodies and readers that drip, HTTP/2 that asks
nothing; each opened again when the gateway has closed it), `zombie` (refused tokens for the healthy client's own account, retried
without end), `hanging` (a sender that never answers), `flooding` (another account as fast as it can), and `bodies` (a route that
takes megabytes, whose sender reads slowly).
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import kit

FACTOR = 2.0
# Below this a percentile is the machine's noise and not the gateway's.
FLOOR_MS = 2.0
PACE_S = 0.004


class Crowd:
    """Many connections to one port, in one event loop."""

    def __init__(self, options: dict):
        self.port, self.count = options["port"], options["count"]
        self.account, self.token = options["account"], options["token"]
        self.held = self.answers = 0

    def head(self, path: str, more: str) -> bytes:
        token = "".join(f"{name}: {value}\r\n" for name, value in self.token.items())
        return f"POST {path} HTTP/1.1\r\nHost: gateway\r\n{token}{more}\r\n".encode()

    async def again(self, behave, number: int) -> None:
        """Behaves on one connection after another."""
        await asyncio.sleep(number % 500 * 0.004)
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=4096)
            except OSError:
                await asyncio.sleep(0.2)
                continue
            self.held += 1
            try:
                await behave(reader, writer)
            except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                pass
            self.held -= 1
            writer.transport.abort()

    async def silent(self, reader, _writer) -> None:
        await reader.read(1)

    async def drip(self, writer, text: bytes) -> None:
        for at in range(len(text)):
            writer.write(text[at:at + 1])
            await writer.drain()
            await asyncio.sleep(1)

    async def slow_head(self, _reader, writer) -> None:
        await self.drip(writer, self.head(f"/wx/{self.account}/send", "Content-Length: 0\r\n"))

    async def slow_body(self, _reader, writer) -> None:
        writer.write(self.head(f"/wx/{self.account}/send", "Content-Length: 1000\r\n"))
        await self.drip(writer, b"x" * 1000)

    async def slow_reader(self, reader, writer) -> None:
        # Refusals are answers too, and nobody takes them.
        writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader._transport.pause_reading()
        writer.write(self.head("/nowhere", "Content-Length: 0\r\n") * 200)
        await asyncio.sleep(60)

    async def idle_http2(self, reader, writer) -> None:
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        while await reader.read(4096):
            pass

    async def send_on(self, reader, writer, path: str, body: bytes = b"{}") -> None:
        request = self.head(path, f"Content-Length: {len(body)}\r\n") + body
        while True:
            writer.write(request)
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(length)
            self.answers += 1
            if b" 503 " in head[:20]:
                await asyncio.sleep(1)  # as Retry-After says

    def kinds(self, name: str) -> list:
        async def zombie(reader, writer):
            await self.send_on(reader, writer, f"/wx/{self.account}/send")

        async def hanging(reader, writer):
            await self.send_on(reader, writer, f"/hang/{self.account}/send")

        async def bodies(reader, writer):
            await self.send_on(reader, writer, f"/big/{self.account}/send", b"x" * 8_000_000)

        return {
            "slow": [self.silent, self.slow_head, self.slow_body, self.slow_reader, self.idle_http2],
            "zombie": [zombie], "flooding": [zombie], "hanging": [hanging], "bodies": [bodies],
        }[name]

    async def run(self, name: str) -> None:
        kinds = self.kinds(name)
        tasks = [asyncio.create_task(self.again(kinds[n % len(kinds)], n)) for n in range(self.count)]
        while tasks:
            print(self.held, self.answers, flush=True)
            await asyncio.sleep(0.2)


class Trouble:
    """A crowd in a process of its own."""

    def __init__(self, name: str, **options):
        self.name, self.count = name, options["count"]
        command = [sys.executable, __file__, "--crowd", name, json.dumps(options)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.held = self.answers = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.held, self.answers = map(int, line.split())

    def __enter__(self):
        # Some are always between two connections.
        kit.wait_until(f"{self.name}: all are held", lambda: self.held >= self.count * 0.97, limit=60)
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


async def lazy_senders() -> None:
    """Two senders: one accepts and never answers, one reads slowly and then does. Prints their ports."""

    async def hang(reader, _writer) -> None:
        with contextlib.suppress(OSError):
            await reader.read()

    async def read_slowly(reader, writer) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                left = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                while left > 0:
                    left -= len(await reader.read(min(left, 65536)) or b"x" * left)
                    await asyncio.sleep(0.01)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    servers = [await asyncio.start_server(behave, "127.0.0.1", 0, backlog=1024) for behave in (hang, read_slowly)]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await asyncio.Event().wait()


def measure(gateway: kit.Gateway, account: str, token: dict, sends: int) -> list[float]:
    """What each send of a client at a steady pace took, in ms. Every send must be admitted."""
    line, times = kit.Line(gateway.proxy), []
    for _ in range(sends):
        begun = time.perf_counter()
        status, verdict = line.send(account, token)
        times.append((time.perf_counter() - begun) * 1000)
        if (status, verdict) != (200, "admitted"):
            sys.exit(f"the healthy client got {status} {verdict}")
        time.sleep(PACE_S)
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gateway", default=kit.default_gateway(), help="the binary to measure")
    parser.add_argument("--slow", type=int, default=5000, help="slow connections to hold")
    parser.add_argument("--sends", type=int, default=3000, help="of the healthy client, alone and beside each trouble")
    parser.add_argument("--turns", type=int, default=3, help="in how many turns of alone and beside")
    parser.add_argument("--no-limits", action="store_true", help="show the figures and judge none of them")
    options = parser.parse_args()
    kit.heading(options)
    missed = []
    with kit.ZooKeeper() as zookeeper, kit.Sender() as sender, kit.Part("lazy-senders") as lazy:
        lazy.process = subprocess.Popen([sys.executable, __file__, "--lazy"], stdout=subprocess.PIPE, text=True)
        hanging, reading = lazy.process.stdout.readline().split()
        accounts = kit.Accounts(zookeeper, 4)
        healthy, slow, noisy, stuck = accounts.names
        routes = "".join(
            f'[[route]]\npath = "/{name}/{{account}}/{{*rest}}"\naccount = "path:account"\nupstream = "http://127.0.0.1:{port}"\n'
            for name, port in (("hang", hanging), ("big", reading)))
        with kit.Gateway(options.gateway, zookeeper.connect, sender.url, extra=routes) as gateway:
            gateway.start().wait_until_ready()
            token = accounts.token(healthy)
            # ZooKeeper's machine compiles itself under the first few thousand.
            measure(gateway, healthy, token, options.sends)
            many = min(200, options.slow)
            stale = kit.token(0, 12345)
            rounds = [
                ("slow", slow, accounts.token(slow), options.slow),
                ("zombie", healthy, stale, 8),
                ("hanging", stuck, accounts.token(stuck), many),
                ("flooding", noisy, accounts.token(noisy), 32),
                ("bodies", noisy, accounts.token(noisy), 16),
            ]
            print(f"{'trouble':10} {'held':>6} {'answers':>8} {'alone p50':>10} {'p99':>8} {'beside p50':>11} {'p99':>8} factor")
            for name, account, shown, count in rounds:
                alone, beside, held, answers = [], [], 0, 0
                # In turns, so that what the machine does meanwhile falls on both.
                for _ in range(options.turns):
                    alone += measure(gateway, healthy, token, options.sends // options.turns)
                    with Trouble(name, port=gateway.proxy, count=count, account=account, token=shown) as trouble:
                        beside += measure(gateway, healthy, token, options.sends // options.turns)
                        held, answers = trouble.held, answers + trouble.answers
                alone, beside = ([kit.percentile(times, part) for part in (0.5, 0.99)] for times in (alone, beside))
                factor = max(beside[1], FLOOR_MS) / max(alone[1], FLOOR_MS)
                told = ""
                if not options.no_limits and factor > FACTOR:
                    told = " MISSED"
                    missed.append(name)
                print(f"{name:10} {held:6} {answers:8} {alone[0]:7.2f} ms {alone[1]:5.2f} ms {beside[0]:8.2f} ms "
                      f"{beside[1]:5.2f} ms {factor:6.2f}{told}", flush=True)
            print(f"\nresident: {gateway.memory_mb()[0]:.0f} MB, at most {gateway.memory_mb()[1]:.0f} MB")
        if sender.counts()["stale"]:
            missed.append("no send with an epoch that was over")
    print("\nmissed: " + "; ".join(missed) if missed else "\nall held")
    return 1 if missed else 0


if __name__ == "__main__":
    if sys.argv[1:2] in (["--crowd"], ["--lazy"]):
        # Theirs would be other machines: what they need themselves is not to be taken from the gateway or its ZooKeeper.
        os.nice(19)
    if sys.argv[1:2] == ["--crowd"]:
        asyncio.run(Crowd(json.loads(sys.argv[3])).run(sys.argv[2]))
    elif sys.argv[1:2] == ["--lazy"]:
        asyncio.run(lazy_senders())
    else:
        sys.exit(main())
