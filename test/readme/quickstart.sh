#!/usr/bin/env bash
# Starts mqd exactly as the README says, in a copy of the repository, makes its first calls, and stops it.
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=$(mktemp -d)
pid=
# stop ends mqd as Ctrl-C does, and returns once it has ended. SIGTERM would end `go run` at once, and mqd would write its
# snapshot after that, into a folder that is being removed. What go run returns says nothing: 1 for every interrupt.
stop() {
  local started=$pid
  [ -n "$started" ] || return 0
  pid=
  kill -INT -- -"$started" 2>/dev/null || true
  for _ in $(seq 600); do
    kill -0 "$started" 2>/dev/null || break
    sleep 0.1
  done
  if kill -KILL -- -"$started" 2>/dev/null; then
    echo "mqd has not ended within a minute of an interrupt"
  fi
  wait "$started" || true
}
trap 'stop; rm -rf "$dir"' EXIT
if curl -s -o "$dir/other" http://127.0.0.1:8080/; then
  echo "something else listens on 127.0.0.1:8080"
  exit 1
fi
git archive HEAD | tar -x -C "$dir"
cd "$dir"
set -m
go run ./cmd/mqd -listen 127.0.0.1:8080 2>mqd.log &
pid=$!
set +m
for _ in $(seq 3000); do # it may be built first
  curl -sf http://127.0.0.1:8080/readyz >/dev/null && break
  kill -0 "$pid" 2>/dev/null || { echo "mqd has ended"; cat mqd.log; exit 1; }
  sleep 0.1
done
expect() { [ "$1" = "$2" ] || { echo "got $1, want $2"; cat mqd.log; exit 1; }; }
expect "$(curl -s -d '{"topic":"orders","key":"NDI=","value":"aGVsbG8="}' http://127.0.0.1:8080/v1/publish)" '{"offset":0}'
curl -s -d '{"topic":"orders","offset":0,"limit":10}' http://127.0.0.1:8080/v1/fetch | grep -q '"value":"aGVsbG8="' ||
  { echo "the record is not in what was fetched"; exit 1; }
test -f mq-data/identity.json || { echo "mqd made no mq-data"; exit 1; }
stop
grep -q 'msg=stopped' mqd.log || { echo "mqd did not say that it stopped"; cat mqd.log; exit 1; }
echo "the quick start works"
