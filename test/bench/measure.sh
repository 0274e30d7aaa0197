#!/usr/bin/env bash
# Measures what docs/performance.md reports beside the rates of single publishes: batches, reads, latency, starts,
# memory, and what a snapshot costs publishers. About 6 minutes. Data goes below $TMPDIR or /var/tmp.
#
#   test/bench/measure.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=$(mktemp -d "${TMPDIR:-/var/tmp}/mq-measure-XXXXXX")
pid=
trap '[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
go build -o "$dir/mqd" ./cmd/mqd
go build -o "$dir/mq" ./cmd/mq
go build -o "$dir/loopback" ./test/bench/loopback
url=http://127.0.0.1:18073
export MQ_URL=$url MQ_ADMIN_TOKEN=bench
mq() { "$dir/mq" "$@"; }
start() { "$dir/mqd" -listen 127.0.0.1:18073 -data "$dir/data" 2>>"$dir/mqd.log" & pid=$!; for _ in $(seq 1000); do curl -sf "$url/readyz" >/dev/null && return; sleep 0.01; done; exit 1; }
stop() { kill -9 "$pid"; wait "$pid" 2>/dev/null || true; pid=; }
pss() { awk '/^Pss:/ { printf "%.1f MB\n", $2 / 1000 }' "/proc/$pid/smaps_rollup"; }
# Starts mqd and prints the milliseconds until the first publish was acknowledged. (Not in a subshell: it sets pid.)
first_publish() {
  local from to
  from=$(date +%s%N)
  "$dir/mqd" -listen 127.0.0.1:18073 -data "$dir/data" 2>>"$dir/mqd.log" & pid=$!
  until curl -sf -d '{"topic":"first","value":"YQ=="}' "$url/v1/publish" >/dev/null; do :; done
  to=$(date +%s%N)
  echo "start after kill -9 to the first acknowledged publish: $(((to - from) / 1000000)) ms"
}

echo "== batches of 32, 16 producers; latency"
start
mq bench publish -p 16 -b 32 -s 100,1024 -d 4s
mq bench latency -s 100 -d 4s

echo "== publishers' p99 without and with snapshots, one every 100 ms, 64 producers"
for round in 1 2 3; do
  mq bench publish -p 64 -s 100 -d 4s -o json | sed 's/.*"p99_us":\([0-9.]*\).*/without: p99 \1 us/'
  (while :; do curl -s -X POST -H 'Authorization: Bearer bench' "$url/v1/snapshot" >/dev/null; sleep 0.1; done) & loop=$!
  mq bench publish -p 64 -s 100 -d 4s -o json | sed 's/.*"p99_us":\([0-9.]*\).*/with:    p99 \1 us/'
  kill $loop; wait $loop 2>/dev/null || true
done
stop; rm -rf "$dir/data"

echo "== 64 KiB records: payload MB/s, on the wire 4/3 of that, and what loopback moves"
start
mq bench fetch -s 65536 --fill 16000 --topic big >/dev/null
for round in 1 2 3; do
  mq bench fetch -s 65536 --topic big --full -o json | sed 's/.*"megabytes_per_second":\([0-9.]*\).*/\1/' |
    awk -v l="$("$dir/loopback")" '{ printf "payload %.0f, wire %.0f, loopback %.0f, ratio %.2f\n", $1, $1 * 4 / 3, l, $1 * 4 / 3 / l }'
done
stop; rm -rf "$dir/data"

for records in 1000000 10000000; do
  echo "== $records records of 100 B"
  start
  mq bench fetch -s 100 --fill "$records" --topic stored --full
  stop
  for round in 1 2 3 4 5; do first_publish; sleep 1; [ $round = 5 ] || stop; done
  echo "memory (PSS) idle after the restart: $(pss)"
  mq bench fetch -s 100 --topic stored --full >/dev/null
  echo "memory (PSS) after reading all: $(pss)"
  stop; rm -rf "$dir/data"
done

echo "== 1000000 records of 100 B, published one by one"
start
mq bench publish -p 256 -s 100 -d 25s --warmup 0s --topic singles
stop
for round in 1 2 3; do first_publish; sleep 1; [ $round = 3 ] || stop; done
echo "memory (PSS) idle after the restart: $(pss)"
