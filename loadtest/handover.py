#!/usr/bin/env python3
"""How soon a new holder sends: from the commit of its `/active` to its first admitted send, over many handovers, while the old
holder, which does not know, goes on sending.

    python3 loadtest/handover.py                          # 1,000 handovers, exits 1 where a limit is missed
    python3 loadtest/handover.py --handovers 50 --no-limits

The old holder's `active` and candidate are deleted in one transaction, as when its session ends; the successor creates its own at
once, and sends as soon as ZooKeeper has answered. Two figures: from that answer (the commit is known), and from the sending of the
create (before the commit: includes ZooKeeper's own time, so it is the upper bound). Refused sends of the successor are
counted; none is expected. Each zombie has a connection of its own and sends without a pause.
"""

import argparse
import sys
import threading
import time

from kazoo.client import KazooClient

import kit

LIMIT_MS = 20.0


class Bot:
    """One instance with a session of its own."""

    def __init__(self, client: KazooClient, name: str):
        self.client, self.name, self.session = client, name, client.client_id[0]
        self.seqs: dict[str, int] = {}

    def stand(self, account: str) -> None:
        path = self.client.create(f"{kit.ROOT}/{account}/members/m-", b"{}", ephemeral=True, sequence=True, makepath=True)
        self.seqs[account] = int(path[-10:])

    def take(self, account: str) -> None:
        data = kit.holder_data(self.seqs[account], self.name, self.session)
        self.client.create(f"{kit.ROOT}/{account}/active", data, ephemeral=True)

    def lose(self, account: str) -> None:
        transaction = self.client.transaction()
        transaction.delete(f"{kit.ROOT}/{account}/members/m-{self.seqs[account]:010}")
        transaction.delete(f"{kit.ROOT}/{account}/active")
        failed = [result for result in transaction.commit() if isinstance(result, Exception)]
        if failed:
            sys.exit(f"no end of {self.name}: {failed}")

    def token(self, account: str) -> dict:
        return kit.token(self.seqs[account], self.session)


class Zombie:
    """Sends with the newest token that is over, without a pause."""

    def __init__(self, gateway: kit.Gateway):
        self.line = kit.Line(gateway.proxy)
        self.over: tuple[str, dict, float] | None = None
        self.verdicts: dict[str, int] = {}
        self.late = 0
        self.running = True
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while self.running:
            if not (over := self.over):
                time.sleep(0.001)
                continue
            account, token, since = over
            begun = time.monotonic()
            _, verdict = self.line.send(account, token)
            self.verdicts[verdict] = self.verdicts.get(verdict, 0) + 1
            # Begun after the deletion was answered: nothing may let it through.
            self.late += verdict == "admitted" and begun > since

    def stop(self) -> None:
        self.running = False
        self.thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gateway", default=kit.default_gateway(), help="the binary to measure")
    parser.add_argument("--handovers", type=int, default=1000)
    parser.add_argument("--accounts", type=int, default=20, help="that take turns")
    parser.add_argument("--no-limits", action="store_true", help="show the figures and judge none of them")
    options = parser.parse_args()
    kit.heading(options)
    sys.setswitchinterval(0.0005)  # the zombie's thread must not hold up the clock of the other

    with kit.ZooKeeper() as zookeeper, kit.Sender() as sender:
        bots = [Bot(zookeeper.session(), name) for name in ("host-a", "host-b")]
        names = [f"wxid_{number}" for number in range(options.accounts)]
        for name in names:
            bots[0].stand(name)
            bots[0].take(name)
        with kit.Gateway(options.gateway, zookeeper.connect, sender.url) as gateway:
            gateway.start().wait_until_ready()
            zombie = Zombie(gateway)
            try:
                known, sent, refused = play(options.handovers, names, bots, kit.Line(gateway.proxy), zombie)
            finally:
                zombie.stop()
            counts = sender.counts()

    print(f"{options.handovers} handovers of {options.accounts} accounts, one zombie that sends without a pause\n")
    print("new holder's first admitted send          p50 ms   p99 ms   max ms")
    for what, values in (("from the answer to its create", known), ("from the sending of its create", sent)):
        figures = (kit.percentile(values, 0.5), kit.percentile(values, 0.99), max(values))
        print(f"{what:38} " + " ".join(f"{1000 * figure:8.2f}" for figure in figures))
    print(f"\nnew holder's sends that were refused: {refused}")
    print("zombie's sends by verdict: " + ", ".join(f"{v} {c}" for v, c in sorted(zombie.verdicts.items())))
    print(f"of them admitted although begun after the term's end: {zombie.late}")
    print(f"sends that reached the sender with an epoch that was over: {counts['stale']} of {counts['sends']}")
    wrong = zombie.late or counts["stale"] or refused or counts["unnamed"]
    slow = not options.no_limits and 1000 * kit.percentile(sent, 0.99) > LIMIT_MS
    print("\nall held" if not (wrong or slow) else f"\nmissed: {'a send was judged wrongly' if wrong else f'p99 above {LIMIT_MS:g} ms'}")
    return 1 if wrong or slow else 0


def play(handovers: int, names: list[str], bots: list[Bot], line: kit.Line, zombie: Zombie):
    """Hands over again and again: both durations of each in seconds, and how many sends of a new holder were refused."""
    known, sent, refused = [], [], 0
    holding = dict.fromkeys(names, 0)
    for number in range(handovers):
        name = names[number % len(names)]
        old, new = bots[holding[name]], bots[1 - holding[name]]
        new.stand(name)
        before = old.token(name)
        line.send(name, before)  # the old holder's last send; it has ended before the handover
        old.lose(name)
        zombie.over = (name, before, time.monotonic())
        asked = time.monotonic()
        new.take(name)
        answered = time.monotonic()
        while (verdict := line.send(name, new.token(name))[1]) != "admitted":
            refused += 1
            if refused > handovers:
                sys.exit(f"the new holder is refused again and again: {verdict}")
        admitted = time.monotonic()
        known.append(admitted - answered)
        sent.append(admitted - asked)
        holding[name] = 1 - holding[name]
    return known, sent, refused


if __name__ == "__main__":
    sys.exit(main())
