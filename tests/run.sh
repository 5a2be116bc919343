#!/usr/bin/env bash
# Runs every check of this repository on a machine that has a Rust toolchain, and installs what else they need.
#
#   tests/run.sh
#
# The tests start real ZooKeeper servers: Java and ZooKeeper's jar are installed from Debian's packages where they are
# missing (nothing is started as a service), and so are HAProxy and nginx, which parse beside the gateway, and a browser without a
# window, for the live page. The load programs run small against the release build. Where python3
# has no kazoo, it comes from an environment below the target folder. Where the conformance suite lies beside the repository (../shared/conformance), it
# runs against the release build as well, with pytest from the same environment.
# Where nothing may be installed, it says what to install and ends. CARGO_TARGET_DIR and ZOOKEEPER_CLASSPATH are
# respected.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target/checks"
target=$(cd "$target" && pwd)
logs=$target/checks
suite=../shared/conformance
jar=/usr/share/java/zookeeper.jar
step="preparation"

fail() {
    printf '\nFAILED: %s\n' "$*" >&2
    exit 1
}

trap 'status=$?; [ "$status" -eq 0 ] || printf "\nFAILED at: %s (exit status %s)\n" "$step" "$status" >&2' EXIT

# run NAME COMMAND…: one step with its heading, its duration, and its output kept for the summary
run() {
    step=$1
    shift
    local log="$logs/${step//[^a-z0-9]/-}.log" begun=$SECONDS status=0
    printf '\n=== %s\n' "$step"
    # not as part of a condition: there, a failing line inside a function would not end it
    set +e
    (set -e && "$@") 2>&1 | tee "$log"
    status=$?
    set -e
    [ "$status" -eq 0 ] || exit "$status"
    printf '=== %s: passed in %s s\n' "$step" "$((SECONDS - begun))"
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

may_install() {
    command -v apt-get >/dev/null && { [ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null; }
}

has_java() { command -v java >/dev/null && java -version >/dev/null 2>&1; }
has_zookeeper() { [ -n "${ZOOKEEPER_CLASSPATH:-}" ] || [ -e "$jar" ]; }
has_browser() {
    local browser
    for browser in "${CHROMIUM:-}" chromium-headless-shell chromium chromium-browser google-chrome; do
        if command -v "$browser" >/dev/null; then return; fi
    done
    return 1
}
has_kazoo() { python3 -c 'import kazoo' 2>/dev/null; }
has_venv() { python3 -c 'import ensurepip, venv' 2>/dev/null; }

stop_service() {
    if [ -d /run/systemd/system ]; then
        as_root systemctl disable --now "$1" >/dev/null 2>&1 || true
    else
        as_root service "$1" stop >/dev/null 2>&1 || true
    fi
}

install_missing() {
    local missing=()
    command -v cc >/dev/null || missing+=(gcc libc6-dev)
    has_java || missing+=(default-jre-headless)
    command -v openssl >/dev/null || missing+=(openssl)
    command -v curl >/dev/null || missing+=(curl)
    has_zookeeper || missing+=(zookeeper)
    has_browser || missing+=(chromium-headless-shell)
    command -v haproxy >/dev/null || missing+=(haproxy)
    command -v nginx >/dev/null || missing+=(nginx-light)
    command -v python3 >/dev/null || missing+=(python3)
    has_venv || ! may_install || missing+=(python3-venv) # without it plain pip will do
    if [ "${#missing[@]}" -eq 0 ]; then
        echo "Everything is there."
        return
    fi
    may_install || fail "these are missing and cannot be installed from here: ${missing[*]}
Install them (Debian: apt-get install ${missing[*]}) and run this again."
    echo "Installing: ${missing[*]}"
    local options=(-qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
    as_root apt-get "${options[@]}" update
    as_root env DEBIAN_FRONTEND=noninteractive apt-get "${options[@]}" install -y --no-install-recommends "${missing[@]}"
    # Their packages start them; the tests start their own.
    local service
    for service in haproxy nginx; do
        case " ${missing[*]} " in *" $service"*) stop_service "$service" ;; esac
    done
    has_java || fail "java does not run after its installation: install a Java runtime"
    has_browser || fail "there is still no browser: install Chromium, or set CHROMIUM to its path"
    has_zookeeper || fail "$jar is still missing: install ZooKeeper, or set ZOOKEEPER_CLASSPATH"
}

# Prints the python that has what a file of requirements asks for. A fresh environment where Python can make one; else
# plain pip, which some systems refuse.
python_with() {
    local python=$target/venv/bin/python
    if has_venv; then
        "$python" -m pip --version >/dev/null 2>&1 || python3 -m venv --clear "$target/venv" >&2
    else
        python=$(command -v python3)
    fi
    "$python" -m pip install -q --disable-pip-version-check -r "$1" >&2 ||
        fail "pip cannot install what $1 lists: install it and run this again"
    echo "$python"
}

conformance() {
    local python
    python=$(python_with "$suite/requirements.txt")
    (
        cd "$suite"
        FENCEGATE=$target/release/fencegate PYTHONDONTWRITEBYTECODE=1 "$python" -m pytest -q -p no:cacheprovider
    )
}

# The load programs, small, and without a word about time: that they run, and what holds on any machine.
load_programs() {
    local python
    python=$(python_with loadtest/requirements.txt)
    export FENCEGATE=$target/release/fencegate PYTHONDONTWRITEBYTECODE=1
    "$python" loadtest/scale.py --accounts 5000 --no-limits
    "$python" loadtest/handover.py --handovers 50 --no-limits
    "$python" loadtest/elections.py --accounts 500 --handovers 10 --kills 1 --restart-accounts 100 --no-limits
    "$python" loadtest/elections.py --embedded --accounts 500 --handovers 10 --kills 1 --restart-accounts 100 --no-limits
    "$python" loadtest/stage.py --accounts 100 true
    "$python" loadtest/exposed.py --slow 300 --sends 200 --no-limits
}

documentation() {
    RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --no-deps --locked --document-private-items
}

# Licences, sources and bans in any case; advisories where cargo-deny is there to fetch them.
supply_chain() {
    python3 supply/supply.py check
    if command -v cargo-deny >/dev/null; then
        cargo deny --locked check
    else
        echo "cargo-deny is not installed: advisories are not looked up (cargo install cargo-deny)"
    fi
}

command -v cargo >/dev/null || fail "there is no cargo: install a Rust toolchain (https://rustup.rs)"

run "what is needed" install_missing
# The tests ask whatever python3 is on the path for kazoo; a distribution's package serves the distribution's own python only.
if ! has_kazoo; then
    python=$(python_with loadtest/requirements.txt)
    export PATH=${python%/*}:$PATH
fi
run "format" cargo fmt --check
run "supply chain" supply_chain
run "lints" cargo clippy --all-targets --locked -- -D warnings
run "documentation" documentation
run "tests" cargo test --locked
run "mutants" cargo test --locked --features mutants --test mutants -- --nocapture
run "interleavings" cargo test --locked --features interleavings --test interleavings -- --nocapture
run "release build" cargo build --release --locked
run "load programs" load_programs
if [ -d "$suite" ]; then
    run "conformance" conformance
else
    printf '\n=== conformance: not run, there is no %s\n' "$suite"
fi

step="summary"
printf '\n=== all passed in %s s\n' "$SECONDS"
grep -E '^ +(Running|Doc-tests) |^test result:' "$logs/tests.log"
grep -h '^mutant ' "$logs/mutants.log" "$logs/interleavings.log" | cut -c 1-200
if [ -d "$suite" ]; then
    tail -n 1 "$logs/conformance.log"
fi
