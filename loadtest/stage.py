#!/usr/bin/env python3
"""Everything that load generators need, for as long as a command runs: a ZooKeeper server, a sender that watches epochs, the
gateway, accounts that are held, and one account that is handed over again and again.

    python3 loadtest/stage.py k6 run loadtest/k6/send.js

The command finds in its environment:

    LOAD_URL, LOAD_ADMIN          the gateway's listeners
    LOAD_URLS, LOAD_ACCOUNTS      a file with a URL for each held account, and how many there are: wxid_0000000 and on
    LOAD_HANDOVER_ACCOUNT         the account that is handed over, between the two instances below
    LOAD_HOLDER_SEQ, _SESSION     the token of the instance that holds all accounts
    LOAD_STALE_SEQ, _SESSION      the token of the instance that held them before

Afterwards it says what reached the sender, and fails if an epoch went back there or the command failed.
"""

import argparse
import os
import subprocess
import sys
import threading

import kit

HANDOVER_ACCOUNT = "wxid_handover"


class Pair:
    """Two instances that are candidates of every account; the second one holds them all, the first one held them before."""

    def __init__(self, zookeeper: kit.ZooKeeper, count: int):
        self.names = [*(f"wxid_{number:07}" for number in range(count)), HANDOVER_ACCOUNT]
        self.clients = [zookeeper.session(), zookeeper.session()]
        self.sessions = [client.client_id[0] for client in self.clients]
        self.clients[0].ensure_path(kit.ROOT)
        for seq, client in enumerate(self.clients):
            for start in range(0, len(self.names), 50):
                transaction = client.transaction()
                for name in self.names[start:start + 50]:
                    if seq == 0:
                        transaction.create(f"{kit.ROOT}/{name}")
                        transaction.create(f"{kit.ROOT}/{name}/members")
                    transaction.create(f"{kit.ROOT}/{name}/members/m-", b"{}", ephemeral=True, sequence=True)
                    if seq == 1:
                        transaction.create(f"{kit.ROOT}/{name}/active", self.data(1), ephemeral=True)
                failed = [result for result in transaction.commit() if isinstance(result, Exception)]
                if failed:
                    sys.exit(f"an account could not be made: {failed[0]!r}")

    def data(self, which: int) -> bytes:
        return kit.holder_data(which, ("host-a", "host-b")[which], self.sessions[which])

    def hand_over(self, every: float, stop: threading.Event) -> None:
        """One after the other takes the account and loses it. Its token stays what it was: only the epoch tells its terms
        apart, so that a load generator with one token sees the beginning and the end of many."""
        active, holding = f"{kit.ROOT}/{HANDOVER_ACCOUNT}/active", 1
        while not stop.wait(every):
            self.clients[holding].delete(active)
            holding = 1 - holding
            self.clients[holding].create(active, self.data(holding), ephemeral=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gateway", default=kit.default_gateway(), help="the binary to measure")
    parser.add_argument("--accounts", type=int, default=1000)
    parser.add_argument("--handover-ms", type=int, default=200, help="the time between two handovers")
    parser.add_argument("--upstream", help="another sender's URL, which is then not asked what it saw")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.command:
        parser.error("no command to run")
    kit.heading(options)

    with kit.ZooKeeper() as zookeeper, kit.Sender() as sender:
        pair = Pair(zookeeper, options.accounts)
        upstream = options.upstream or sender.url
        with kit.Gateway(options.gateway, zookeeper.connect, upstream) as gateway:
            gateway.start().wait_until_ready()
            status = run(options, gateway, pair)
            resident, most = gateway.memory_mb()
            print(f"\ngateway: {gateway.cpu_seconds():.1f} s of CPU, {resident:.0f} MB resident, {most:.0f} MB at most")
        counts = sender.counts()
    if options.upstream:
        return status
    print(f"sender: {counts['sends']} sends, {counts['stale']} with an epoch that was over, {counts['unnamed']} without one")
    return status or int(counts["stale"] + counts["unnamed"] > 0)


def run(options, gateway: kit.Gateway, pair: Pair) -> int:
    urls = gateway.folder / "urls"
    base = f"http://127.0.0.1:{gateway.proxy}"
    urls.write_text("".join(f"{base}/wx/{name}/send\n" for name in pair.names[:-1]))
    environment = {
        "LOAD_URL": base, "LOAD_ADMIN": f"http://127.0.0.1:{gateway.admin}",
        "LOAD_URLS": str(urls), "LOAD_ACCOUNTS": str(options.accounts), "LOAD_HANDOVER_ACCOUNT": HANDOVER_ACCOUNT,
        "LOAD_HOLDER_SEQ": "1", "LOAD_HOLDER_SESSION": str(pair.sessions[1]),
        "LOAD_STALE_SEQ": "0", "LOAD_STALE_SESSION": str(pair.sessions[0]),
    }
    stop = threading.Event()
    player = threading.Thread(target=pair.hand_over, args=(options.handover_ms / 1000, stop))
    player.start()
    try:
        return subprocess.run(options.command, env={**os.environ, **environment}).returncode
    finally:
        stop.set()
        player.join()


if __name__ == "__main__":
    sys.exit(main())
