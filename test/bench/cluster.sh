#!/usr/bin/env bash
# Compares a cluster of three nodes with a standalone node in one run: all nodes and the client share this machine and one
# disk, and are measured in turn. Then how long writes stop when the lead is handed over, and when the leader is killed.
#
#   test/bench/cluster.sh [rounds] [seconds]      default: 5 rounds of 2 seconds; about 8 minutes
#
# Data goes to a folder below $TMPDIR or /var/tmp, which must be on a real disk with 10 GB free.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-5} seconds=${2:-2}
dir=$(mktemp -d "${TMPDIR:-/var/tmp}/mq-cluster-XXXXXX")
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
go build -o "$dir/mqd" ./cmd/mqd
go build -o "$dir/mq" ./cmd/mq
echo bench >"$dir/token"
mqd() { "$dir/mqd" "$@" 2>>"$dir/mqd.log" & pids+=($!); }
peers=http://127.0.0.1:18091,http://127.0.0.1:18092,http://127.0.0.1:18093
mqd -listen 127.0.0.1:18090 -data "$dir/alone"
for i in 0 1 2; do
  mqd -role cluster -listen "127.0.0.1:1809$((i + 1))" -data "$dir/$i" -raft-peers "$peers" -raft-self "$i" -raft-token-file "$dir/token"
done
until curl -sf http://127.0.0.1:18090/readyz >/dev/null; do sleep 0.1; done
until "$dir/mq" cluster status -u "$peers" --raft-token-file "$dir/token" >"$dir/status" 2>&1; do sleep 0.1; done
bench() { # URLs, producers, batch, figure
  "$dir/mq" bench publish -u "$1" -s 100 -p "$2" -b "$3" -d "${seconds}s" --warmup 300ms -o json |
    sed "s/.*\"$4\":\([0-9.]*\).*/\1/"
}
compare() { # producers, batch, figure
  for _ in $(seq "$rounds"); do
    echo "$1 $2 $3 standalone $(bench http://127.0.0.1:18090 "$1" "$2" "$3")"
    echo "$1 $2 $3 cluster $(bench "$peers" "$1" "$2" "$3")"
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
  END { print "| producers | batch | figure | standalone | cluster | ratio |\n| --- | --- | --- | --- | --- | --- |"
        for (i = 1; i <= n; i++) { split(order[i], o, " "); s = median(v[order[i]" standalone"]); p = median(v[order[i]" cluster"]);
          printf "| %d | %d | %s | %d | %d | %.2f |\n", o[1], o[2], o[3], s, p, p / s } }' "$dir/figures"

kill "${pids[@]}"; wait "${pids[@]}" 2>/dev/null || true; pids=()
echo "== no writes: while the lead is handed over, while nodes are restarted one after another, and after kill -9 of the leader"
MQ_CLUSTER_TRANSFERS=$((6 * rounds)) MQ_CLUSTER_ROLLS=$((2 * rounds)) MQ_CLUSTER_KILLS=$((6 * rounds)) TMPDIR=$dir \
  go test -count=1 -v -timeout 20m -run 'TestCluster(Transfer|Roll|Failover)$' ./test/e2e | grep -E '^ +cluster_.*(longest|no writes)|FAIL'
