{{/*
Refuses values that contradict each other. Each error tells what is wrong and what to do. The schema refuses single wrong values.
*/}}

{{- define "slipway.refusals" -}}
{{- if not (or .Values.agent.enabled .Values.manager.enabled .Values.cloudpool.enabled) }}
{{- fail "agent.enabled, manager.enabled and cloudpool.enabled are all false: nothing would run; want at least one of them" }}
{{- end }}
{{- if and (or .Values.manager.enabled .Values.cloudpool.enabled) (semverCompare "<1.33.0-0" .Capabilities.KubeVersion.Version) }}
{{- fail (printf "manager.enabled and cloudpool.enabled need Kubernetes 1.33, and the cluster has %s: want both false, for agents alone" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- include "slipway.release.refusal" (dict "root" . "value" "image.release" "release" .Values.image.release) }}
{{- range $part := list "agent" "slipway" }}
{{- $image := get $.Values.image $part }}
{{- $tag := coalesce $image.tag $.Values.image.tag }}
{{- if and $image.digest $tag }}
{{- fail (printf "image.%s.digest and the tag %s are both set, and nodes would ignore the tag: want image.%s.digest: \"\" for the tag, or no tag" $part $tag $part) }}
{{- end }}
{{- end }}
{{- if and .Values.cloudpool.enabled (not .Values.manager.enabled) (eq .Values.crds.by "manager") }}
{{- fail "crds.by: manager, but manager.enabled is false, and the cloudpool needs the types: want chart, or none where another release has them" }}
{{- end }}
{{- if not (or .Values.manager.enabled .Values.cloudpool.enabled) }}
{{- if or .Values.clouds.config .Values.clouds.existingConfigMap .Values.clouds.secretName }}
{{- fail "clouds is set, but manager.enabled and cloudpool.enabled are false, and agents use no clouds: want manager.enabled: true, or no clouds" }}
{{- end }}
{{- end }}
{{- if and .Values.manager.nodeGroups (not .Values.manager.enabled) }}
{{- fail (printf "manager.nodeGroups: %s, but manager.enabled is false: want manager.enabled: true, or no NodeGroups" (keys .Values.manager.nodeGroups | sortAlpha | join ", ")) }}
{{- end }}
{{- if and .Values.clouds.config .Values.clouds.existingConfigMap }}
{{- fail (printf "clouds.config and clouds.existingConfigMap (%s) are both set: want one of them" .Values.clouds.existingConfigMap) }}
{{- end }}
{{- include "slipway.refusals.labels" (dict "value" "commonLabels" "labels" .Values.commonLabels) }}
{{- include "slipway.refusals.labels" (dict "value" "metrics.rules.labels" "labels" .Values.metrics.rules.labels) }}
{{- include "slipway.refusals.labels" (dict "value" "metrics.dashboard.labels" "labels" .Values.metrics.dashboard.labels) }}
{{- include "slipway.refusals.placeholders" .Values.placeholders }}
{{- include "slipway.refusals.accounts" . }}
{{- if or .Values.manager.enabled .Values.cloudpool.enabled }}{{ include "slipway.refusals.serviceName" (include "slipway.fullname" .) }}{{ end }}
{{- if .Values.agent.enabled }}{{ include "slipway.refusals.agent" . }}{{ include "slipway.refusals.receivers" . }}{{ end }}
{{- if .Values.manager.enabled }}{{ include "slipway.refusals.manager" . }}{{ end }}
{{- if .Values.cloudpool.enabled }}{{ include "slipway.refusals.cloudpool" . }}{{ end }}
{{- end }}

{{/* Refuses a prefix of the names that begins with a digit. Manager and cloudpool have Services. Takes the prefix. */}}
{{- define "slipway.refusals.serviceName" -}}
{{- if regexMatch "^[0-9]" . }}
{{- fail (printf "the names of all objects would begin with %q, and the name of a Service must begin with a letter: want fullnameOverride or another name of the release" .) }}
{{- end }}
{{- end }}

{{/* Refuses a missing account, annotations that no account would get, and one account for two components: each policy would limit both. */}}
{{- define "slipway.refusals.accounts" -}}
{{- $root := . }}
{{- $seen := dict }}
{{- range $part := list "agent" "manager" "cloudpool" }}
{{- $values := index $root.Values $part }}
{{- if $values.enabled }}
{{- if not (or $values.serviceAccount.create $values.serviceAccount.name) }}
{{- fail (printf "%s.serviceAccount.create is false and %s.serviceAccount.name is empty: want the name of your ServiceAccount" $part $part) }}
{{- end }}
{{- if and $values.serviceAccount.annotations (not $values.serviceAccount.create) }}
{{- fail (printf "%s.serviceAccount.annotations are set, but %s.serviceAccount.create is false: want the annotations on your ServiceAccount %s, and none here" $part $part $values.serviceAccount.name) }}
{{- end }}
{{- $name := include "slipway.serviceAccount" (list $root $part) }}
{{- with get $seen $name }}
{{- fail (printf "%s.serviceAccount.name: %s is also the account of %s: want an account of its own, because their rights differ" $part $name .) }}
{{- end }}
{{- $_ := set $seen $name $part }}
{{- end }}
{{- end }}
{{- end }}

{{/* Refuses a nodeSelector for nodes that placement excludes: no node could run the pods. Takes a list: root, part. */}}
{{- define "slipway.refusals.placement" -}}
{{- $root := index . 0 }}
{{- $part := index . 1 }}
{{- $selected := (index $root.Values $part).nodeSelector }}
{{- range $selector := include "slipway.managedNodes" $root | fromYamlArray }}
{{- $within := and $selector.matchLabels (not $selector.matchExpressions) }}
{{- range $key, $value := $selector.matchLabels }}{{ $within = and $within (eq (toString (get $selected $key)) (toString $value)) }}{{ end }}
{{- if $within }}
{{- fail (printf "%s.nodeSelector: all these nodes are of a managed group (%s), and placement.avoidManagedNodes keeps the pods off them: want other nodes, or placement.avoidManagedNodes: false" $part (toJson $selector.matchLabels)) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Of a dict: part, arguments, taken (a dict of flags that the chart sets, and the value to set instead). */}}
{{- define "slipway.refusals.arguments" -}}
{{- $x := . }}
{{- range $x.arguments }}
{{- $flag := regexReplaceAll "=.*$" . "" }}
{{- with index $x.taken $flag }}
{{- fail (printf "%s.extraArgs: %s is set by the chart: want %s instead" $x.part $flag .) }}
{{- end }}
{{- end }}
{{- end }}

{{/*
Refuses flags that override the agent's file. The chart checks the file and derives permissions, image and policies from it. Flags
would bypass these checks. Takes a list of arguments. Another template refuses the flags that the chart itself sets.
*/}}
{{- define "slipway.refusals.agentFlags" -}}
{{- range . }}
{{- $flag := regexReplaceAll "=.*$" . "" }}
{{- if not (has $flag (list "--condition" "--kubeconfig")) }}
{{- $words := splitList "-" (trimPrefix "--" $flag) }}
{{- $key := first $words }}
{{- range rest $words }}{{ $key = print $key (title .) }}{{ end }}
{{- fail (printf "agent.extraArgs: %s is a key of the agent's file: want agent.config.%s instead" $flag $key) }}
{{- end }}
{{- end }}
{{- end }}

{{/*
Returns the limits that the agent has for each duration: least and most in milliseconds, both as text (words), and whether 0 is
allowed too (zero).
*/}}
{{- define "slipway.agent.durations" -}}
acknowledgeFreezeUnder: {least: 0, most: 3600000, words: 0 to 1h}
asgHookTimeout: {least: 30000, most: 172800000, words: "0, or 30s to 48h", zero: true}
deadlineMargin: {least: 0, most: 60000, words: 0 to 1m}
maintenanceLead: {least: 0, most: 2592000000, words: 0 to 720h}
pollInterval: {least: 100, most: 60000, words: 100ms to 1m}
retirementLead: {least: 0, most: 2592000000, words: 0 to 720h}
stopGrace: {least: 0, most: 600000, words: 0 to 10m}
unconfirmedAfter: {least: 10000, most: 3600000, words: 10s to 1h}
{{- end }}

{{/* Returns the milliseconds of a duration in Go's format, such as 1m30s. */}}
{{- define "slipway.milliseconds" -}}
{{- $units := dict "ns" 0.000001 "us" 0.001 "µs" 0.001 "ms" 1.0 "s" 1000.0 "m" 60000.0 "h" 3600000.0 }}
{{- $sum := 0.0 }}
{{- range regexFindAll "[0-9.]+(ns|us|µs|ms|s|m|h)" . -1 }}
{{- $number := regexFind "^[0-9.]+" . }}
{{- $sum = addf $sum (mulf (float64 $number) (get $units (trimPrefix $number .))) }}
{{- end }}
{{- $sum }}
{{- end }}

{{/* Refuses what every agent would refuse at its start. Takes a dict: value (the name of the value), config (an agent's file). */}}
{{- define "slipway.refusals.agentConfig" -}}
{{- $value := .value }}
{{- $config := .config }}
{{- range $key, $bound := include "slipway.agent.durations" . | fromYaml }}
{{- with get $config $key }}
{{- $is := include "slipway.milliseconds" . | float64 }}
{{- if and (or (lt $is (float64 $bound.least)) (gt $is (float64 $bound.most))) (not (and $bound.zero (eq $is 0.0))) }}
{{- fail (printf "%s.%s: %s: want %s" $value $key . $bound.words) }}
{{- end }}
{{- end }}
{{- end }}
{{- $request := default "5s" $config.requestTimeout }}
{{- $first := default "2m10s" $config.firstRequestTimeout }}
{{- $milliseconds := include "slipway.milliseconds" $request | float64 }}
{{- if or (eq $milliseconds 0.0) (gt $milliseconds (include "slipway.milliseconds" $first | float64)) }}
{{- fail (printf "%s.requestTimeout: %s: want more than 0, and not more than firstRequestTimeout (%s)" $value $request $first) }}
{{- end }}
{{- if and $config.disableEviction (ne (default "never" $config.surge) "never") }}
{{- fail (printf "%s.surge: %s: want never with disableEviction: true, because pods that are deleted at once get no successor first" $value $config.surge) }}
{{- end }}
{{- with $config.acknowledgeFreezeUnder }}
{{- if and (eq (toString $config.acknowledge) "false") (gt (include "slipway.milliseconds" . | float64) 0.0) }}
{{- fail (printf "%s.acknowledgeFreezeUnder: %s: want 0 with acknowledge: false, because nothing is acknowledged" $value .) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Refuses values for the labels that selectors use. Takes a dict: value (the name of the value), labels. */}}
{{- define "slipway.refusals.labels" -}}
{{- $x := . }}
{{- range $key := keys (default dict $x.labels) | sortAlpha }}
{{- if has $key (list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/part-of" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "helm.sh/chart" "slipway.dev/os" "slipway.dev/placeholder") }}
{{- fail (printf "%s: %s is the chart's own label: want another key" $x.value $key) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Of a dict: part, values, volumes (names of the chart's own), paths (where it mounts them). */}}
{{- define "slipway.refusals.volumes" -}}
{{- $x := . }}
{{- range $x.values.extraVolumes }}
{{- if has .name $x.volumes }}
{{- fail (printf "%s.extraVolumes: %s is a volume of the chart's: want another name than %s" $x.part .name (join ", " $x.volumes)) }}
{{- end }}
{{- end }}
{{- range $x.values.extraVolumeMounts }}
{{- if has (trimSuffix "/" (toString .mountPath)) $x.paths }}
{{- fail (printf "%s.extraVolumeMounts: %s is where the chart mounts a volume: want another path than %s" $x.part .mountPath (join ", " $x.paths)) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "slipway.refusals.agent" -}}
{{- $a := .Values.agent }}
{{- if not (or $a.linux.enabled $a.windows.enabled) }}
{{- fail "agent.linux.enabled and agent.windows.enabled are both false: no node would be guarded; want one of them, or agent.enabled: false" }}
{{- end }}
{{- if and $a.config.disableEviction (not $a.forcedDrains) }}
{{- fail "agent.config.disableEviction deletes pods, and agent.forcedDrains: false keeps the right to from the agent: want disableEviction false or forcedDrains true" }}
{{- end }}
{{- if and $a.config.traceEndpoint (ne $a.binary "slipway") }}
{{- fail (printf "agent.config.traceEndpoint: %s sends no traces: want agent.binary: slipway" $a.binary) }}
{{- end }}
{{- if $a.admissionPolicies }}
{{- range $key := append (keys (default dict $a.config.label) | sortAlpha) (default "slipway.dev/notice" $a.config.taintKey) }}
{{- if not (regexMatch (printf "^(([a-z0-9-]+[.])*slipway[.]dev/|%s)" (include "slipway.guard.toolKeys" dict)) $key) }}
{{- fail (printf "agent.config: the label or taint %q is none that agent.admissionPolicies lets agents write: want a key under slipway.dev, such as slipway.dev/%s, or agent.admissionPolicies: false" $key (base $key)) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and (ne (default "never" $a.config.surge) "never") (not $a.admissionPolicies) }}
{{- fail (printf "agent.config.surge: %s, but agent.admissionPolicies is false: a stolen token could then change the image of every pod; want agent.admissionPolicies: true, or surge: never" $a.config.surge) }}
{{- end }}
{{- if regexMatch "^0+%?$" (toString $a.maxUnavailable) }}
{{- fail (printf "agent.maxUnavailable: %v: no agent could be replaced by an upgrade; want 1 or more" $a.maxUnavailable) }}
{{- end }}
{{- include "slipway.refusals.agentConfig" (dict "value" "agent.config" "config" $a.config) }}
{{- include "slipway.refusals.labels" (dict "value" "agent.podLabels" "labels" $a.podLabels) }}
{{- include "slipway.refusals.volumes" (dict "part" "agent" "values" $a "volumes" (list "config" "secrets" "files")
  "paths" (list "/etc/slipway/config" "/etc/slipway/secrets" "/etc/slipway/files")) }}
{{- include "slipway.refusals.arguments" (dict "part" "agent" "arguments" $a.extraArgs "taken" (dict
  "--config" "agent.config" "--listen" "agent.port" "--namespace" "the release's namespace" "--node-name" "the pod's own node")) }}
{{- include "slipway.refusals.agentFlags" $a.extraArgs }}
{{- end }}

{{/*
Notifications and traces that the agents' NetworkPolicy would cut off without a word, as no value says where they go. What goes
to an address in a file, or by a proxy of the environment, is known to be cut off only where addresses are limited too.
*/}}
{{- define "slipway.refusals.receivers" -}}
{{- $a := .Values.agent }}
{{- $n := .Values.networkPolicy }}
{{- if and $n.enabled (not $n.receivers) (include "slipway.onPodNetwork" (list "agent" $a) | fromYamlArray) }}
{{- $proxied := include "slipway.agent.proxied" $a }}
{{- range $a.config.notifications }}
{{- $port := include "slipway.receiver.port" . }}
{{- if and $proxied (not .proxy) }}{{ $port = "" }}{{ end }}
{{- include "slipway.refusals.receiver" (dict "policy" $n "value" (printf "agent.config.notifications: %v" .name) "port" $port) }}
{{- end }}
{{- with $a.config.traceEndpoint }}
{{- $port := ternary "" (include "slipway.urlPort" .) (eq $proxied "true") }}
{{- include "slipway.refusals.receiver" (dict "policy" $n "value" "agent.config.traceEndpoint" "port" $port) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Of a dict: policy, value (what sends), port (where to, empty where it is not known). */}}
{{- define "slipway.refusals.receiver" -}}
{{- $ports := list }}
{{- range .policy.apiServer.ports }}{{ $ports = append $ports (int . | toString) }}{{ end }}
{{- if .policy.apiServer.cidrs }}
{{- fail (printf "%s: networkPolicy.enabled with networkPolicy.apiServer.cidrs lets agents reach no receivers: want networkPolicy.receivers with an egress rule for where it goes" .value) }}
{{- else if and .port (not (has .port $ports)) }}
{{- fail (printf "%s: goes to port %s, and networkPolicy.enabled lets agents reach %s alone: want networkPolicy.receivers with an egress rule for where it goes" .value .port (join ", " $ports)) }}
{{- end }}
{{- end }}

{{/* Returns "true" if environment variables may name a proxy, or nothing. */}}
{{- define "slipway.agent.proxied" -}}
{{- $proxied := false }}
{{- range .extraEnv }}{{ $proxied = or $proxied (regexMatch "^(?i)https?_proxy$" (toString .name)) }}{{ end }}
{{- if $proxied }}true{{ end }}
{{- end }}

{{/* Returns the port for the messages of a receiver, or of its proxy if it has one. Returns nothing if the port is not known. */}}
{{- define "slipway.receiver.port" -}}
{{- $webhook := default dict .webhook }}
{{- $telegram := default dict .telegram }}
{{- if and .proxy (ne (toString .proxy) "direct") }}
{{- include "slipway.urlPort" .proxy }}
{{- else if and (kindIs "map" $webhook) $webhook }}
{{- include "slipway.urlPort" $webhook.url }}
{{- else if and (kindIs "map" $telegram) $telegram }}
{{- include "slipway.urlPort" (default "https://api.telegram.org" $telegram.url) }}
{{- end }}
{{- end }}

{{/* Returns the port of an address. Returns nothing if the port is not known, for example because a template sets the host. */}}
{{- define "slipway.urlPort" -}}
{{- $authority := regexFind "^https?://[^/?#]*" (default "" . | toString) }}
{{- $port := regexFind ":[0-9]+$" $authority }}
{{- if $port }}
{{- trimPrefix ":" $port }}
{{- else if not (contains "{{" $authority) }}
{{- get (dict "https" "443" "http" "80") (regexFind "^https?" $authority) }}
{{- end }}
{{- end }}

{{- define "slipway.refusals.manager" -}}
{{- $m := .Values.manager }}
{{- if not $m.surge }}
{{- range $group, $spec := $m.nodeGroups }}
{{- with (default dict $spec.drain).surge }}
{{- if ne . "Never" }}
{{- fail (printf "manager.nodeGroups.%s.drain.surge: %s, but manager.surge: false gives the manager no rights for it: want manager.surge: true, or drain.surge: Never" $group .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if and $m.surge (not $m.admissionPolicies) }}
{{- fail "manager.surge: true, but manager.admissionPolicies is false: a stolen token could then change the image of every pod; want manager.admissionPolicies: true, or surge: false" }}
{{- end }}
{{- include "slipway.refusals.awsQueue" $m }}
{{- range $m.extraArgs }}
{{- if and (gt (int $m.replicas) 1) (regexMatch "^--leader-elect=(0|f|F|false|False|FALSE)$" .) }}
{{- fail (printf "manager.replicas: %d, but manager.extraArgs has %s: two would act at once; want one replica or leader election" (int $m.replicas) .) }}
{{- end }}
{{- end }}
{{- include "slipway.refusals.budget" (list "manager" $m) }}
{{- include "slipway.refusals.placement" (list . "manager") }}
{{- include "slipway.refusals.labels" (dict "value" "manager.podLabels" "labels" $m.podLabels) }}
{{- include "slipway.refusals.volumes" (dict "part" "manager" "values" $m "volumes" (list "tmp" "config" "queue" "clouds" "secrets" "files")
  "paths" (list "/tmp" "/etc/slipway/config" "/etc/slipway/queue" "/etc/slipway/clouds" "/etc/slipway/secrets" "/etc/slipway/files")) }}
{{- include "slipway.refusals.arguments" (dict "part" "manager" "arguments" $m.extraArgs "taken" (dict
  "--listen" "manager.port" "--leader-election-namespace" "the release's namespace" "--cloud-config" "clouds.config" "--node-groups" "manager.nodeGroups" "--install-crds" "crds.by"
  "--aws-queue-url" "manager.awsQueue.url" "--aws-queue-agent-config" "manager.awsQueue.agentConfig")) }}
{{- end }}

{{- define "slipway.refusals.awsQueue" -}}
{{- $q := .awsQueue }}
{{- if and $q.url (not .admissionPolicies) }}
{{- fail "manager.awsQueue.url is set, but manager.admissionPolicies is false: a stolen token could then change the status and the finalizers of every pod, and any field of every Node; want manager.admissionPolicies: true, or no queue" }}
{{- end }}
{{- if and $q.agentConfig (not $q.url) }}
{{- fail "manager.awsQueue.agentConfig is the policy for notices of a queue, but manager.awsQueue.url is empty: want the URL of the queue" }}
{{- end }}
{{- if not $q.url }}
{{- range .extraArgs }}
{{- if hasPrefix "--aws-queue-" . }}
{{- $flag := regexReplaceAll "=.*$" . "" }}
{{- fail (printf "manager.extraArgs: %s is for the queue mode, but manager.awsQueue.url is empty: want the URL of the queue, or no %s" $flag $flag) }}
{{- end }}
{{- end }}
{{- end }}
{{- range $key := append (keys (default dict $q.agentConfig.label) | sortAlpha) (default "slipway.dev/notice" $q.agentConfig.taintKey) }}
{{- if not (regexMatch "^([a-z0-9-]+[.])*slipway[.]dev/" $key) }}
{{- fail (printf "manager.awsQueue.agentConfig: the label or taint %q is none that manager.admissionPolicies lets the manager write: want a key under slipway.dev, such as slipway.dev/%s" $key (base $key)) }}
{{- end }}
{{- end }}
{{- if ne (default "never" $q.agentConfig.surge) "never" }}
{{- fail (printf "manager.awsQueue.agentConfig.surge: %s: the queue mode has no rights for surges; want never" $q.agentConfig.surge) }}
{{- end }}
{{- if $q.agentConfig.maxConcurrentDrains }}
{{- fail "manager.awsQueue.agentConfig.maxConcurrentDrains: the manager has no rights for the drain slots of agents; want --aws-queue-workers in manager.extraArgs instead" }}
{{- end }}
{{- include "slipway.refusals.agentConfig" (dict "value" "manager.awsQueue.agentConfig" "config" $q.agentConfig) }}
{{- end }}

{{- define "slipway.refusals.cloudpool" -}}
{{- $c := .Values.cloudpool }}
{{- $clouds := include "slipway.clouds" . }}
{{- if not (or $clouds $c.nodeGroups) }}
{{- fail "cloudpool.enabled, but there is neither a pool nor a NodeGroup to serve: want clouds.config, clouds.existingConfigMap or cloudpool.nodeGroups" }}
{{- end }}
{{- if and $c.pools (not $clouds) }}
{{- fail (printf "cloudpool.pools: %s: pools are named in the file of clouds, and there is none: want clouds.config or clouds.existingConfigMap" (join ", " $c.pools)) }}
{{- end }}
{{- if and .Values.clouds.config (not $c.nodeGroups) (not .Values.clouds.config.cloudpool) }}
{{- fail "cloudpool.enabled, but clouds.config names no cloudpool servers, and cloudpool.nodeGroups no NodeGroups to serve: want clouds.config.cloudpool or cloudpool.nodeGroups" }}
{{- end }}
{{- if and $c.bootstrapTokens (not $c.nodeGroups) }}
{{- fail "cloudpool.bootstrapTokens: true, but cloudpool.nodeGroups is empty, and a proxy launches no machines: want cloudpool.nodeGroups, or bootstrapTokens: false" }}
{{- end }}
{{- include "slipway.refusals.pools" . }}
{{- if eq (int $c.port) (int $c.metricsPort) }}
{{- fail (printf "cloudpool.port and cloudpool.metricsPort are both %d: want two ports" (int $c.port)) }}
{{- end }}
{{- if .Values.manager.enabled }}
{{- range $c.nodeGroups }}
{{- if hasKey $.Values.manager.nodeGroups . }}
{{- fail (printf "cloudpool.nodeGroups: %s is in manager.nodeGroups, a file that the manager alone reads: want the NodeGroup as an object of the API server" .) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and $c.insecure (or $c.tls.secretName $c.clientCA.secretName) $c.authorize }}
{{- fail "cloudpool.insecure: true, but cloudpool.tls and cloudpool.authorize make it secure: want insecure: false" }}
{{- end }}
{{- if not $c.insecure }}
{{- if not $c.tls.secretName }}
{{- fail "cloudpool.tls.secretName is empty: want a Secret with tls.crt and tls.key, or cloudpool.insecure: true, by which whoever reads along can remove machines" }}
{{- end }}
{{- if not (or $c.authorize $c.clientCA.secretName) }}
{{- fail "cloudpool.authorize is false and cloudpool.clientCA.secretName is empty: whoever reaches it could remove machines; want one of them, or cloudpool.insecure: true" }}
{{- end }}
{{- end }}
{{- if and $c.clientCA.secretName (not $c.tls.secretName) }}
{{- fail (printf "cloudpool.clientCA.secretName: %s: clients show certificates over TLS alone: want cloudpool.tls.secretName too" $c.clientCA.secretName) }}
{{- end }}
{{- include "slipway.refusals.budget" (list "cloudpool" $c) }}
{{- include "slipway.refusals.placement" (list . "cloudpool") }}
{{- include "slipway.refusals.labels" (dict "value" "cloudpool.podLabels" "labels" $c.podLabels) }}
{{- include "slipway.refusals.volumes" (dict "part" "cloudpool" "values" $c "volumes" (list "tmp" "clouds" "secrets" "tls" "client-ca" "files")
  "paths" (list "/tmp" "/etc/slipway/clouds" "/etc/slipway/secrets" "/etc/slipway/tls" "/etc/slipway/client-ca" "/etc/slipway/files")) }}
{{- include "slipway.refusals.arguments" (dict "part" "cloudpool" "arguments" $c.extraArgs "taken" (dict
  "--namespace" "the release's namespace" "--identity" "the pod's own name" "--holder" "the pod's own name" "--listen" "cloudpool.port" "--metrics-listen" "cloudpool.metricsPort" "--cloud-config" "clouds.config" "--pool" "cloudpool.pools"
  "--native" "cloudpool.nodeGroups" "--tls-cert-file" "cloudpool.tls" "--tls-private-key-file" "cloudpool.tls"
  "--client-ca-file" "cloudpool.clientCA" "--authorize" "cloudpool.authorize" "--insecure" "cloudpool.insecure"
  "--remove-last-worker" "cloudpool.removeLastWorker")) }}
{{- end }}

{{/* Pools that clouds.config does not have. A server of several names its own, and a ConfigMap of one's own is not seen here. */}}
{{- define "slipway.refusals.pools" -}}
{{- if .Values.clouds.config }}
{{- $known := list }}
{{- $several := false }}
{{- range (default dict .Values.clouds.config.cloudpool).pools }}
{{- $known = append $known (default "" .name) }}
{{- $several = or $several .multi }}
{{- end }}
{{- range .Values.cloudpool.pools }}
{{- if not (or $several (has . $known)) }}
{{- fail (printf "cloudpool.pools: %s is not in clouds.config.cloudpool.pools: want %s" . (default "its server there" (join ", " $known))) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "slipway.refusals.placeholders" -}}
{{- $seen := dict }}
{{- range . }}
{{- if hasKey $seen .name }}
{{- fail (printf "placeholders: %s is there twice: want names that differ" .name) }}
{{- end }}
{{- $_ := set $seen .name true }}
{{- include "slipway.refusals.labels" (dict "value" (printf "placeholders: %s: labels" .name) "labels" .labels) }}
{{- end }}
{{- end }}

{{- define "slipway.refusals.budget" -}}
{{- $v := index . 1 }}
{{- if and $v.podDisruptionBudget.enabled (regexMatch "^0+%?$" (toString $v.podDisruptionBudget.maxUnavailable)) }}
{{- fail (printf "%s.podDisruptionBudget.maxUnavailable: %v: no node with it could ever be drained; want 1 or more" (index . 0) $v.podDisruptionBudget.maxUnavailable) }}
{{- end }}
{{- end }}
