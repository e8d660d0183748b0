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
How many seconds the program waits for a drain before it ends: -gracePeriodSeconds, or the key of its file, which wins. Of a file
that is none of configMap.data nothing is known but the most that the program takes.
*/}}
{{- define "aksnth.stopSeconds" -}}
{{- $seconds := default "10" (include "aksnth.flag" (list .Values.args "gracePeriodSeconds")) }}
{{- with include "aksnth.configFile" . }}
{{- $path := clean . }}
{{- $file := dict }}
{{- $seen := false }}
{{- if and $.Values.configMap.create (eq (dir $path) (clean $.Values.configMap.mountPath)) (hasKey (default dict $.Values.configMap.data) (base $path)) }}
{{- $file = get $.Values.configMap.data (base $path) | toString | fromYaml }}
{{- $seen = not (hasKey $file "Error") }}
{{- end }}
{{- $seconds = ternary (get $file "graceperiodseconds" | default $seconds) 600 $seen }}
{{- end }}
{{- $seconds | toString | float64 | ceil | int | min 600 | max 0 }}
{{- end }}

{{/* The file that the program reads: what -config says, or the variable CONFIG, whose value may be nowhere in here. */}}
{{- define "aksnth.configFile" -}}
{{- $file := "" }}
{{- range .Values.env }}
{{- if eq (toString .name) "CONFIG" }}{{ $file = default "elsewhere" .value }}{{ end }}
{{- end }}
{{- default $file (include "aksnth.flag" (list .Values.args "config")) }}
{{- end }}

{{/* Whether the nodes are Windows's: "true" or nothing. */}}
{{- define "aksnth.windows" -}}
{{- $selector := default dict .Values.nodeSelector }}
{{- $sku := get $selector "kubernetes.azure.com/os-sku" | toString }}
{{- if or (eq (get $selector "kubernetes.io/os" | toString) "windows") (hasPrefix "Windows" $sku) }}true{{ end }}
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
