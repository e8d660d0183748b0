#!/bin/sh
# Notices of spot instances of Tencent Cloud CVM, for slipway-agent --notice-source tencent=exec:/PATH/tencent.sh
#
# The instance metadata has the time of the termination, in UTC+8. Without a termination it responds with 404.
# https://www.tencentcloud.com/document/product/213/32487
set -eu
metadata=${METADATA_URL:-http://metadata.tencentyun.com}
[ "${1:-}" = read ] || { echo "usage: $0 read" >&2; exit 2; }

answer=$(curl -sS --max-time 5 -w '\n%{http_code}' "$metadata/latest/meta-data/spot/termination-time")
status=${answer##*"
"}
time=${answer%"
"*}

notices=
case $status:$time in
404:*) ;;
200:[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]\ [0-9][0-9]:[0-9][0-9]:[0-9][0-9])
  at=$(echo "$time" | tr ' ' T)+08:00
  notices='{"id": "termination-'$at'", "type": "Preempt", "notBefore": "'$at'", "noticeSeconds": 60}' ;;
*)
  # Only these responses decide. After any other the agent keeps the last notices.
  echo "status $status, body: $(printf %.100s "$time")" >&2
  exit 1 ;;
esac
echo '{"apiVersion": "slipway.dev/notice/v1", "notices": ['"$notices"']}'
