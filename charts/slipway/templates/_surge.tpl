{{/*
The rights of an account to start successors of pods, with the policies that limit them. Takes a dict: root, part, name, guard (the dict of
slipway.guard.surgeRules).
*/}}
{{- define "slipway.surge" -}}
# To start a pod's successor before the pod leaves. docs/surge.md says what a stolen token could do with these permissions.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ .name }}-surge
  {{- .guard.metadata | nindent 2 }}
rules:
  {{- include "slipway.guard.surgeRules" .guard | nindent 2 }}
{{ include "slipway.binding" (dict "root" .root "part" .part "kind" "ClusterRole" "name" (printf "%s-surge" .name)) }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ .name }}-surge
  namespace: {{ .root.Release.Namespace | quote }}
  {{- .guard.metadata | nindent 2 }}
rules:
  {{- include "slipway.guard.surgeLeaseRules" .guard | nindent 2 }}
{{ include "slipway.binding" (dict "root" .root "part" .part "kind" "Role" "name" (printf "%s-surge" .name) "namespace" .root.Release.Namespace) }}
---
{{ include "slipway.guard.surgeAdmission" .guard }}
{{- end }}
