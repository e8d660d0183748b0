#!/bin/sh
# Notices of preemptible instances of Alibaba Cloud ECS, for slipway-agent --notice-source alibaba=exec:/PATH/alibaba.sh
#
# The instance metadata has the time of the release. Without a release it responds with 404 or with nothing.
# https://www.alibabacloud.com/help/en/ecs/user-guide/query-the-interruption-events-of-preemptible-instances
set -eu
metadata=${METADATA_URL:-http://100.100.100.200}
[ "${1:-}" = read ] || { echo "usage: $0 read" >&2; exit 2; }

# Instances in security-hardening mode want a token. Others have no such path.
token=$(curl -sf --max-time 3 -X PUT -H 'X-aliyun-ecs-metadata-token-ttl-seconds: 300' "$metadata/latest/api/token") || token=
answer=$(curl -sS --max-time 5 -w '\n%{http_code}' ${token:+-H "X-aliyun-ecs-metadata-token: $token"} \
  "$metadata/latest/meta-data/instance/spot/termination-time")
status=${answer##*"
"}
time=${answer%"
"*}

notices=
case $status:$time in
404:* | 200:) ;;
200:[0-9][0-9][0-9][0-9]-*Z)
  notices='{"id": "release-'$time'", "type": "Preempt", "notBefore": "'$time'", "noticeSeconds": 60}' ;;
*)
  # Only these responses decide. After any other the agent keeps the last notices.
  echo "status $status, body: $(printf %.100s "$time")" >&2
  exit 1 ;;
esac
echo '{"apiVersion": "slipway.dev/notice/v1", "notices": ['"$notices"']}'
