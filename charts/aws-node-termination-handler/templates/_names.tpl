{{/*
The names and labels are the same as in the chart that this chart replaces. So an upgrade of its release changes the existing
objects. The selectors of a DaemonSet and of a Deployment cannot be changed.
*/}}

{{- define "awsnth.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "awsnth.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- default $full .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "awsnth.account" -}}
{{- $default := ternary (include "awsnth.fullname" .) "default" .Values.serviceAccount.create }}
{{- default $default .Values.serviceAccount.name }}
{{- end }}

{{/* Returns daemonset or deployment. */}}
{{- define "awsnth.component" -}}
{{- ternary "deployment" "daemonset" .Values.enableSqsTerminationDraining }}
{{- end }}

{{- define "awsnth.selector" -}}
app.kubernetes.io/name: {{ include "awsnth.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "awsnth.podSelector" -}}
{{ include "awsnth.selector" . }}
app.kubernetes.io/component: {{ include "awsnth.component" . }}
{{- end }}

{{/* Returns the labels of an object. The values change all of them but the selector. */}}
{{- define "awsnth.labels" -}}
{{- merge (include "awsnth.selector" . | fromYaml) (default dict .Values.customLabels) (dict
  "app.kubernetes.io/version" .Chart.AppVersion "app.kubernetes.io/part-of" .Release.Name "app.kubernetes.io/managed-by" .Release.Service
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-")) | toYaml }}
{{- end }}

{{- define "awsnth.metadata" -}}
labels:
  {{- include "awsnth.labels" . | nindent 2 }}
{{- end }}

{{/* Returns the metadata of the objects of the pods. */}}
{{- define "awsnth.podObjectMetadata" -}}
labels:
  {{- merge (include "awsnth.podSelector" . | fromYaml) (include "awsnth.labels" . | fromYaml) | toYaml | nindent 2 }}
{{- end }}

{{/* Returns a pattern of the keys on Nodes that these values write, and the policies must allow in addition. */}}
{{- define "awsnth.nodeKeys" -}}
{{- if .Values.enableOutOfServiceTaint }}|node[.]kubernetes[.]io/out-of-service${{ end }}
{{- end }}
