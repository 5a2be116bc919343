#!/usr/bin/env bash
# Loads a gateway with oha and prints what came of it, as a table: steady sends, a storm of stale ones, sends while their
# account is handed over again and again.
#
#   loadtest/run.sh [--gateway BINARY] [--accounts N] …     the options of stage.py
#
# SECONDS_EACH (10) and CONNECTIONS (32) size it. Needs oha (`cargo install oha`, or its release on
# https://github.com/hatoo/oha), and what README.md lists.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}

if [ -z "${LOAD_URL:-}" ]; then
    command -v oha >/dev/null || { echo "there is no oha: cargo install oha, or https://github.com/hatoo/oha/releases" >&2; exit 1; }
    exec "$python" "$here/stage.py" "$@" "$here/run.sh"
fi

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# one NAME CONNECTIONS SEQ SESSION URL…: one oha with one token
one() {
    local name=$1 connections=$2 seq=$3 session=$4
    shift 4
    oha --no-tui --output-format json -z "${SECONDS_EACH:-10}s" -w -c "$connections" -m POST -T application/json \
        -d '{"to":"wxid_2","text":"hello"}' -H "X-Fencing-Seq: $seq" -H "X-Fencing-Session: $session" "$@" \
        >"$results/$name.json"
}

# scenario NAME COMMAND…: with what the gateway counted before and after
scenario() {
    local name=$1
    shift
    curl -sf "$LOAD_ADMIN/metrics" >"$results/$name.before"
    "$@"
    curl -sf "$LOAD_ADMIN/metrics" >"$results/$name.after"
}

steady() { one steady "${CONNECTIONS:-32}" "$LOAD_HOLDER_SEQ" "$LOAD_HOLDER_SESSION" --urls-from-file "$LOAD_URLS"; }
storm() { one storm "${CONNECTIONS:-32}" "$LOAD_STALE_SEQ" "$LOAD_STALE_SESSION" --urls-from-file "$LOAD_URLS"; }
handover() {
    local url=$LOAD_URL/wx/$LOAD_HANDOVER_ACCOUNT/send other
    one handover-a 8 "$LOAD_STALE_SEQ" "$LOAD_STALE_SESSION" "$url" &
    other=$!
    one handover-b 8 "$LOAD_HOLDER_SEQ" "$LOAD_HOLDER_SESSION" "$url"
    wait "$other"
}

scenario steady steady
scenario storm storm
scenario handover handover
"$python" "$here/table.py" "$results"
