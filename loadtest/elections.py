#!/usr/bin/env python3
"""How soon agents lead: many accounts on one instance, a graceful handover, an instance that dies, a service that restarts.

    python3 loadtest/elections.py                         # exits 1 where a limit is missed
    python3 loadtest/elections.py --embedded              # the gateway keeps the elections itself, instead of ZooKeeper
    python3 loadtest/elections.py --accounts 200 --handovers 10 --kills 1 --restart-accounts 50 --no-limits

- cold start: from the start of an agent's process until it leads all accounts of its list, none of which exists yet
- the other's end: from SIGTERM to the agent that leads them all until another one does
- handover: from SIGTERM to the agent that leads one account to the successor's first admitted send; a bot sends to the
  successor without a pause meanwhile
- kill -9: from the kill until the successor leads, with sessions of --timeout seconds; ZooKeeper ends sessions at multiples of its
  tick, so with a tick of two seconds, as Debian sets it, it takes up to one second longer than with one of a second
- ZooKeeper (or the gateway) killed and started again under two agents: until every account is led again; then the candidates are
  counted
What ZooKeeper's disk needs for each write (fsync) is in all of these figures.
"""

import argparse
import contextlib
import re
import signal
import sys
import time

import kit

COLD_S, END_S, HANDOVER_MS, KILL_EXTRA_S = 10.0, 10.0, 50.0, 1.0


class InZooKeeper:
    """Elections that ZooKeeper holds."""

    def __init__(self, zookeeper: kit.ZooKeeper):
        self.zookeeper, self.name = zookeeper, "ZooKeeper"

    def section(self, timeout: int) -> str:
        return f'[zookeeper]\nconnect = "{self.zookeeper.connect}"\nsession_timeout = "{timeout}s"\n'

    def restart(self) -> None:
        self.zookeeper.restart()

    def candidates(self, names: list[str]) -> list[int]:
        client = self.zookeeper.session(30)
        counts = [len(client.get_children(f"{kit.ROOT}/{name}/members")) for name in names]
        client.stop()
        return counts


class InGateway:
    """Elections that the gateway keeps itself."""

    def __init__(self, gateway: kit.Gateway):
        self.gateway, self.name = gateway, "The gateway"

    def section(self, timeout: int) -> str:
        return (f'[coordination]\nbackend = "gateway"\nelections = "http://127.0.0.1:{self.gateway.elections}"\n'
                f'session_timeout = "{timeout}s"\n')

    def restart(self) -> None:
        self.gateway.restart()

    def candidates(self, names: list[str]) -> list[int]:
        return [len(kit.try_json(self.gateway.elections, f"/v1/elections/{name}")["candidates"]) for name in names]


class Agent(kit.Part):
    """The agent's binary."""

    def __init__(self, options, held, gateway: kit.Gateway, name: str, accounts: list[str]):
        super().__init__(name)
        self.binary, self.bots, self.admin = options.gateway, kit.free_port(), kit.free_port()
        self.config = self.folder / "agent.toml"
        listed = ", ".join(f'"{account}"' for account in accounts)
        self.config.write_text(
            f'[agent]\ninstance_id = "{name}"\nlisten = "127.0.0.1:{self.bots}"\nadmin = "127.0.0.1:{self.admin}"\n'
            f'gateway = "http://127.0.0.1:{gateway.proxy}"\naccounts = [{listed}]\n'
            f'{held.section(options.timeout)}'
            '[[route]]\npath = "/wx/{account}/{*rest}"\naccount = "path:account"\n')

    def start(self):
        self.spawn([self.binary, "agent", "--config", str(self.config)])
        return self

    def roles(self) -> dict[str, int]:
        """How many accounts have each role."""
        self.check()
        try:
            text = kit.call(self.admin, "GET", "/metrics")[2].decode()
        except OSError:
            return {}
        return {role: int(n) for role, n in re.findall(r'fencegate_agent_accounts\{role="(\w+)"\} (\d+)', text)}

    def has(self, role: str, count: int) -> bool:
        return self.roles().get(role) == count

    def wait_for(self, role: str, count: int, limit: float = 120) -> None:
        kit.wait_until(f"{self.name}: {count} accounts are {role}", lambda: self.has(role, count), limit)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


def many(options, held, gateway) -> tuple[float, float]:
    names = [f"many_{number:05}" for number in range(options.accounts)]
    with Agent(options, held, gateway, "many-a", names) as first, Agent(options, held, gateway, "many-b", names) as other:
        begun = time.monotonic()
        first.start().wait_for("LEADER", options.accounts)
        cold = time.monotonic() - begun
        other.start().wait_for("WAITING", options.accounts)
        begun = time.monotonic()
        first.signal(signal.SIGTERM)
        other.wait_for("LEADER", options.accounts)
        return cold, time.monotonic() - begun


