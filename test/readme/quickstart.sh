#!/usr/bin/env bash
# Starts mqd exactly as the README says, in a copy of the repository, and makes its first calls.
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=$(mktemp -d)
pid=
trap 'if [ -n "$pid" ]; then kill -- -"$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; fi; rm -rf "$dir"' EXIT
git archive HEAD | tar -x -C "$dir"
cd "$dir"
set -m
go run ./cmd/mqd -listen 127.0.0.1:8080 2>mqd.log &
pid=$!
set +m
for _ in $(seq 600); do
  curl -sf http://127.0.0.1:8080/readyz >/dev/null && break
  sleep 0.1
done
expect() { [ "$1" = "$2" ] || { echo "got $1, want $2"; cat mqd.log; exit 1; }; }
expect "$(curl -s -d '{"topic":"orders","key":"NDI=","value":"aGVsbG8="}' http://127.0.0.1:8080/v1/publish)" '{"offset":0}'
curl -s -d '{"topic":"orders","offset":0,"limit":10}' http://127.0.0.1:8080/v1/fetch | grep -q '"value":"aGVsbG8="'
test -f mq-data/identity.json
echo "the quick start works"
