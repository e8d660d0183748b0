{{/*
The rights of the manager to drain the nodes of notices from a queue, with the policies that limit them. Takes a dict: root, part, name,
guard (the dict of slipway.guard.pods), flowControl.
*/}}
{{- define "slipway.queue" -}}
# To drain nodes before a deadline. docs/aws-queue.md says what a stolen token could do with these permissions.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ .name }}
  {{- .guard.metadata | nindent 2 }}
rules:
  {{- include "slipway.guard.queueRules" .guard | nindent 2 }}
{{ include "slipway.binding" (dict "root" .root "part" .part "kind" "ClusterRole" "name" .name) }}
---
{{ include "slipway.guard.queueAdmission" .guard }}
{{- if .flowControl }}
---
{{ include "slipway.guard.flowControl" .guard }}
{{- end }}
{{- end }}
