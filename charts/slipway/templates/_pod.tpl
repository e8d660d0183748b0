{{/* Sections that all of Slipway's pods have. Each template takes a dict: root, part (the component's name), values (of the component). */}}

{{- define "slipway.pod.metadata" -}}
labels:
  {{- merge (dict) .values.podLabels (include "slipway.labels" (list .root .part) | fromYaml) | toYaml | nindent 2 }}
{{- $own := dict }}
{{- if .files }}{{ $_ := set $own "checksum/config" (sha256sum .files) }}{{ end }}
{{- if eq .root.Values.metrics.scrape "annotations" }}
{{- $own = merge $own (dict "prometheus.io/scrape" "true" "prometheus.io/port" (toString .metricsPort)) }}
{{- end }}
annotations:
  {{- merge (dict) .values.podAnnotations .root.Values.commonAnnotations $own | toYaml | nindent 2 }}
{{- end }}

{{/* Returns the operating systems of a component's pods that do not use the network of their node. Takes a list: the component's name, its values. */}}
{{- define "slipway.onPodNetwork" -}}
{{- $v := index . 1 }}
{{- $os := list }}
{{- if ne (index . 0) "agent" }}
{{- $os = list "linux" }}
{{- else }}
{{- if and $v.linux.enabled (not $v.hostNetwork) }}{{ $os = append $os "linux" }}{{ end }}
{{- if and $v.windows.enabled (not $v.windows.hostProcess) }}{{ $os = append $os "windows" }}{{ end }}
{{- end }}
{{- toYaml $os }}
{{- end }}

{{- define "slipway.pod.placement" -}}
{{- with .values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{/*
Returns the affinity. It keeps a component's pods on different nodes, unless the values set podAntiAffinity. It adds the value
placement to the node affinity.
*/}}
{{- define "slipway.pod.affinity" -}}
{{- $affinity := .values.affinity }}
{{- if not (or (hasKey $affinity "podAntiAffinity") (eq .values.antiAffinity "none")) }}
{{- $affinity = merge (include "slipway.pod.antiAffinity" . | fromYaml) $affinity }}
{{- end }}
{{- with include "slipway.pod.nodeAffinity" . | fromYaml }}
{{- $affinity = merge (dict "nodeAffinity" .) $affinity }}
{{- end }}
{{- with $affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "slipway.pod.antiAffinity" -}}
podAntiAffinity:
  {{- if eq .values.antiAffinity "required" }}
  requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels:
          {{- include "slipway.selector" (list .root .part) | nindent 10 }}
  {{- else }}
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "slipway.selector" (list .root .part) | nindent 12 }}
  {{- end }}
{{- end }}

{{/*
Returns the update strategy. By default, a Deployment starts one additional pod during an upgrade. If each node has a pod and no
node may have two, that pod could never be scheduled. So an old pod then ends before a new one starts.
*/}}
{{- define "slipway.pod.strategy" -}}
{{- $affinity := default dict (include "slipway.pod.affinity" . | fromYaml).affinity }}
{{- if (default dict $affinity.podAntiAffinity).requiredDuringSchedulingIgnoredDuringExecution }}
strategy:
  type: RollingUpdate
  rollingUpdate:
    maxSurge: 0
    maxUnavailable: 1
{{- end }}
{{- end }}

{{/* Returns the securityContext that the Pod Security level restricted requires for a Linux pod. */}}
{{- define "slipway.pod.linuxSecurity" -}}
securityContext:
  runAsNonRoot: true
  {{- with .root.Values.runAsUser }}
  runAsUser: {{ . }}
  runAsGroup: {{ . }}
  {{- end }}
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "slipway.container.linuxSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{- define "slipway.container.probes" -}}
# A process that answers is alive. If the API server is unavailable, a restart does not help; /readyz reports that case.
livenessProbe:
  httpGet:
    path: /healthz
    port: metrics
  initialDelaySeconds: 10
  periodSeconds: 30
  timeoutSeconds: 5
