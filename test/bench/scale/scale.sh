#!/usr/bin/env bash
# Measures all cases of test/bench/scale, one after the other, and leaves their tables in a file. 20 to 45 minutes on two
# cores. Data, up to 30 GB at a time, goes below $TMPDIR or /var/tmp.
#
#   test/bench/scale/scale.sh [FILE]
set -euo pipefail
cd "$(dirname "$0")/../../.."
out=${1:-scale.md}
: >"$out"
for case in records topics groups ids reading cleaning backup; do
  go run ./test/bench/scale -case "$case" | tee -a "$out"
done
