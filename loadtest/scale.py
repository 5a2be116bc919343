#!/usr/bin/env python3
"""Many accounts in a real ZooKeeper: how soon the gateway is ready, how much memory it takes, and the same after its connection
was dropped while sends wait.

    python3 loadtest/scale.py                                    # 100,000 accounts, exits 1 where a limit is missed
    python3 loadtest/scale.py --accounts 5000 --no-limits        # whatever the machine: only what must hold anyway
"""

import argparse
import sys
import threading
import time

import kit

READY_S, AGAIN_S, WAITING_S, RESIDENT_MB = 3.0, 3.0, 1.0, 150.0


class Report:
    """Lines of figures, and which of them miss their limit."""

    def __init__(self, limits: bool):
        self.limits, self.missed = limits, []

    def figure(self, what: str, value: float, unit: str, limit: float | None = None) -> None:
        told = ""
        if limit is not None:
            told = f"(at most {limit:g})"
            if self.limits and value > limit:
                told += " MISSED"
                self.missed.append(what)
        print(f"{what:58} {value:9.3f} {unit} {told}", flush=True)

    def must(self, what: str, holds: bool) -> None:
        if not holds:
            print(f"{what}: NO")
            self.missed.append(what)


def waiting_sends(gateway: kit.Gateway, accounts: kit.Accounts, count: int, cut) -> list[tuple[float, int, str]]:
    """Begins sends for accounts all over the list, drops the connection under them, and returns when they were answered,
    with status and verdict."""
    names = accounts.names[::max(1, len(accounts.names) // count)][:count]
    answers: list[tuple[float, int, str]] = []
    lines = [kit.Line(gateway.proxy) for _ in names]

    def send(line: kit.Line, name: str) -> None:
        status, verdict = line.send(name, accounts.token(name))
        answers.append((time.time(), status, verdict))

    threads = [threading.Thread(target=send, args=pair) for pair in zip(lines, names)]
    cut()
    kit.wait_until("the gateway knows", lambda: gateway.lines("the view is unproven"), pause=0.001)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gateway", default=kit.default_gateway(), help="the binary to measure")
    parser.add_argument("--accounts", type=int, default=100_000)
    parser.add_argument("--waiting", type=int, default=50, help="sends that wait while the connection is dropped")
    parser.add_argument("--no-limits", action="store_true", help="show the figures and judge none of them")
    options = parser.parse_args()
    kit.heading(options)
    report = Report(not options.no_limits)

    with kit.ZooKeeper("2g") as zookeeper, kit.Sender() as sender:
        with kit.Gateway(options.gateway, zookeeper.connect, sender.url, root="/nothing-here") as empty:
            empty.start().wait_until_ready()
            base, _ = empty.memory_mb()
        begun = time.monotonic()
        accounts = kit.Accounts(zookeeper, options.accounts)
        print(f"{options.accounts} accounts of 4 znodes over {len(accounts.sessions)} sessions, "
              f"made in {time.monotonic() - begun:.0f} s\n")
        relay = kit.Relay(zookeeper.port)
        with kit.Gateway(options.gateway, relay.connect, sender.url) as gateway:
            measure(report, options, gateway, accounts, relay, base)
            report.must("no send with an epoch that was over", sender.counts()["stale"] == 0)
    print("\nmissed: " + "; ".join(report.missed) if report.missed else "\nall held")
    return 1 if report.missed else 0


def measure(report: Report, options, gateway: kit.Gateway, accounts: kit.Accounts, relay: kit.Relay, base: float) -> None:
    started = time.time()
    gateway.start().wait_until_ready()
    ready, cpu = time.time(), gateway.cpu_seconds()
    report.figure("ready, from the start of the process", ready - started, "s")
    report.figure("ready, from its connecting", ready - gateway.lines("connected to zookeeper")[0], "s", READY_S)
    report.figure("its CPU time until then", cpu, "s")
    resident, most = gateway.memory_mb()
    report.figure("resident without an account", base, "MB")
    report.figure("resident when ready", resident, "MB", RESIDENT_MB)
    report.figure("resident at most", most, "MB", RESIDENT_MB)
    report.figure("for each account", (resident - base) * 1024 * 1024 / max(1, options.accounts), "bytes")
    shown = gateway.json("/v1/view")
    report.must(f"all accounts are shown: {shown}", shown["accounts"] == options.accounts)

    print()
    answers = waiting_sends(gateway, accounts, options.waiting, relay.cut)
    kit.wait_until("everything is read again", lambda: len(gateway.lines("INFO all accounts are read")) == 2)
    [_, connected], [_, loaded] = gateway.lines("connected to zookeeper"), gateway.lines("INFO all accounts are read")
    lost = gateway.lines("the view is unproven")[0]
    report.figure("dropped: a new session after", connected - lost, "s")
    report.figure("all read again, from the reconnect", loaded - connected, "s", AGAIN_S)
    last = max(moment for moment, _, _ in answers)
    report.figure(f"the last of {len(answers)} waiting sends answered, from the reconnect", last - connected, "s", WAITING_S)
    early = sum(moment < loaded for moment, _, _ in answers)
    report.figure("of them before everything was read", early, "")
    report.must(f"all waiting sends admitted: {answers[:3]}", all(verdict == "admitted" for _, _, verdict in answers))
    resident, most = gateway.memory_mb()
    report.figure("resident afterwards", resident, "MB", RESIDENT_MB)
    report.figure("resident at most", most, "MB", RESIDENT_MB)
    shown = gateway.json("/v1/view")
    report.must(f"all accounts are shown again: {shown}", shown["accounts"] == options.accounts)


if __name__ == "__main__":
    sys.exit(main())
