{{/* The names of the objects, and the labels that select them. */}}

{{- define "slipway.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 47 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 47 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Returns the name of a component's objects: NAME-agent, NAME-manager or NAME-cloudpool. Takes a list: root, part (the component). */}}
{{- define "slipway.part" -}}
{{ include "slipway.fullname" (index . 0) }}-{{ index . 1 }}
{{- end }}

{{- define "slipway.labels" -}}
{{- $root := index . 0 -}}
{{ include "slipway.selector" . }}
app.kubernetes.io/part-of: slipway
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "slipway.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ printf "slipway-%s" (index . 1) }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- end }}

{{/* Returns the labels and annotations of an object's metadata. */}}
{{- define "slipway.metadata" -}}
labels:
  {{- include "slipway.labels" . | nindent 2 }}
{{- with (index . 0).Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "slipway.image" -}}
{{- $root := index . 0 -}}
{{- $registry := required "image.registry is empty: want where your images slipway and slipway-agent are, such as registry.example.com/slipway" $root.Values.image.registry -}}
{{ printf "%s/%s:%s" (trimSuffix "/" $registry) (index . 1) (default $root.Chart.AppVersion $root.Values.image.tag) }}
{{- end }}
