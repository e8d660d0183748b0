{{/*
The names and labels are the same as in the chart that this chart replaces. So an upgrade of its release changes the existing
objects. A DaemonSet's selector cannot be changed.
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
app.kubernetes.io/name: {{ include "aksnth.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/* Returns the labels of an object. The values change all of them but the selector. */}}
{{- define "aksnth.labels" -}}
{{- merge (include "aksnth.selector" . | fromYaml) (default dict .Values.commonLabels) (dict
  "app.kubernetes.io/version" .Chart.AppVersion "app.kubernetes.io/managed-by" .Release.Service
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_")) | toYaml }}
{{- end }}

{{- define "aksnth.metadata" -}}
labels:
  {{- include "aksnth.labels" . | nindent 2 }}
{{- with .Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Returns the value of the last argument that sets a flag. Takes a list: arguments, flag. A flag begins with one or two dashes. Its value is the next argument, or follows "=". */}}
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
Returns a setting of the program. Takes a list: root, flag, the default of the flag, the value to assume if the program
reads a file that is not in configMap.data, and the key in the file if it is not the flag in lower case. The key overrides the
flag, unless it has no value.
*/}}
{{- define "aksnth.setting" -}}
{{- $root := index . 0 }}
{{- $flag := index . 1 }}
{{- $unseen := index . 3 }}
{{- $key := lower $flag }}
{{- if gt (len .) 4 }}{{ $key = index . 4 }}{{ end }}
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
{{- else if not (kindIs "invalid" (index $file $key)) }}
{{- $value = index $file $key }}
{{- end }}
{{- end }}
{{- $value }}
{{- end }}

{{/* Returns how many seconds the program waits for a drain before it ends. For a file that the chart cannot read, it returns the maximum. */}}
{{- define "aksnth.stopSeconds" -}}
{{- include "aksnth.setting" (list . "gracePeriodSeconds" "10" "600") | float64 | ceil | int | min 600 | max 0 }}
{{- end }}

{{/* Returns the path of the file that the program reads, from -config or the variable CONFIG. The values may not contain the variable's value. */}}
{{- define "aksnth.configFile" -}}
{{- $file := "" }}
{{- range .Values.env }}
{{- if eq (toString .name) "CONFIG" }}{{ $file = default "elsewhere" .value }}{{ end }}
{{- end }}
{{- default $file (include "aksnth.flag" (list .Values.args "config")) }}
{{- end }}

{{/* Returns "true" if only Windows nodes have a label, or nothing. Takes a list: key, value. */}}
{{- define "aksnth.windowsLabel" -}}
{{- $key := index . 0 | toString }}
{{- $value := index . 1 | toString }}
{{- if eq $key "kubernetes.io/os" }}{{ if eq $value "windows" }}true{{ end }}
{{- else if eq $key "kubernetes.azure.com/os-sku" }}{{ if hasPrefix "Windows" $value }}true{{ end }}
{{- end }}
{{- end }}

{{/* Returns "true" if nodeSelector, or every term of the required node affinity, selects only Windows nodes, or nothing. */}}
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
Returns the nodeSelector. The released images run on Linux, or as host processes on Windows. One DaemonSet cannot do both. If the
values do not select Windows nodes, the pods run only on Linux nodes.
*/}}
{{- define "aksnth.nodeSelector" -}}
{{- $selector := default dict .Values.nodeSelector }}
{{- if and .Values.slipway.hostProcess (not (include "aksnth.windows" .)) }}
{{- $selector = merge (dict) $selector (dict "kubernetes.io/os" "linux") }}
{{- end }}
{{- with $selector }}{{ toYaml . }}{{ end }}
{{- end }}

{{/* Returns "true" if the pods are host processes, or nothing. */}}
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
