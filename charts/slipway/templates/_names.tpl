{{/* The names of the objects, and the labels that select them. */}}

{{/* Returns the prefix of all names. The name of a release may have dots, and the name of a Service may not. */}}
{{- define "slipway.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride }}
{{- else }}
{{- $release := replace "." "-" .Release.Name }}
{{- ternary $release (printf "%s-%s" $release $name) (contains $name $release) | trunc 47 | trimAll "-" }}
{{- end }}
{{- end }}

{{/* Returns the name of a component's objects: NAME-agent, NAME-manager or NAME-cloudpool. Takes a list: root, part (the component). */}}
{{- define "slipway.part" -}}
{{ include "slipway.fullname" (index . 0) }}-{{ index . 1 }}
{{- end }}

{{/* Returns the name of a component's ServiceAccount. Takes a list: root, part (the component). */}}
{{- define "slipway.serviceAccount" -}}
{{ default (include "slipway.part" .) (index (index . 0).Values (index . 1)).serviceAccount.name }}
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
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
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

{{/* Returns an image. Takes a list: root, program (slipway or slipway-agent). */}}
{{- define "slipway.image" -}}
{{- $root := index . 0 -}}
{{- $image := get $root.Values.image (ternary "agent" "slipway" (eq (index . 1) "slipway-agent")) -}}
{{- $registry := required "image.registry is empty: want where your images slipway and slipway-agent are, such as registry.example.com/slipway" $root.Values.image.registry -}}
{{- $version := print ":" (coalesce $image.tag $root.Values.image.tag $root.Chart.AppVersion) -}}
{{- with $image.digest }}{{ $version = print "@" . }}{{ end -}}
{{ trimSuffix "/" $registry }}/{{ $image.repository }}{{ $version }}
{{- end }}
