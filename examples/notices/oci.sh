#!/bin/sh
# Notices of preemptible instances of Oracle Cloud, for slipway-agent --notice-source oci=exec:/PATH/oci.sh
#
# Oracle gives the notice to its Events service, 2 minutes ahead. A rule of Events sends events of the type
# com.oraclecloud.computeapi.instancepreemptionaction to a stream, and this script reads the stream. The stream must have one
# partition. The script needs the programs oci and jq, OCI_STREAM_ID and OCI_STREAM_ENDPOINT, and the right to read the stream
# (instance principal). It keeps its state in STATE_DIR, which has to be writable: mount an emptyDir there (agent.extraVolumes).
# https://docs.oracle.com/iaas/Content/Compute/Concepts/preemptible.htm
set -eu
metadata=${METADATA_URL:-http://169.254.169.254}
state=${STATE_DIR:-/run/slipway-oci}
[ "${1:-}" = read ] || { echo "usage: $0 read" >&2; exit 2; }
stream() {
  oci streaming stream "$@" --auth instance_principal --endpoint "$OCI_STREAM_ENDPOINT" --stream-id "$OCI_STREAM_ID"
}

mkdir -p "$state"
if [ ! -s "$state/instance" ]; then
  curl -sSf --max-time 5 -H 'Authorization: Bearer Oracle' "$metadata/opc/v2/instance/id" >"$state/instance.new"
  mv "$state/instance.new" "$state/instance"
fi
instance=$(cat "$state/instance")
if [ ! -s "$state/cursor" ]; then
  # A new agent also reads the events of the last minutes.
  since=$(date -u -d "@$(($(date +%s) - 300))" +%Y-%m-%dT%H:%M:%SZ)
  stream cursor create-cursor --partition 0 --type AT_TIME --time "$since" | jq -er .data.value >"$state/cursor.new"
  mv "$state/cursor.new" "$state/cursor"
fi
messages=$(stream message get --cursor "$(cat "$state/cursor")" --limit 100) || { rm -f "$state/cursor"; exit 1; }

# The notice stays until the instance is gone: Oracle does not take a preemption back.
found=$(printf '%s' "$messages" | jq -c --arg instance "$instance" '
  [.data[]? | .value | @base64d | fromjson? | select(.eventType | startswith("com.oraclecloud.computeapi.instancepreemptionaction"))
  | select(.data.resourceId == $instance)
  | {id: "preemption", type: "Preempt", notBefore: (try (.eventTime | sub("[.][0-9]+"; "") | fromdateiso8601 + 120) catch null), noticeSeconds: 110}]
  | first // empty')
[ -z "$found" ] || printf '%s' "$found" >"$state/notice"
printf '%s' "$messages" | jq -er '."opc-next-cursor"' >"$state/cursor.new" && mv "$state/cursor.new" "$state/cursor"

notices=
[ ! -s "$state/notice" ] || notices=$(cat "$state/notice")
echo '{"apiVersion": "slipway.dev/notice/v1", "notices": ['"$notices"']}'
