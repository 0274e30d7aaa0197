#!/usr/bin/env bash
# Compares mqd with the bare server (test/bench/bare) in one run: the same client, the same disk, in turn.
#
#   test/bench/compare.sh [rounds] [seconds]      default: 5 rounds of 2 seconds
#
# Prints for each size and number of producers the median rate of both and the ratio. Data goes to a folder
# below $TMPDIR or /var/tmp, which must be on a real disk.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-5} seconds=${2:-2}
dir=$(mktemp -d "${TMPDIR:-/var/tmp}/mq-compare-XXXXXX")
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
go build -o "$dir/mqd" ./cmd/mqd
go build -o "$dir/mq" ./cmd/mq
(cd test/bench/bare && go build -o "$dir/bare" .)
"$dir/mqd" -listen 127.0.0.1:18071 -data "$dir/data" 2>"$dir/mqd.log" & pids+=($!)
"$dir/bare" -listen 127.0.0.1:18072 -file "$dir/bare.log" 2>"$dir/bare.err" & pids+=($!)
for port in 18071 18072; do
  for _ in $(seq 100); do curl -sf "http://127.0.0.1:$port/readyz" >/dev/null && break; sleep 0.1; done
done
for size in 100 1024; do
  for producers in 1 16 64 256; do
    for _ in $(seq "$rounds"); do
      for port in 18071 18072; do
        rate=$("$dir/mq" bench publish -u "http://127.0.0.1:$port" -s "$size" -p "$producers" -d "${seconds}s" --warmup 300ms -o json |
          sed 's/.*"records_per_second":\([0-9]*\).*/\1/')
        echo "$size $producers $port $rate"
      done
    done
  done
done | tee "$dir/rates" >&2
awk '
  { v[$1" "$2" "$3] = v[$1" "$2" "$3] " " $4; if (!(($1" "$2) in seen)) { seen[$1" "$2] = 1; order[++n] = $1" "$2 } }
  function median(list,   a, k, i, j, t) { k = split(list, a, " "); for (i = 2; i <= k; i++) for (j = i; j > 1 && a[j-1]+0 > a[j]+0; j--) { t = a[j]; a[j] = a[j-1]; a[j-1] = t } return a[int((k+1)/2)] }
  END { print "| bytes | producers | mqd | bare server | ratio |\n| --- | --- | --- | --- | --- |"
        for (i = 1; i <= n; i++) { split(order[i], o, " "); m = median(v[order[i]" 18071"]); b = median(v[order[i]" 18072"]);
          printf "| %d | %d | %d | %d | %.2f |\n", o[1], o[2], m, b, m / b } }' "$dir/rates"
