"""What the load programs share: real servers on loopback, elections made in bulk, calls, and figures.

It starts a ZooKeeper server, the gateway's binary and a sender, each on a free port and in a folder that goes with it.
It measures nothing by itself and judges nothing.
"""

import datetime
import http.client
import json
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from kazoo.client import KazooClient

# kazoo tells of every session that ends with its server.
logging.getLogger("kazoo").setLevel(logging.CRITICAL)

HERE = Path(__file__).resolve().parent
ROOT = "/wx-accounts"
CLASSPATH = os.environ.get("ZOOKEEPER_CLASSPATH", "/usr/share/java/zookeeper.jar")
# A session that owns more ephemeral nodes than this is hard on ZooKeeper when it ends: accounts are spread over several.
MOST_ACCOUNTS_PER_SESSION = 10_000


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def wait_until(what: str, holds, limit: float = 60, pause: float = 0.005):
    """Returns what `holds` returns once that is true."""
    until = time.monotonic() + limit
    while not (found := holds()):
        if time.monotonic() > until:
            sys.exit(f"never within {limit} s: {what}")
        time.sleep(pause)
    return found


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
        return True
    except OSError:
        return False


def default_gateway() -> str:
    target = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target"))
    return os.environ.get("FENCEGATE", str(target / "release" / "fencegate"))


def percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


