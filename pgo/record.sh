#!/usr/bin/env bash
# Records the profile that release builds are optimised with: forwarded sends, with a proof each and without, and refusals.
#
#   pgo/record.sh [PYTHON]
#
# To be run when the way of a request has changed, or the toolchain or a library on it. Takes some ten minutes. PYTHON has
# kazoo (loadtest/requirements.txt); loadtest/cpu.py needs haproxy, nginx and wrk.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${1:-python3}
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target/pgo"
target=$(cd "$target/pgo" && pwd)
raw=$target/raw

rustup component add llvm-tools
profdata=$(echo "$(rustc --print sysroot)"/lib/rustlib/*/bin/llvm-profdata)
rm -rf "$raw"
FENCEGATE_PGO=$raw CARGO_TARGET_DIR=$target cargo build --release --locked
# What building it has run is no load.
rm -rf "$raw"
for load in "--max-staleness 50ms" "--max-staleness 0ms" "--refuse"; do
    # shellcheck disable=SC2086
    "$python" loadtest/cpu.py --gateway "$target/release/fencegate" --pairs 4 --seconds 2 $load
done
# Sparse: what no load has run is optimised as ever, instead of as if it never ran.
"$profdata" merge --sparse -o pgo/fencegate.profdata "$raw"
ls -l pgo/fencegate.profdata
