#!/usr/bin/env python3
"""What oha measured and what the gateway counted, as tables; used by `run.sh`. Exits 1 if a scenario had a verdict that it must
not have."""

import json
import re
import sys
from pathlib import Path

# An account that is handed over has a holder, has none, or has the other one.
ALLOWED = {
    "steady": {"admitted"},
    "storm": {"stale_token"},
    "handover": {"admitted", "stale_token", "not_holder", "no_holder", "superseded"},
}


def verdicts(path: Path) -> dict[str, int]:
    found = re.findall(r'^fencegate_requests_total\{verdict="(\w+)"\} (\d+)', path.read_text(), re.M)
    return {verdict: int(count) for verdict, count in found}


def main(folder: Path) -> int:
    wrong = []
    print(f"{'oha':12} {'answers/s':>10} {'p50 ms':>8} {'p90 ms':>8} {'p99 ms':>8} {'max ms':>8}  answers by status")
    for path in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime):
        told = json.loads(path.read_text())
        summary, parts = told["summary"], told["latencyPercentiles"]
        times = [parts["p50"], parts["p90"], parts["p99"], summary["slowest"]]
        statuses = ", ".join(f"{count}x {status}" for status, count in sorted(told["statusCodeDistribution"].items()))
        figures = " ".join(f"{1000 * (time or 0):8.2f}" for time in times)
        print(f"{path.stem:12} {summary['requestsPerSec']:10.0f} {figures}  {statuses}")
        if told["errorDistribution"]:
            wrong.append(f"{path.stem}: {told['errorDistribution']}")
    print(f"\n{'gateway':12} verdicts")
    for name, allowed in ALLOWED.items():
        before, after = verdicts(folder / f"{name}.before"), verdicts(folder / f"{name}.after")
        new = {verdict: count - before.get(verdict, 0) for verdict, count in after.items() if count > before.get(verdict, 0)}
        print(f"{name:12} " + ", ".join(f"{verdict} {count}" for verdict, count in sorted(new.items())))
        if not new or set(new) - allowed:
            wrong.append(f"{name}: only {', '.join(sorted(allowed))} may be there, and something must")
    print("\nwrong: " + "; ".join(wrong) if wrong else "\nall verdicts are as they must be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
