{{- define "slipway.cloudpool.mounts" -}}
{{ include "slipway.tmpMount" . }}
{{- include "slipway.cloudMounts" . }}
{{- if .values.tls.secretName }}
- name: tls
  mountPath: /etc/slipway/tls
  readOnly: true
{{- end }}
{{- if .values.clientCA.secretName }}
- name: client-ca
  mountPath: /etc/slipway/client-ca
  readOnly: true
{{- end }}
{{ include "slipway.extraMounts" . }}
{{- end }}

{{- define "slipway.cloudpool.volumes" -}}
{{ include "slipway.tmpVolume" . }}
{{- include "slipway.cloudVolumes" . }}
{{- with .values.tls.secretName }}
- name: tls
  secret:
    secretName: {{ . | quote }}
{{- end }}
{{- with .values.clientCA.secretName }}
- name: client-ca
  secret:
    secretName: {{ . | quote }}
{{- end }}
{{ include "slipway.extraVolumes" . }}
{{- end }}
