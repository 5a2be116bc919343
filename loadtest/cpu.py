#!/usr/bin/env python3
"""CPU time of one request, relative to HAProxy on the same machine in the same minute.

Gateway and HAProxy are sampled in adjacent pairs, each on cpu 0, with wrk and the sender (nginx, answering at once) on
cpu 1. Forwarded sends are held against HAProxy as a plain proxy, refusals (`--refuse`) against HAProxy that compares the
token with a map of the same accounts and denies. Needs haproxy, nginx and wrk.
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import kit

ACCOUNTS = 10_000
PROXY_CPU, LOAD_CPU = "0", "1"

NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr;
events {{ worker_connections 1024; }}
http {{ access_log off; keepalive_requests 100000000; client_body_temp_path {folder}; proxy_temp_path {folder};
  fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};
  server {{ listen 127.0.0.1:{port} backlog=1024; location / {{ return 200 '{{"sent":true}}'; }} }} }}
"""
HAPROXY = """
global
    maxconn 4096
    nbthread 1
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    timeout http-keep-alive 60s
    http-reuse always
frontend bots
    bind 127.0.0.1:{port}
{fence}    default_backend sender
backend sender
    server one 127.0.0.1:{sender}
"""
FENCE = r"""    http-request set-var(txn.holder) path,field(3,/),map_str({folder}/holders)
    acl holds req.hdr(x-fencing-seq),strcmp(txn.holder) eq 0
    http-request return status 409 content-type application/json string "{{\"code\":\"stale_token\"}}" unless holds
"""
WRK = """
local pool, at = {{}}, 0
function init()
  math.randomseed(7919)
  for i = 1, 4096 do
    local account = math.random(0, {accounts} - 1)
    pool[i] = wrk.format('POST', string.format('/wx/wxid_%07d/send', account), {{
      ['Host'] = 'gateway', ['Content-Type'] = 'application/json', ['X-Fencing-Seq'] = '{seq}',
      ['X-Fencing-Session'] = '{session}' }}, '{{"to":"wxid_other","text":"' .. string.rep('x', 170) .. '"}}')
  end
end
function request() at = at % #pool + 1 return pool[at] end
function done(summary, latency)
  io.write(string.format('DONE %d %d %d %d\\n', summary.requests, summary.duration, latency:percentile(50), latency:percentile(99)))
end
"""


class Bench(kit.Part):
    """What is measured, and what it is measured with."""

    def __init__(self, options):
        super().__init__("cpu")
        self.options = options
        self.started = []
        for tool in ("haproxy", "nginx", "wrk", "taskset"):
            if not shutil.which(tool):
                sys.exit(f"{tool} is missing: install it (Debian: apt-get install haproxy nginx-light wrk util-linux)")

    def run(self, name: str, cpu: str, command: list[str]) -> subprocess.Popen:
        part = kit.Part(name)
        part.spawn(["taskset", "-c", cpu, *command])
        self.started.append(part)
        return part

    def __exit__(self, *all_of_it):
        for part in self.started:
            part.__exit__()
        super().__exit__(*all_of_it)

    def sample(self, pid: int, port: int) -> tuple[float, float, int]:
        """CPU microseconds for each request, requests a second, and the p50 in microseconds."""
        def cpu() -> float:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        before = cpu()
        done = subprocess.run(
            ["taskset", "-c", LOAD_CPU, "wrk", "-t1", f"-c{self.options.connections}", f"-d{self.options.seconds}s", "-s",
             str(self.folder / "load.lua"), f"http://127.0.0.1:{port}"], capture_output=True, text=True, check=True)
        found = re.search(r"DONE (\d+) (\d+) (\d+) (\d+)", done.stdout)
        requests, duration, p50 = int(found[1]), int(found[2]), int(found[3])
        bad = re.search(r"Non-2xx or 3xx responses: (\d+)", done.stdout)
        refused = int(bad[1]) if bad else 0
        if refused != (requests if self.options.refuse else 0) and abs(refused - requests) > self.options.connections:
            sys.exit(f"{refused} of {requests} were refused")
        return (cpu() - before) * 1e6 / requests, requests / (duration / 1e6), p50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gateway", default=kit.default_gateway())
    parser.add_argument("--refuse", action="store_true", help="refusals instead of forwarded sends")
    parser.add_argument("--max-staleness", default="50ms")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=1)
    parser.add_argument("--connections", type=int, default=64)
    options = parser.parse_args()
    kit.heading(options)
    with Bench(options) as bench, kit.ZooKeeper() as zookeeper:
        accounts = kit.Accounts(zookeeper, ACCOUNTS)
        session = accounts.holders[accounts.names[0]]
        sender, haproxy = kit.free_port(), kit.free_port()
        (bench.folder / "nginx.conf").write_text(NGINX.format(folder=bench.folder, port=sender))
        (bench.folder / "holders").write_text("".join(f"{name} 0\n" for name in accounts.names))
        fence = FENCE.format(folder=bench.folder) if options.refuse else ""
        (bench.folder / "haproxy.cfg").write_text(HAPROXY.format(port=haproxy, sender=sender, fence=fence))
        (bench.folder / "load.lua").write_text(WRK.format(
            accounts=ACCOUNTS, seq=1 if options.refuse else 0, session=session))
        bench.run("nginx", LOAD_CPU, ["nginx", "-p", str(bench.folder), "-c", str(bench.folder / "nginx.conf"), "-e", "stderr"])
        peer = bench.run("haproxy", PROXY_CPU, ["haproxy", "-db", "-f", str(bench.folder / "haproxy.cfg")])
        extra = f'[freshness]\nmax_staleness = "{options.max_staleness}"\n'
        with kit.Gateway(options.gateway, zookeeper.connect, f"http://127.0.0.1:{sender}", extra=extra) as gateway:
            os.sched_setaffinity(0, {int(PROXY_CPU)})
            gateway.start()
            os.sched_setaffinity(0, range(os.cpu_count()))
            gateway.wait_until_ready()
            both = ((gateway.process.pid, gateway.proxy), (peer.process.pid, haproxy))
            for _, port in both:
                kit.wait_until("it listens", lambda: kit.listens(port))
            pairs = [[bench.sample(pid, port) for pid, port in both] for _ in range(options.pairs)]
    what = "refusals" if options.refuse else "forwarded sends"
    ratios = [ours[0] / theirs[0] for ours, theirs in pairs]
    low, _, high = statistics.quantiles(ratios, n=4)
    print(f"{what}, max_staleness {options.max_staleness}, {options.connections} connections, {options.pairs} pairs\n")
    print("| proxy | CPU µs a request | requests/s | p50 µs |\n|---|---|---|---|")
    for number, name in enumerate(("fencegate", "haproxy")):
        middle = [statistics.median(pair[number][part] for pair in pairs) for part in range(3)]
        print(f"| {name} | {middle[0]:.1f} | {middle[1]:.0f} | {middle[2]:.0f} |")
    print(f"\nCPU relative to HAProxy: {statistics.median(ratios):.2f} (quartiles {low:.2f}–{high:.2f})")


if __name__ == "__main__":
    main()
