#!/bin/sh
# Has testssl.sh look at every kind of listener that speaks TLS: protocols, ciphers, known weaknesses. It takes some minutes, and
# fails on anything that it finds of medium severity or more.
#
#     cargo build && tests/testssl.sh        # needs testssl.sh and openssl (apt-get install testssl.sh)
set -eu
cd "$(dirname "$0")/.."
program=$(pwd)/${CARGO_TARGET_DIR:-target}/debug/fencegate
case ${CARGO_TARGET_DIR:-} in /*) program=$CARGO_TARGET_DIR/debug/fencegate ;; esac
testssl=$(command -v testssl || command -v testssl.sh) || { echo "no testssl.sh: apt-get install testssl.sh" >&2; exit 1; }

folder=$(mktemp -d)
started=
trap 'kill $started 2>/dev/null || true; rm -rf "$folder"' EXIT INT TERM
ports=$(python3 - <<'PYTHON'
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(5)]
print(*(one.getsockname()[1] for one in sockets))
PYTHON
)
set -- $ports
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost \
    -addext "subjectAltName = DNS:localhost,IP:127.0.0.1" -keyout "$folder/tls.key" -out "$folder/tls.pem" 2>"$folder/openssl.log"
route='[[route]]
path = "/wx/{account}/{*rest}"
account = "path:account"'
cat >"$folder/gateway.toml" <<TOML
[listen]
proxy = "127.0.0.1:$1"
admin = "127.0.0.1:$2"
elections = "127.0.0.1:$3"
[listen.tls]
cert = "$folder/tls.pem"
key = "$folder/tls.key"
[coordination]
state = "$folder/state"
$route
upstream = "http://127.0.0.1:9"
TOML
cat >"$folder/agent.toml" <<TOML
[agent]
listen = "127.0.0.1:$4"
admin = "127.0.0.1:$5"
gateway = "http://127.0.0.1:$1"
accounts = ["wxid_1"]
[agent.tls]
cert = "$folder/tls.pem"
key = "$folder/tls.key"
[zookeeper]
connect = "127.0.0.1:9"
$route
TOML
"$program" serve --config "$folder/gateway.toml" 2>"$folder/gateway.log" &
started=$!
"$program" agent --config "$folder/agent.toml" 2>"$folder/agent.log" &
started="$started $!"

bad=0
for listener in "proxy $1" "admin $2" "elections $3" "agent-listen $4" "agent-admin $5"; do
    name=${listener% *} port=${listener#* }
    until openssl s_client -connect "127.0.0.1:$port" </dev/null >/dev/null 2>&1; do
        kill -0 $started || { cat "$folder"/*.log >&2; exit 1; }
    done
    found=$folder/$name.csv
    "$testssl" --quiet --color 0 --warnings off --severity MEDIUM -p -s -f -P -U --csvfile "$found" "127.0.0.1:$port" \
        >"$folder/$name.txt" 2>&1 || true
    if ! grep -q "TLS 1.3 .*offered" "$folder/$name.txt"; then
        echo "$name: testssl.sh did not look:"; cat "$folder/$name.txt"; bad=1
    elif [ "$(wc -l <"$found")" -gt 1 ]; then
        echo "$name:"; cat "$found"; bad=1
    else
        echo "$name: good"
    fi
done
exit $bad