readinessProbe:
  httpGet:
    path: /readyz
    port: metrics
  periodSeconds: 10
  timeoutSeconds: 5
{{- end }}

{{- define "slipway.container.namespaceEnv" -}}
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
{{- with .values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Returns "true" if there is a file of clouds, or nothing. */}}
{{- define "slipway.clouds" -}}
{{- if or .Values.clouds.config .Values.clouds.existingConfigMap }}true{{ end }}
{{- end }}

{{- define "slipway.cloudMounts" -}}
{{- if include "slipway.clouds" .root }}
- name: clouds
  mountPath: /etc/slipway/clouds
  readOnly: true
{{- end }}
{{- if .root.Values.clouds.secretName }}
- name: secrets
  mountPath: /etc/slipway/secrets
  readOnly: true
{{- end }}
{{- end }}

{{- define "slipway.cloudVolumes" -}}
{{- if include "slipway.clouds" .root }}
- name: clouds
  configMap:
    name: {{ default (include "slipway.part" (list .root "clouds")) .root.Values.clouds.existingConfigMap | quote }}
{{- end }}
{{- with .root.Values.clouds.secretName }}
- name: secrets
  secret:
    secretName: {{ . | quote }}
{{- end }}
{{- end }}

{{/* Returns the mount of the only writable folder. A cloud's plugin and the program communicate through a socket in it. */}}
{{- define "slipway.tmpMount" -}}
- name: tmp
  mountPath: /tmp
{{- end }}

{{- define "slipway.tmpVolume" -}}
- name: tmp
  emptyDir:
    medium: Memory
    sizeLimit: 16Mi
{{- end }}

{{- define "slipway.extraMounts" -}}
{{- if .values.extraFiles }}
- name: files
  mountPath: /etc/slipway/files
  readOnly: true
{{- end }}
{{- with .values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "slipway.extraVolumes" -}}
{{- if .values.extraFiles }}
- name: files
  configMap:
    name: {{ include "slipway.part" (list .root .part) }}-files
{{- end }}
{{- with .values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Returns the ConfigMap with a component's extra files. */}}
{{- define "slipway.extraFiles" -}}
{{- if .values.extraFiles }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "slipway.part" (list .root .part) }}-files
  namespace: {{ .root.Release.Namespace | quote }}
  {{- include "slipway.metadata" (list .root .part) | nindent 2 }}
data:
  {{- toYaml .values.extraFiles | nindent 2 }}
{{- end }}
{{- end }}

{{- define "slipway.budget" -}}
{{- if .values.podDisruptionBudget.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "slipway.part" (list .root .part) }}
  namespace: {{ .root.Release.Namespace | quote }}
  {{- include "slipway.metadata" (list .root .part) | nindent 2 }}
spec:
  maxUnavailable: {{ .values.podDisruptionBudget.maxUnavailable }}
  # Pods that are not ready, for example because a cloud is unreachable, must not block the drain of their nodes.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "slipway.selector" (list .root .part) | nindent 6 }}
{{- end }}
{{- end }}

{{- define "slipway.account" -}}
{{- if .values.serviceAccount.create -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "slipway.serviceAccount" (list .root .part) | quote }}
  namespace: {{ .root.Release.Namespace | quote }}
  labels:
    {{- include "slipway.labels" (list .root .part) | nindent 4 }}
  {{- with merge (dict) .values.serviceAccount.annotations .root.Values.commonAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Returns a binding of a role to a component's account. Takes a dict: root, part (the component), kind (ClusterRole or Role), name, role, namespace (of a Role). */}}
{{- define "slipway.binding" -}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}Binding
metadata:
  name: {{ .name }}
  {{- with .namespace }}
  namespace: {{ . | quote }}
  {{- end }}
  {{- include "slipway.metadata" (list .root .part) | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ default .name .role }}
subjects:
  - kind: ServiceAccount
    name: {{ include "slipway.serviceAccount" (list .root .part) | quote }}
    namespace: {{ .root.Release.Namespace | quote }}
{{- end }}
