{{/*
Names and labels are those of the chart whose place this one takes, so that an upgrade of its release changes the objects that
are there: a DaemonSet's selector cannot be changed.
*/}}

{{- define "aksnth.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "aksnth.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- default $full .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "aksnth.selector" -}}
app.kubernetes.io/name: {{ include "aksnth.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "aksnth.labels" -}}
{{ include "aksnth.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "aksnth.metadata" -}}
labels:
  {{- include "aksnth.labels" . | nindent 2 }}
{{- with .Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The value of the last argument that sets a flag, of a list: arguments, flag. Flags have one dash or two, and a value of their own or after "=". */}}
{{- define "aksnth.flag" -}}
{{- $flag := index . 1 }}
{{- $is := dict "next" false "value" "" }}
{{- range index . 0 }}
{{- $argument := toString . }}
{{- if $is.next }}
{{- $_ := set $is "next" false }}
{{- if not (hasPrefix "-" $argument) }}{{ $_ := set $is "value" $argument }}{{ end }}
{{- else if regexMatch (printf "^--?%s$" (replace "." "[.]" $flag)) $argument }}
{{- $_ := set $is "next" true }}
{{- $_ := set $is "value" "true" }}
{{- else if regexMatch (printf "^--?%s=" (replace "." "[.]" $flag)) $argument }}
{{- $_ := set $is "value" (regexReplaceAll "^[^=]*=" $argument "") }}
{{- end }}
{{- end }}
{{- $is.value }}
{{- end }}

{{/*
A setting of the program, of a list: root, flag, what it is without the flag, what it is taken for when the program reads a file
that is none of configMap.data. The file's key is the flag in small letters, and wins.
*/}}
{{- define "aksnth.setting" -}}
{{- $root := index . 0 }}
{{- $flag := index . 1 }}
{{- $unseen := index . 3 }}
{{- $value := default (index . 2) (include "aksnth.flag" (list $root.Values.args $flag)) }}
{{- with include "aksnth.configFile" $root }}
{{- $path := clean . }}
{{- $file := dict }}
{{- $seen := false }}
{{- if and $root.Values.configMap.create (eq (dir $path) (clean $root.Values.configMap.mountPath)) (hasKey (default dict $root.Values.configMap.data) (base $path)) }}
{{- $file = get $root.Values.configMap.data (base $path) | toString | fromYaml }}
{{- $seen = not (hasKey $file "Error") }}
{{- end }}
{{- if not $seen }}
{{- $value = $unseen }}
{{- else if hasKey $file (lower $flag) }}
{{- $value = get $file (lower $flag) }}
{{- end }}
{{- end }}
{{- $value }}
{{- end }}

{{/* How many seconds the program waits for a drain before it ends. Of a file that is not seen the most that it takes is assumed. */}}
{{- define "aksnth.stopSeconds" -}}
{{- include "aksnth.setting" (list . "gracePeriodSeconds" "10" "600") | float64 | ceil | int | min 600 | max 0 }}
{{- end }}

{{/* The file that the program reads: what -config says, or the variable CONFIG, whose value may be nowhere in here. */}}
{{- define "aksnth.configFile" -}}
{{- $file := "" }}
{{- range .Values.env }}
{{- if eq (toString .name) "CONFIG" }}{{ $file = default "elsewhere" .value }}{{ end }}
{{- end }}
{{- default $file (include "aksnth.flag" (list .Values.args "config")) }}
{{- end }}

{{/* Whether a label of nodes is one that only Windows nodes have, of a list: key, value: "true" or nothing. */}}
{{- define "aksnth.windowsLabel" -}}
{{- $key := index . 0 | toString }}
{{- $value := index . 1 | toString }}
{{- if eq $key "kubernetes.io/os" }}{{ if eq $value "windows" }}true{{ end }}
{{- else if eq $key "kubernetes.azure.com/os-sku" }}{{ if hasPrefix "Windows" $value }}true{{ end }}
{{- end }}
{{- end }}

{{/* Whether nodeSelector, or every term of the required node affinity, names Windows nodes alone: "true" or nothing. */}}
{{- define "aksnth.windows" -}}
{{- $windows := false }}
{{- range $key, $value := default dict .Values.nodeSelector }}
{{- if include "aksnth.windowsLabel" (list $key $value) }}{{ $windows = true }}{{ end }}
{{- end }}
{{- $terms := dig "nodeAffinity" "requiredDuringSchedulingIgnoredDuringExecution" "nodeSelectorTerms" list (default dict .Values.affinity) }}
{{- $named := gt (len $terms) 0 }}
{{- range $terms }}
{{- $term := false }}
{{- range .matchExpressions }}
{{- $key := .key }}
{{- $all := and (eq (toString .operator) "In") (gt (len (default list .values)) 0) }}
{{- range .values }}
{{- if not (include "aksnth.windowsLabel" (list $key .)) }}{{ $all = false }}{{ end }}
{{- end }}
{{- if $all }}{{ $term = true }}{{ end }}
{{- end }}
{{- if not $term }}{{ $named = false }}{{ end }}
{{- end }}
{{- if or $windows $named }}true{{ end }}
{{- end }}

{{/*
The nodeSelector. The released images run on Linux or as host processes on Windows, and one DaemonSet cannot be both: where
Windows nodes are not named, it keeps to Linux.
*/}}
{{- define "aksnth.nodeSelector" -}}
{{- $selector := default dict .Values.nodeSelector }}
{{- if and .Values.slipway.hostProcess (not (include "aksnth.windows" .)) }}
{{- $selector = merge (dict) $selector (dict "kubernetes.io/os" "linux") }}
{{- end }}
{{- with $selector }}{{ toYaml . }}{{ end }}
{{- end }}

{{/* Whether the pods are host processes: "true" or nothing. */}}
{{- define "aksnth.hostProcess" -}}
{{- if and (include "aksnth.windows" .) .Values.slipway.hostProcess }}true{{ end }}
{{- end }}

{{/*
The container's securityContext. On Windows it is what Windows knows of it; the account of a container that is isolated is none
of a node, whose Local service takes its place in a host process.
*/}}
{{- define "aksnth.securityContext" -}}
{{- $context := default dict .Values.securityContext }}
{{- if include "aksnth.windows" . }}
{{- $options := deepCopy (default dict $context.windowsOptions) }}
{{- if .Values.slipway.hostProcess }}
{{- $_ := set $options "hostProcess" true }}
{{- if has (default "ContainerUser" $options.runAsUserName) (list "ContainerUser" "ContainerAdministrator") }}
{{- $_ := set $options "runAsUserName" "NT AUTHORITY\\Local service" }}
{{- end }}
{{- end }}
{{- $context = merge (pick $context "runAsNonRoot") (dict "windowsOptions" $options) }}
{{- end }}
{{- toYaml $context }}
{{- end }}
