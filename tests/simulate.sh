#!/usr/bin/env bash
# Tries many worlds of the simulation, optimised but with every assertion on.
#
#   tests/simulate.sh [SEEDS [FIRST]]      a million from 0 on, unless told otherwise
#
# SIM_STEPS says how long each world is. Ends at the first world in which something does not hold, and prints the command
# that replays it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export SIM_SEEDS=${1:-1000000} SIM_FIRST=${2:-0}
export CARGO_PROFILE_TEST_OPT_LEVEL=2 CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/simulate
exec cargo test --locked --test simulation i1 -- --nocapture
