{{/* Where the pods of manager and cloudpool run: placement of the values. */}}

{{/*
Returns the nodeAffinity of a component: the one of its values, the preferred nodes, and no managed nodes. Takes a dict: root,
values (of the component).
*/}}
{{- define "slipway.pod.nodeAffinity" -}}
{{- $given := default dict .values.affinity.nodeAffinity }}
{{- $preferred := default list $given.preferredDuringSchedulingIgnoredDuringExecution }}
{{- range .root.Values.placement.preferredNodes }}
{{- $preferred = append $preferred (dict "weight" 50 "preference" (dict "matchExpressions" (list .))) }}
{{- end }}
{{- /* Terms are alternatives. Outside of a managed group means that one of its labels differs, so each group multiplies the terms. */}}
{{- $terms := (default dict $given.requiredDuringSchedulingIgnoredDuringExecution).nodeSelectorTerms }}
{{- range include "slipway.managedNodes" .root | fromYamlArray }}
{{- $next := list }}
{{- $outside := include "slipway.negate" . | fromYamlArray }}
{{- range $expression := $outside }}
{{- range $term := default (list dict) $terms }}
{{- $next = append $next (merge (dict "matchExpressions" (append (default list $term.matchExpressions) $expression)) $term) }}
{{- end }}
{{- end }}
{{- /* The manager refuses a group without labels. */}}
{{- if $outside }}{{ $terms = $next }}{{ end }}
{{- if gt (len (default list $terms)) 64 }}
{{- fail "placement.managedNodes and manager.nodeGroups: their labels need more node selector terms than the 64 that are allowed: want one label per group, or placement.avoidManagedNodes: false" }}
{{- end }}
{{- end }}
{{- $all := dict }}
{{- with $terms }}{{ $_ := set $all "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" .) }}{{ end }}
{{- with $preferred }}{{ $_ := set $all "preferredDuringSchedulingIgnoredDuringExecution" . }}{{ end }}
{{- toYaml $all }}
{{- end }}

{{/* Returns the node selectors of the managed nodes, as a list. */}}
{{- define "slipway.managedNodes" -}}
{{- $selectors := list }}
{{- if .Values.placement.avoidManagedNodes }}
{{- $selectors = .Values.placement.managedNodes }}
{{- if .Values.manager.enabled }}
{{- range .Values.manager.nodeGroups }}
{{- with .nodeSelector }}{{ $selectors = append $selectors . }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- toYaml $selectors }}
{{- end }}

{{/* Returns expressions, as a list. One of them matches each node that a label selector does not match. */}}
{{- define "slipway.negate" -}}
{{- $opposite := dict "In" "NotIn" "NotIn" "In" "Exists" "DoesNotExist" "DoesNotExist" "Exists" }}
{{- $expressions := list }}
{{- range $key, $value := .matchLabels }}
{{- $expressions = append $expressions (dict "key" $key "operator" "NotIn" "values" (list (toString $value))) }}
{{- end }}
{{- range .matchExpressions }}
{{- $expressions = append $expressions (merge (dict "operator" (get $opposite .operator)) .) }}
{{- end }}
{{- toYaml $expressions }}
{{- end }}
