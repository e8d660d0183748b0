{{/*
The agents of the nodes with one operating system, of a dict: root, part, values, os (linux or windows), those (what the values
say of it). What API servers refuse in a Windows pod is left out of it, and no file is mounted alone, which Windows cannot.
Images for Windows that make release writes run as host processes and not otherwise.
*/}}
{{- define "slipway.agent.daemonset" -}}
{{- $root := .root }}
{{- $v := .values }}
{{- $name := include "slipway.part" (list $root "agent") }}
{{- $linux := eq .os "linux" }}
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: {{ $name }}{{ if not $linux }}-{{ .os }}{{ end }}
  namespace: {{ $root.Release.Namespace | quote }}
  {{- include "slipway.metadata" (list $root "agent") | nindent 2 }}
spec:
  selector:
    matchLabels:
      {{- include "slipway.selector" (list $root "agent") | nindent 6 }}
      slipway.dev/os: {{ .os }}
  updateStrategy:
    rollingUpdate:
      maxUnavailable: {{ $v.maxUnavailable }}
  template:
    metadata:
      {{- $files := print (toYaml $v.config) (toYaml $v.extraFiles) }}
      {{- $meta := include "slipway.pod.metadata" (dict "root" $root "part" "agent" "values" $v "files" $files "metricsPort" $v.port) | fromYaml }}
      {{- $_ := set $meta.labels "slipway.dev/os" .os }}
      {{- toYaml $meta | nindent 6 }}
    spec:
      os:
        name: {{ .os }}
      serviceAccountName: {{ include "slipway.serviceAccount" (list $root "agent") | quote }}
      {{- include "slipway.pod.placement" . | trim | nindent 6 }}
      nodeSelector:
        {{- merge (dict "kubernetes.io/os" .os) .those.nodeSelector | toYaml | nindent 8 }}
      {{- with $v.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- if $linux }}
      {{- if $v.hostNetwork }}
      hostNetwork: true
      dnsPolicy: ClusterFirstWithHostNet
      {{- end }}
      {{- include "slipway.pod.linuxSecurity" . | nindent 6 }}
      {{- else if .those.hostProcess }}
      hostNetwork: true
      securityContext:
        runAsNonRoot: true
        windowsOptions:
          hostProcess: true
          runAsUserName: NT AUTHORITY\Local service
      {{- else }}
      securityContext:
        runAsNonRoot: true
        windowsOptions:
          runAsUserName: ContainerUser
      {{- end }}
      # The time to finish a running drain (stopGrace), plus the usual time to send what is left.
      terminationGracePeriodSeconds: {{ include "slipway.agent.stopSeconds" $v.config | int | add 30 }}
      containers:
        - name: agent
          image: {{ include "slipway.image" (list $root $v.binary) | quote }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          args:
            {{- if eq $v.binary "slipway" }}
            - agent
            {{- end }}
            - --config=/etc/slipway/config/agent.yaml
            - --listen=:{{ $v.port }}
            {{- with $v.extraArgs }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          env:
            - name: NODE_NAME
              valueFrom:
                fieldRef:
                  fieldPath: spec.nodeName
            {{- include "slipway.container.namespaceEnv" . | nindent 12 }}
          ports:
            - name: metrics
              containerPort: {{ $v.port }}
          {{- include "slipway.container.probes" . | nindent 10 }}
          resources:
            {{- default (include "slipway.agent.resources" . | fromYaml) .those.resources | toYaml | nindent 12 }}
          {{- if $linux }}
          {{- include "slipway.container.linuxSecurity" . | nindent 10 }}
          {{- end }}
          volumeMounts:
            - name: config
              mountPath: /etc/slipway/config
              readOnly: true
            - name: secrets
              mountPath: /etc/slipway/secrets
              readOnly: true
            {{- with include "slipway.extraMounts" . | trim }}
            {{- . | nindent 12 }}
            {{- end }}
      volumes:
        - name: config
          configMap:
            name: {{ $name }}
        - name: secrets
          secret:
            secretName: {{ default $name $v.secretName | quote }}
            optional: true
        {{- with include "slipway.extraVolumes" . | trim }}
        {{- . | nindent 8 }}
        {{- end }}
{{- end }}

{{/* Returns how many seconds an agent with this configuration waits for a drain before it ends, rounded up. */}}
{{- define "slipway.agent.stopSeconds" -}}
{{- divf (include "slipway.milliseconds" (default "0" .stopGrace) | float64) 1000.0 | ceil | int }}
{{- end }}

{{/* Returns the resources of an agent. Takes the same dict. The program slipway needs more than slipway-agent, and Windows more than Linux. */}}
{{- define "slipway.agent.resources" -}}
{{- $takes := list "5m" "24Mi" "48Mi" }}
{{- if ne .os "linux" }}
{{- $takes = list "20m" "64Mi" "128Mi" }}
{{- else if eq .values.binary "slipway" }}
{{- $takes = list "10m" "48Mi" "96Mi" }}
{{- end }}
requests:
  cpu: {{ index $takes 0 }}
  memory: {{ index $takes 1 }}
limits:
  memory: {{ index $takes 2 }}
{{- end }}
