#!/usr/bin/env bash
# A cluster of three nodes on this machine: how soon a killed node with many records serves again, how fast an empty node
# fetches the log while others publish, what a record costs in syncs and processor time.
#
#   test/bench/cluster_catchup.sh [megabytes]      default: a log of 2000 MB; about 4 minutes
#
# Data goes to a folder below $TMPDIR or /var/tmp, which must be on a real disk with 12 GB free.
set -euo pipefail
cd "$(dirname "$0")/../.."
megabytes=${1:-2000}
dir=$(mktemp -d "${TMPDIR:-/var/tmp}/mq-catchup-XXXXXX")
pids=() alone=
trap 'kill -9 "${pids[@]}" $alone 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
go build -o "$dir/mqd" ./cmd/mqd
go build -o "$dir/mq" ./cmd/mq
echo bench >"$dir/token"
base=18100
url() { echo "http://127.0.0.1:$((base + $1))"; }
peers=$(url 0),$(url 1),$(url 2)
start() {
  "$dir/mqd" -role cluster -listen "127.0.0.1:$((base + $1))" -data "$dir/$1" -raft-peers "$peers" -raft-self "$1" -raft-token-file "$dir/token" 2>>"$dir/log-$1" &
  pids[$1]=$!
}
well() { until "$dir/mq" cluster status -u "$peers" --raft-token-file "$dir/token" >"$dir/status" 2>&1; do sleep 0.05; done; }
leader() { curl -s -H "X-Raft-Token: bench" "$(url "$1")/raft/role" | sed 's/.*"leader":"http:..127.0.0.1:\([0-9]*\)".*/\1/'; }
now() { date +%s%N; }
since() { echo $((($(now) - $1) / 1000000)) ms; }
publish() { "$dir/mq" bench publish -u "$peers" -s "$1" -p "$2" -b "$3" -d "$4" --warmup 200ms -o json; }
field() { sed "s/.*\"$1\":\([0-9.]*\).*/\1/"; }
metric() { curl -s "$1/metrics" | awk -v m="$2" '$1 == m { printf "%.0f", $2 }'; }
ticks() { awk '{ print $14 + $15 }' "/proc/$1/stat"; } # of 10 ms

echo "== what a record costs, 64 producers of 100 bytes: this cluster, and a standalone node"
for i in 0 1 2; do start $i; done
well
"$dir/mqd" -listen "127.0.0.1:$((base + 9))" -data "$dir/alone" 2>>"$dir/log-alone" & alone=$!
until curl -sf "$(url 9)/readyz" >/dev/null; do sleep 0.1; done
cost() { # name, urls, pids...
  local name=$1 urls=$2 before=0 after=0 syncs=0 first records
  shift 2
  for p in "$@"; do before=$((before + $(ticks "$p"))); done
  for u in ${urls//,/ }; do syncs=$(($(metric "$u" mq_log_sync_seconds_count) + syncs)); done
  first=$(metric "${urls%%,*}" mq_published_records_total)
  "$dir/mq" bench publish -u "$urls" -s 100 -p 64 -d 5s --warmup 1ms -o json >/dev/null
  for p in "$@"; do after=$((after + $(ticks "$p"))); done
  local more=0
  for u in ${urls//,/ }; do more=$(($(metric "$u" mq_log_sync_seconds_count) + more)); done
  sleep 0.3 # the last commit index is on its way to the followers
  records=$(($(metric "${urls%%,*}" mq_published_records_total) - first))
  awk -v n="$name" -v r="$records" -v c=$((after - before)) -v s=$((more - syncs)) \
    'BEGIN { printf "%s: %d records, %.1f us of processor time a record, %d syncs a second on all nodes, %.3f syncs a record\n", n, r, c * 10000 / r, s / 5, s / r }'
}
cost "cluster" "$peers" "${pids[@]}"
cost "standalone" "$(url 9)" "$alone"
kill -9 $alone; wait $alone 2>/dev/null || true; alone=

echo "== a killed node with more than a million records"
while [ "$(metric "$(url 0)" mq_published_records_total)" -lt 1200000 ]; do publish 100 16 32 3s >/dev/null; done
well
for round in 1 2 3; do
  l=$(leader 0) f=$(((l - base + 1) % 3))
  kill -9 "${pids[$f]}"; wait "${pids[$f]}" 2>/dev/null || true
  t=$(now); start $f
  until curl -sf "$(url $f)/readyz" >/dev/null; do sleep 0.01; done
  echo "follower: serves $(since "$t") after its start"
done

echo "== an empty node fetches a log of $megabytes MB while 16 producers publish"
while [ "$(du -sm "$dir/0/log" | cut -f1)" -lt "$megabytes" ]; do publish 65536 16 1 2s >/dev/null; done
well
echo "p99 of the publishers before: $(publish 100 16 1 5s | field p99_us) us"
l=$(leader 0) f=$(((l - base + 1) % 3))
kill -9 "${pids[$f]}"; wait "${pids[$f]}" 2>/dev/null || true
rm -rf "${dir:?}/$f"
: >"$dir/log-$f"
publish 100 16 1 8s >"$dir/during" &
during=$!
sleep 1
t=$(now); start $f
until grep -q "whole again" "$dir/log-$f"; do sleep 0.02; done
took=$((($(now) - t) / 1000000))
wait $during
size=$(du -sm "$dir/$f/log" | cut -f1)
echo "fetched $size MB in $took ms: $((size * 1000 / took)) MB/s; p99 of the publishers meanwhile: $(field p99_us <"$dir/during") us"
well
sync
for _ in 1 2 3; do
  t=$(now); dd if=/dev/zero of="$dir/dd" bs=4M count=$((megabytes / 4)) conv=fdatasync 2>/dev/null
  ms=$((($(now) - t) / 1000000)); echo "dd writes $megabytes MB in $ms ms: $((megabytes * 1000 / ms)) MB/s"; rm "$dir/dd"
done
