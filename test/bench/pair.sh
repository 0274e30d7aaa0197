#!/usr/bin/env bash
# Compares a pair with a standalone node in one run: both nodes of the pair, the standalone node and the client share
# this machine and one disk, and are measured in turn. Then the full sync of a log of 2 GB, and what the disk can write.
#
#   test/bench/pair.sh [rounds] [seconds]      default: 5 rounds of 2 seconds; about 6 minutes. 0 rounds: the full sync only
#
# Data goes to a folder below $TMPDIR or /var/tmp, which must be on a real disk with 10 GB free.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-5} seconds=${2:-2}
dir=$(mktemp -d "${TMPDIR:-/var/tmp}/mq-pair-XXXXXX")
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
go build -o "$dir/mqd" ./cmd/mqd
go build -o "$dir/mq" ./cmd/mq
go build -o "$dir/twosyncs" ./test/bench/twosyncs
echo bench >"$dir/token"
mqd() { "$dir/mqd" "$@" 2>>"$dir/mqd.log" & pids+=($!); }
pair() { mqd -role "$1" -listen "127.0.0.1:$2" -data "$dir/$3" -replication-token-file "$dir/token" "${@:4}"; }
in_step() { until "$dir/mq" pair status -u "http://127.0.0.1:$1,http://127.0.0.1:$2" --replication-token-file "$dir/token" >"$dir/status" 2>&1; do sleep 0.1; done; }
stop_all() { kill "${pids[@]}"; wait "${pids[@]}" 2>/dev/null || true; pids=(); }

echo "== two syncs at once on this disk"
for _ in 1 2 3; do "$dir/twosyncs" "$dir"; done

if [ "$rounds" -gt 0 ]; then
mqd -listen 127.0.0.1:18081 -data "$dir/alone"
pair follower 18083 b
pair leader 18082 a -replica http://127.0.0.1:18083 -epoch 1
in_step 18082 18083
bench() { # port, producers, batch, figure
  "$dir/mq" bench publish -u "http://127.0.0.1:$1" -s 100 -p "$2" -b "$3" -d "${seconds}s" --warmup 300ms -o json |
    sed "s/.*\"$4\":\([0-9.]*\).*/\1/"
}
compare() { # producers, batch, figure
  for _ in $(seq "$rounds"); do
    for port in 18081 18082; do echo "$1 $2 $3 $port $(bench $port "$1" "$2" "$3")"; done
  done
}
echo "== rates and latency: the median of $rounds rounds of $seconds s each, 100 bytes"
{
  compare 1 1 p50_us
  compare 1 1 records_per_second
  compare 16 1 records_per_second
  compare 64 1 records_per_second
  compare 256 1 records_per_second
  compare 16 32 records_per_second
  compare 64 32 records_per_second
} | tee "$dir/figures" >&2
awk '
  { k = $1" "$2" "$3; v[k" "$4] = v[k" "$4] " " $5; if (!(k in seen)) { seen[k] = 1; order[++n] = k } }
  function median(list,   a, k, i, j, t) { k = split(list, a, " "); for (i = 2; i <= k; i++) for (j = i; j > 1 && a[j-1]+0 > a[j]+0; j--) { t = a[j]; a[j] = a[j-1]; a[j-1] = t } return a[int((k+1)/2)] }
  END { print "| producers | batch | figure | standalone | pair | ratio |\n| --- | --- | --- | --- | --- | --- |"
        for (i = 1; i <= n; i++) { split(order[i], o, " "); s = median(v[order[i]" 18081"]); p = median(v[order[i]" 18082"]);
          printf "| %d | %d | %s | %d | %d | %.2f |\n", o[1], o[2], o[3], s, p, p / s } }' "$dir/figures"
stop_all
rm -rf "$dir/alone" "$dir/a" "$dir/b"
fi

echo "== full sync of 2 GB, and what the disk writes"
mqd -listen 127.0.0.1:18081 -data "$dir/a"
until curl -sf http://127.0.0.1:18081/readyz >/dev/null; do sleep 0.1; done
"$dir/mq" bench fetch -u http://127.0.0.1:18081 -s 16384 --fill 130000 --topic big >/dev/null
stop_all
for _ in 1 2 3; do
  dd if=/dev/zero of="$dir/dd" bs=1M count=2048 conv=fdatasync 2>&1 | tail -1
  rm "$dir/dd"
  sync
  pair follower 18083 b
  pair leader 18082 a -replica http://127.0.0.1:18083 -epoch 1
  in_step 18082 18083
  awk '
    /full_sync=true/ && /follower=/ { split($1, t, "[T:Z]"); from = t[2] * 3600 + t[3] * 60 + t[4] }
    /full sync of the follower is complete/ { split($1, t, "[T:Z]"); to = t[2] * 3600 + t[3] * 60 + t[4]; sub(/.*bytes=/, ""); bytes = $0 }
    END { printf "full sync: %.0f MB in %.2f s, %.0f MB/s\n", bytes / 1e6, to - from, bytes / 1e6 / (to - from) }' "$dir/mqd.log"
  stop_all
  rm -rf "$dir/b"
done
