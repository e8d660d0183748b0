{{/* Returns one environment variable. Takes a list: name, value. */}}
{{- define "awsnth.variable" -}}
- name: {{ index . 0 }}
  value: {{ index . 1 | toString | quote }}
{{- end }}

{{/* Returns the environment of both modes. */}}
{{- define "awsnth.env" -}}
{{- range $name, $path := dict "NODE_NAME" "spec.nodeName" "POD_NAME" "metadata.name" "NAMESPACE" "metadata.namespace" }}
- name: {{ $name }}
  valueFrom:
    fieldRef:
      fieldPath: {{ $path }}
{{- end }}
{{- $v := .Values }}
{{- range list
  (list "PROBES_SERVER_PORT" $v.probes.httpGet.port) (list "PROBES_SERVER_ENDPOINT" $v.probes.httpGet.path)
  (list "LOG_LEVEL" $v.logLevel) (list "JSON_LOGGING" $v.jsonLogging) (list "LOG_FORMAT_VERSION" $v.logFormatVersion)
  (list "ENABLE_PROMETHEUS_SERVER" $v.enablePrometheusServer) (list "PROMETHEUS_SERVER_PORT" $v.prometheusServerPort)
  (list "DRY_RUN" $v.dryRun) (list "CORDON_ONLY" $v.cordonOnly) (list "TAINT_NODE" $v.taintNode)
  (list "ENABLE_OUT_OF_SERVICE_TAINT" $v.enableOutOfServiceTaint) (list "EXCLUDE_FROM_LOAD_BALANCERS" $v.excludeFromLoadBalancers)
  (list "DELETE_LOCAL_DATA" $v.deleteLocalData) (list "IGNORE_DAEMON_SETS" $v.ignoreDaemonSets)
  (list "POD_TERMINATION_GRACE_PERIOD" $v.podTerminationGracePeriod) (list "NODE_TERMINATION_GRACE_PERIOD" $v.nodeTerminationGracePeriod)
  (list "EMIT_KUBERNETES_EVENTS" $v.emitKubernetesEvents)
}}
{{ include "awsnth.variable" . }}
{{- end }}
{{- with $v.kubernetesEventsExtraAnnotations }}
{{ include "awsnth.variable" (list "KUBERNETES_EVENTS_EXTRA_ANNOTATIONS" .) }}
{{- end }}
{{- if $v.webhookURLSecretName }}
- name: WEBHOOK_URL
  valueFrom:
    secretKeyRef:
      name: {{ $v.webhookURLSecretName | quote }}
      key: webhookurl
{{- else if $v.webhookURL }}
{{ include "awsnth.variable" (list "WEBHOOK_URL" $v.webhookURL) }}
{{- end }}
{{- with $v.webhookHeaders }}
{{ include "awsnth.variable" (list "WEBHOOK_HEADERS" .) }}
{{- end }}
{{- with $v.webhookProxy }}
{{ include "awsnth.variable" (list "WEBHOOK_PROXY" .) }}
{{- end }}
{{- if include "awsnth.templateFile" . }}
{{ include "awsnth.variable" (list "WEBHOOK_TEMPLATE_FILE" (include "awsnth.templateFile" .)) }}
{{- else if $v.webhookTemplate }}
{{ include "awsnth.variable" (list "WEBHOOK_TEMPLATE" $v.webhookTemplate) }}
{{- end }}
{{- end }}

{{/* Returns the path of the webhook's template, or nothing. */}}
{{- define "awsnth.templateFile" -}}
{{- if and .Values.webhookTemplateConfigMapName .Values.webhookTemplateConfigMapKey }}/config/{{ .Values.webhookTemplateConfigMapKey }}{{ end }}
{{- end }}

{{/* Returns the ports of the container. Takes a list: root, whether the probes server runs. */}}
{{- define "awsnth.ports" -}}
{{- $v := (index . 0).Values }}
{{- if index . 1 }}
- name: liveness-probe
  protocol: TCP
  containerPort: {{ $v.probes.httpGet.port }}
{{- end }}
{{- if $v.enablePrometheusServer }}
- name: http-metrics
  protocol: TCP
  containerPort: {{ $v.prometheusServerPort }}
{{- end }}
{{- end }}

{{- define "awsnth.image" -}}
{{- required "slipway.image is empty: want the image slipway with its tag, such as registry.example.com/slipway/slipway:v0.1.0" .Values.slipway.image }}
{{- end }}

{{/*
The container's securityContext on Windows: what Windows knows of it. The account of a container is none of a node, whose Local
service takes its place in a host process.
*/}}
{{- define "awsnth.windowsSecurityContext" -}}
{{- $context := default dict .Values.securityContext }}
{{- $options := deepCopy (default dict $context.windowsOptions) }}
{{- if .Values.slipway.hostProcess }}
{{- $_ := set $options "hostProcess" true }}
{{- if has (default "ContainerUser" $options.runAsUserName) (list "ContainerUser" "ContainerAdministrator") }}
{{- $_ := set $options "runAsUserName" "NT AUTHORITY\\Local service" }}
{{- end }}
{{- end }}
{{- merge (pick $context "runAsNonRoot") (dict "windowsOptions" $options) | toYaml }}
{{- end }}
