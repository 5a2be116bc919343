#!/usr/bin/env bash
# Tries many orders of the planes' threads, optimised but with every assertion on.
#
#   tests/interleave.sh [ORDERS [SEED]]      a hundred thousand of each scenario, drawn from the clock unless told otherwise
#
# A failure prints the schedule that replays it (CONTRIBUTING.md).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export INTERLEAVINGS=${1:-100000} INTERLEAVINGS_SEED=${2:-$(date +%s)}
echo "INTERLEAVINGS=$INTERLEAVINGS INTERLEAVINGS_SEED=$INTERLEAVINGS_SEED"
export CARGO_PROFILE_TEST_OPT_LEVEL=2 CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/simulate
exec cargo test --locked --features interleavings --test interleavings -- --skip every_race --nocapture
