#!/bin/sh
# Notices of vMotion on vSphere 8, for slipway-agent --notice-source vsphere=exec:/PATH/vsphere.sh
#
# vSphere waits for the acknowledgement of a migration, at most for the timeout that its administrator has set. The VM needs
# VMware Tools, and vSphere vMotion notifications enabled. The agent's pod needs access to the VMware Tools of the VM.
#
# The script keeps its state in STATE_DIR, which has to be writable: mount an emptyDir there (agent.extraVolumes).
#
# A migration is a Freeze of type live migration. Choose what the agent does with --on-live-migration.
set -eu
state=${STATE_DIR:-/run/slipway-vsphere}
rpc() {
  vmtoolsd --cmd "vm-operation-notification.$1 $2"
}
# field NAME prints a field of the JSON object in $reply.
field() {
  printf '%s' "$reply" | tr '\n' ' ' | sed -n "s/.*\"$1\": *\"\{0,1\}\([^\",} ]*\).*/\1/p"
}

mkdir -p "$state"
if [ ! -s "$state/token" ]; then
  reply=$(rpc register '{"appName": "slipway", "notificationTypes": ["sla-miss"]}')
  token=$(field uniqueToken)
  [ -n "$token" ] || { echo "vSphere refuses the registration: $reply" >&2; exit 1; }
  rm -f "$state/event" # its end was for the earlier registration
  printf '%s' "$token" >"$state/token.new" && mv "$state/token.new" "$state/token"
fi
token=$(cat "$state/token")

case ${1:-} in
read)
  # vSphere reports each event once. The script remembers the migration until its end.
  while :; do
    reply=$(rpc check-for-event '{"uniqueToken": "'"$token"'"}') && [ "$(field result)" = true ] ||
      { rm -f "$state/token"; echo "vSphere does not know the registration: $reply" >&2; exit 1; }
    case $(field eventType) in
    start)
      due=$(($(field eventGenTimeInSec) + $(field notificationTimeoutInSec)))
      printf '%s %s' "$(field operationId)" "$due" >"$state/event.new" && mv "$state/event.new" "$state/event" ;;
    end) rm -f "$state/event" ;;
    '') break ;;
    esac
  done
  notices=
  if [ -s "$state/event" ]; then
    read -r id due <"$state/event" || true
    notices='{"id": "'$id'", "type": "Freeze", "liveMigration": true, "notBefore": '$due', "acknowledge": true}'
  fi
  echo '{"apiVersion": "slipway.dev/notice/v1", "notices": ['"$notices"']}' ;;
acknowledge)
  reply=$(rpc ack-event '{"operationId": '"$2"', "uniqueToken": "'"$token"'"}')
  [ "$(field ackStatus)" = ack_received ] || { echo "vSphere refuses the acknowledgement: $reply" >&2; exit 1; } ;;
*)
  echo "usage: $0 read | acknowledge ID" >&2
  exit 2 ;;
esac