class Part:
    """A child process with a folder of its own; both end with the `with` block."""

    def __init__(self, name: str, keep: str | None = None):
        self.name = name
        self.folder = Path(keep or tempfile.mkdtemp(prefix=f"load-{name}-"))
        self.log = self.folder / "log"
        self.process: subprocess.Popen | None = None

    def spawn(self, command: list[str], **more) -> None:
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, **more)

    def check(self) -> bool:
        if self.process.poll() is not None:
            sys.exit(f"{self.name} ended:\n{self.log.read_text(errors='replace')[-4000:]}")
        return True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process and self.process.poll() is None:
            # Asked first: what is built to record a profile writes it when it ends by itself.
            self.process.terminate()
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class ZooKeeper(Part):
    """One server as Debian packages it, with fsync as it is by default."""

    def __init__(self, heap: str = "1g", tick_ms: int = 2000):
        super().__init__("zookeeper")
        self.port = free_port()
        self.connect = f"127.0.0.1:{self.port}"
        config = self.folder / "zoo.cfg"
        config.write_text(
            f"tickTime={tick_ms}\ndataDir={self.folder}/data\nclientPort={self.port}\nclientPortAddress=127.0.0.1\n"
            "maxClientCnxns=0\nmaxSessionTimeout=600000\nadmin.enableServer=false\n")
        self.command = [
            "java", f"-Xmx{heap}", "-cp", CLASSPATH, "-Dzookeeper.admin.enableServer=false",
            "-Dzookeeper.4lw.commands.whitelist=*", "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config)]
        self.start()

    def start(self) -> None:
        self.spawn(self.command)
        wait_until("ZooKeeper serves", lambda: self.check() and self.word("srvr"))

    def restart(self) -> None:
        """kill -9, and a start over the same data."""
        self.process.kill()
        self.process.wait()
        self.start()

    def word(self, word: str) -> str:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as line:
                line.sendall(word.encode())
                return line.makefile("r").read()
        except OSError:
            return ""

    def session(self, timeout: float = 300) -> KazooClient:
        client = KazooClient(self.connect, timeout=timeout)
        client.start()
        return client


class Sender(Part):
    """`sender.py` as a process of its own."""

    def __init__(self):
        super().__init__("sender")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.spawn([sys.executable, str(HERE / "sender.py"), "--port", str(self.port)])
        wait_until("the sender answers", lambda: self.check() and try_json(self.port, "/counts"))

    def counts(self) -> dict:
        return try_json(self.port, "/counts")


class Gateway(Part):
    """The gateway's binary. Without a ZooKeeper to connect to it keeps the elections itself."""

    def __init__(self, binary: str, connect: str | None, upstream: str, root: str = ROOT, extra: str = "", accounts: str = ""):
        super().__init__("gateway")
        self.binary, self.proxy, self.admin, self.elections = binary, free_port(), free_port(), free_port()
        self.config = self.folder / "gateway.toml"
        held = (f'[zookeeper]\nconnect = "{connect}"\n[election]\nroot = "{root}"\n' if connect else
                f'elections = "127.0.0.1:{self.elections}"\n[coordination]\nstate = "{self.folder}/state"\n')
        self.config.write_text(
            f'[listen]\nproxy = "127.0.0.1:{self.proxy}"\nadmin = "127.0.0.1:{self.admin}"\n{held}{extra}\n'
            f'[[route]]\npath = "/wx/{{account}}/{{*rest}}"\naccount = "path:account"\nupstream = "{upstream}"\n')

    def start(self):
        self.spawn([self.binary, "serve", "--config", str(self.config)])
        return self

    def restart(self) -> None:
        """kill -9, and a start with the same file."""
        self.process.kill()
        self.process.wait()
        self.start().wait_until_ready()

    def is_ready(self) -> bool:
        self.check()
        try:
            return call(self.admin, "GET", "/readyz")[0] == 200
        except OSError:
            return False

    def wait_until_ready(self, limit: float = 60) -> None:
        wait_until("the gateway is ready", self.is_ready, limit)

    def json(self, path: str):
        return try_json(self.admin, path)

    def lines(self, part: str) -> list[float]:
        """The moments at which lines with `part` were logged, as seconds since 1970."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            if part in line and (stamp := re.search(r"\d{4}-\d\d-\d\dT[\d:.]+Z", line)):
                found.append(datetime.datetime.fromisoformat(stamp[0].replace("Z", "+00:00")).timestamp())
        return found

    def memory_mb(self) -> tuple[float, float]:
        """What is resident now, and what was at most."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return tuple(int(re.search(rf"^{key}:\s+(\d+)", text, re.M)[1]) / 1024 for key in ("VmRSS", "VmHWM"))

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Relay:
    """A line to a port on loopback that can be cut. New connections get through again at once."""

    def __init__(self, port: int):
        self.target, self.pairs = port, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.connect = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self.listener.accept()
            far = socket.create_connection(("127.0.0.1", self.target))
            self.pairs.append((near, far))
            for one, other in ((near, far), (far, near)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    @staticmethod
    def _carry(source: socket.socket, target: socket.socket) -> None:
        piece = memoryview(bytearray(1 << 18))
        try:
            while count := source.recv_into(piece):
                target.sendall(piece[:count])
        except OSError:
            pass
        Relay._end((source, target))

    @staticmethod
    def _end(pair) -> None:
        for end in pair:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self) -> None:
        """Ends every connection that is open, in both directions."""
        pairs, self.pairs = self.pairs, []
        for pair in pairs:
            self._end(pair)


def call(port: int, method: str, path: str, headers: dict | None = None, body: bytes = b"", timeout: float = 30):
    """One request on a connection of its own: status, headers, body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path, body or None, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def try_json(port: int, path: str):
    try:
        return json.loads(call(port, "GET", path)[2])
    except (OSError, ValueError, http.client.HTTPException):
        return None


def holder_data(seq: int, instance: str, session: int) -> bytes:
    data = {"seq": seq, "instanceId": instance, "sessionId": session, "activeSince": int(time.time() * 1000)}
    return json.dumps(data, separators=(",", ":")).encode()


def token(seq: int, session: int) -> dict:
    return {"X-Fencing-Seq": str(seq), "X-Fencing-Session": str(session)}


class Accounts:
    """Many held accounts, spread over sessions of their own. Each has four znodes: its own, `members`, a candidate (number
    0) and `active`."""

    def __init__(self, zookeeper: ZooKeeper, count: int, root: str = ROOT, prefix: str = "wxid_"):
        self.names = [f"{prefix}{number:07}" for number in range(count)]
        self.sessions: list[KazooClient] = []
        self.holders: dict[str, int] = {}
        for start in range(0, count, MOST_ACCOUNTS_PER_SESSION):
            client = zookeeper.session()
            self.sessions.append(client)
            if start == 0:
                client.ensure_path(root)
            self._make(client, root, self.names[start:start + MOST_ACCOUNTS_PER_SESSION], len(self.sessions))

    def _make(self, client: KazooClient, root: str, names: list[str], number: int) -> None:
        session = client.client_id[0]
        pending = []
        for start in range(0, len(names), 50):
            transaction = client.transaction()
            for name in names[start:start + 50]:
                account = f"{root}/{name}"
                transaction.create(account)
                transaction.create(f"{account}/members")
                transaction.create(f"{account}/members/m-", b"{}", ephemeral=True, sequence=True)
                transaction.create(f"{account}/active", holder_data(0, f"host-{number:03}", session), ephemeral=True)
                self.holders[name] = session
            pending.append(transaction.commit_async())
            if len(pending) >= 16:
                self._check(pending.pop(0))
        for one in pending:
            self._check(one)

    @staticmethod
    def _check(pending) -> None:
        failed = [result for result in pending.get(timeout=60) if isinstance(result, Exception)]
        if failed:
            sys.exit(f"an account could not be made: {failed[0]!r}")

    def token(self, name: str) -> dict:
        return token(0, self.holders[name])


class Line:
    """A kept connection that speaks HTTP/1.1 with as little work as possible; used by one thread."""

    def __init__(self, port: int):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""

    def send(self, account: str, headers: dict, body: bytes = b"{}") -> tuple[int, str]:
        """Sends and waits: status and verdict."""
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.socket.sendall(
            f"POST /wx/{account}/send HTTP/1.1\r\nHost: gateway\r\nContent-Length: {len(body)}\r\n{head}\r\n".encode() + body)
        while b"\r\n\r\n" not in self.rest:
            self._more()
        answer, self.rest = self.rest.split(b"\r\n\r\n", 1)
        text = answer.decode("latin-1")
        length = int(re.search(r"(?im)^content-length: *(\d+)", text)[1])
        while len(self.rest) < length:
            self._more()
        self.rest = self.rest[length:]
        verdict = re.search(r"(?im)^x-fencing-verdict: *([^\r\n]*)", text)
        return int(text.split(" ", 2)[1]), verdict[1] if verdict else ""

    def _more(self) -> None:
        piece = self.socket.recv(65536)
        if not piece:
            sys.exit("the gateway closed a connection early")
        self.rest += piece


def machine() -> str:
    """What the figures were taken on, in one line."""
    model = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    memory = int(re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())[1]) // 1024 // 1024
    return f"{os.cpu_count()} cores, {model[1] if model else 'unknown processor'}, {memory} GiB, Linux {os.uname().release}"


def commit() -> str:
    asked = subprocess.run(["git", "-C", str(HERE), "describe", "--always", "--dirty"], capture_output=True, text=True)
    return asked.stdout.strip() or "unknown"


def heading(options) -> None:
    """What every result begins with: machine, load, commit, command."""
    load = os.getloadavg()
    print(f"machine: {machine()}; load average before: {load[0]:.2f}")
    print(f"commit:  {commit()}; gateway: {os.path.basename(options.gateway)}, {os.path.getsize(options.gateway)} bytes")
    # Where things lie on the machine is nobody's business.
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv]
    print(f"command: {' '.join(words)}")
    print(f"date:    {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC\n", flush=True)
