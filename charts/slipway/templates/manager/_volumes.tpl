{{- define "slipway.manager.mounts" -}}
{{ include "slipway.tmpMount" . }}
{{- if .values.nodeGroups }}
- name: config
  mountPath: /etc/slipway/config
  readOnly: true
{{- end }}
{{- if .values.awsQueue.agentConfig }}
- name: queue
  mountPath: /etc/slipway/queue
  readOnly: true
{{- end }}
{{- include "slipway.cloudMounts" . }}
{{ include "slipway.extraMounts" . }}
{{- end }}

{{- define "slipway.manager.volumes" -}}
{{ include "slipway.tmpVolume" . }}
{{- if .values.nodeGroups }}
- name: config
  configMap:
    name: {{ include "slipway.part" (list .root "manager") }}
{{- end }}
{{- if .values.awsQueue.agentConfig }}
- name: queue
  configMap:
    name: {{ include "slipway.part" (list .root "manager") }}-queue
{{- end }}
{{- include "slipway.cloudVolumes" . }}
{{ include "slipway.extraVolumes" . }}
{{- end }}