def handovers(options, held, gateway) -> list[float]:
    took = []
    with Agent(options, held, gateway, "hand-a", ["hand"]) as one, Agent(options, held, gateway, "hand-b", ["hand"]) as two:
        leads, follows = one.start(), two
        leads.wait_for("LEADER", 1)
        for _ in range(options.handovers):
            follows.start().wait_for("WAITING", 1)
            line = kit.Line(follows.bots)
            line.send("hand", {})
            begun = time.monotonic()
            leads.signal(signal.SIGTERM)
            while line.send("hand", {})[1] != "admitted":
                pass
            took.append(time.monotonic() - begun)
            leads.process.wait()
            leads, follows = follows, leads
    return took


def kills(options, held, gateway) -> list[float]:
    took = []
    with Agent(options, held, gateway, "kill-a", ["kill"]) as one, Agent(options, held, gateway, "kill-b", ["kill"]) as two:
        leads, follows = one.start(), two
        leads.wait_for("LEADER", 1)
        for _ in range(options.kills):
            follows.start().wait_for("WAITING", 1)
            begun = time.monotonic()
            leads.signal(signal.SIGKILL)
            follows.wait_for("LEADER", 1)
            took.append(time.monotonic() - begun)
            leads.process.wait()
            leads, follows = follows, leads
    return took


def restart(options, held, gateway) -> tuple[float, int]:
    """How long until all are led again, and the most candidates that an account has then."""
    count = options.restart_accounts
    names = [f"restart_{number:05}" for number in range(count)]
    with Agent(options, held, gateway, "restart-a", names) as first, Agent(options, held, gateway, "restart-b", names) as other:
        first.start().wait_for("LEADER", count)
        other.start().wait_for("WAITING", count)
        begun = time.monotonic()
        held.restart()

        def settled() -> bool:
            one, two = first.roles(), other.roles()
            return all(one.get(role, 0) + two.get(role, 0) == count for role in ("LEADER", "WAITING"))

        kit.wait_until("every account is led again", settled, 120)
        took = time.monotonic() - begun
        return took, max(held.candidates(names))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gateway", default=kit.default_gateway(), help="the binary to measure")
    parser.add_argument("--embedded", action="store_true", help="elections that the gateway keeps itself")
    parser.add_argument("--accounts", type=int, default=5000)
    parser.add_argument("--handovers", type=int, default=100)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--restart-accounts", type=int, default=1000)
    parser.add_argument("--timeout", type=int, default=6, help="of sessions, in seconds")
    parser.add_argument("--tick-ms", type=int, default=1000, help="ZooKeeper's; it ends sessions at multiples of it")
    parser.add_argument("--no-limits", action="store_true", help="show the figures and judge none of them")
    options = parser.parse_args()
    kit.heading(options)

    service = contextlib.nullcontext() if options.embedded else kit.ZooKeeper(tick_ms=options.tick_ms)
    with service as zookeeper, kit.Sender() as sender:
        with kit.Gateway(options.gateway, zookeeper and zookeeper.connect, sender.url) as gateway:
            gateway.start().wait_until_ready()
            held = InZooKeeper(zookeeper) if zookeeper else InGateway(gateway)
            cold, end = many(options, held, gateway)
            print(f"{options.accounts} accounts on one session: all led {cold:.2f} s after a cold start,")
            print(f"    and {end:.2f} s after the other instance's SIGTERM", flush=True)
            handed = handovers(options, held, gateway)
            p50, p99, most = (1000 * value for value in (kit.percentile(handed, 0.5), kit.percentile(handed, 0.99), max(handed)))
            print(f"{options.handovers} handovers, SIGTERM to the successor's first admitted send: p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {most:.1f} ms", flush=True)
            killed = kills(options, held, gateway)
            if killed:
                print(f"{options.kills} kills -9, sessions of {options.timeout} s: the successor leads after {min(killed):.2f} to {max(killed):.2f} s", flush=True)
            back, candidates = restart(options, held, gateway)
            print(f"{held.name} killed and started again under {options.restart_accounts} accounts of two agents: all led again after {back:.2f} s,")
            print(f"    at most {candidates} candidates for an account")
            counts = sender.counts()

    print(f"sends that reached the sender with an epoch that was over: {counts['stale']} of {counts['sends']}")
    missed = [] if options.no_limits else [
        what for what, value, limit in (
            ("cold start", cold, COLD_S), ("the other's end", end, END_S), ("handover p99 ms", p99, HANDOVER_MS),
            ("kill -9", max(killed, default=0), options.timeout + KILL_EXTRA_S)) if value > limit]
    if counts["stale"]:
        missed.append("a stale send arrived")
    if candidates > 2:
        missed.append("an instance has two candidates")
    print("\nall held" if not missed else f"\nmissed: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
