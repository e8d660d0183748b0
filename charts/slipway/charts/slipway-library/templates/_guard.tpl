{{/*
The permissions of an agent's account, and the policies that limit them. Each template takes a dict: name (of the objects), namespace and account
(of the agents), metadata (labels and annotations), mayDelete (pods), zeroGrace (evict pods with a grace period of 0).
*/}}

{{/* The permissions of the agent in the whole cluster, for its node and the pods on its node. */}}
{{- define "slipway.guard.rules" -}}
# To cordon, taint, label and annotate the node by patch, and to find the other machines of an event by label.
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, list, watch, patch]
# To write the lifecycle conditions of nodes.
- apiGroups: [""]
  resources: [nodes/status]
  verbs: [patch]
# To read the pods on the node, by field selector.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
{{- if .mayDelete }}
# To delete pods near a deadline. Some pods are still blocked by a PodDisruptionBudget when their grace period must begin.
# Other pods have a grace period that ends after the deadline, and get a shorter one. Without this permission, these pods
# are killed when the machine stops.
- apiGroups: [""]
  resources: [pods]
  verbs: [delete]
# To set the condition DisruptionTarget before a deletion, so that Jobs do not count the deletion as a failure.
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch]
{{- end }}
# To report which PodDisruptionBudget blocks an eviction, and to continue as soon as it allows the eviction.
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list, watch]
# To read whether the pods of a PodGroup lose their work together. Without this permission, every PodGroup counts so.
- apiGroups: [scheduling.k8s.io]
  resources: [podgroups]
  verbs: [get]
# To ask the responders of a pod before its eviction (Kubernetes 1.37 with the feature gate EvictionRequestAPI).
- apiGroups: [lifecycle.k8s.io]
  resources: [evictionrequests]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [lifecycle.k8s.io]
  resources: [evictions]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
# To wait until volumes are detached (--wait-for-detach).
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get]
- apiGroups: [storage.k8s.io]
  resources: [volumeattachments]
  verbs: [list]
{{- end }}

{{/* The permissions of the agent in its own namespace. */}}
{{- define "slipway.guard.leaseRules" -}}
# The Leases of drain slots (--max-concurrent-drains). The rule for changes lists their names, so that agents cannot change
# other Leases. RBAC cannot limit the names of created Leases, but an admission policy does.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [list, create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames:
    {{- range until 16 }}
    - slipway-drain-{{ . }}
    {{- end }}
  verbs: [update]
{{- end }}

{{/*
The policy that limits an account's patches of Nodes to the fields that Slipway writes. It takes further keys: who (for messages), keys
(a pattern of labels, annotations and taints that the account writes in addition to Slipway's own), andThose and andAnnotations (the
same for messages), ownNode (the token belongs to one node and may change only that node).
*/}}
{{- define "slipway.guard.node" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ .name }}-node
  {{- .metadata | nindent 2 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [""]
        apiVersions: [v1]
        resources: [nodes, nodes/status]
        operations: [UPDATE]
  matchConditions:
    - name: the-account
      expression: request.userInfo.username == 'system:serviceaccount:{{ .namespace }}:{{ .account }}'
  variables:
    {{- if .ownNode }}
    - name: node
      expression: request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][?0].orValue('')
    {{- end }}
    # Pattern for the keys of labels, annotations and taints that this account may write.
    - name: ours
      expression: "'^(([a-z0-9-]+[.])*slipway[.]dev/|{{ .keys }})'"
    - name: ourConditions
      expression: "'^(MaintenancePlanned|MaintenanceInProgress|DrainInProgress|Drained|Slipway.*|([a-z0-9-]+[.])*slipway[.]dev/.*)$'"
    - name: labels
      expression: object.metadata.?labels.orValue({})
    - name: oldLabels
      expression: oldObject.metadata.?labels.orValue({})
    - name: annotations
      expression: object.metadata.?annotations.orValue({})
    - name: oldAnnotations
      expression: oldObject.metadata.?annotations.orValue({})
    - name: otherTaints
      expression: object.spec.?taints.orValue([]).filter(t, !t.key.matches(variables.ours))
    - name: oldOtherTaints
      expression: oldObject.spec.?taints.orValue([]).filter(t, !t.key.matches(variables.ours))
    - name: otherConditions
      expression: object.status.?conditions.orValue([]).filter(c, !c.type.matches(variables.ourConditions))
    - name: oldOtherConditions
      expression: oldObject.status.?conditions.orValue([]).filter(c, !c.type.matches(variables.ourConditions))
    # Compares all fields that exist, so that the comparison includes fields that a later version of Kubernetes adds.
    - name: metadata
      expression: dyn(object.metadata)
    - name: oldMetadata
      expression: dyn(oldObject.metadata)
    - name: spec
      expression: dyn(object.spec)
    - name: oldSpec
      expression: dyn(oldObject.spec)
    - name: status
      expression: dyn(object.status)
    - name: oldStatus
      expression: dyn(oldObject.status)
  validations:
    {{- if .ownNode }}
    - expression: variables.node != ''
      message: the token of a Slipway agent must be bound to its pod or node, and this one does not say which node it is of
      reason: Forbidden
    - expression: object.metadata.name == variables.node
      messageExpression: >-
        'this token is of the Slipway agent on node ' + variables.node + ', and changes no other node'
      reason: Forbidden
    {{- end }}
    {{- if .ownNode }}
    # An agent on GKE starts a planned maintenance with a label of Google. It removes the label only if it has set it.
    {{- end }}
    - expression: >-
        variables.labels.all(k, k.matches(variables.ours) || k in variables.oldLabels && variables.oldLabels[k] == variables.labels[k]
        {{- if .ownNode }}
        || k == 'cloud.google.com/perform-maintenance' && variables.labels[k] == 'true'
        {{- end }})
        && variables.oldLabels.all(k, k.matches(variables.ours) || k in variables.labels
        {{- if .ownNode }}
        || k == 'cloud.google.com/perform-maintenance' && 'gke.slipway.dev/perform-maintenance' in variables.oldAnnotations
        {{- end }})
      message: {{ .who }} changes no labels but those under slipway.dev{{ .andThose }}
      reason: Forbidden
    - expression: >-
        variables.annotations.all(k, k.matches(variables.ours) || k in variables.oldAnnotations && variables.oldAnnotations[k] == variables.annotations[k])
        && variables.oldAnnotations.all(k, k.matches(variables.ours) || k in variables.annotations)
      message: {{ .who }} changes no annotations but those under slipway.dev{{ .andAnnotations }}
      reason: Forbidden
    - expression: >-
        variables.metadata.all(k, k in ['labels', 'annotations', 'managedFields', 'resourceVersion', 'generation'] ||
        k in variables.oldMetadata && variables.oldMetadata[k] == variables.metadata[k])
        && variables.oldMetadata.all(k, k in ['labels', 'annotations', 'managedFields'] || k in variables.metadata)
      message: {{ .who }} changes nothing of a node's metadata but labels and annotations
      reason: Forbidden
    - expression: variables.otherTaints == variables.oldOtherTaints
      message: {{ .who }} changes no taints but those under slipway.dev{{ .andThose }}
      reason: Forbidden
    - expression: >-
        variables.spec.all(k, k in ['unschedulable', 'taints'] || k in variables.oldSpec && variables.oldSpec[k] == variables.spec[k])
        && variables.oldSpec.all(k, k in ['unschedulable', 'taints'] || k in variables.spec)
      message: {{ .who }} changes nothing of a node's spec but unschedulable and taints
      reason: Forbidden
    # The comparison ignores the order of the conditions, because a patch may change the order.
    - expression: >-
        variables.otherConditions.all(c, c in variables.oldOtherConditions)
        && variables.oldOtherConditions.all(c, c in variables.otherConditions)
      message: {{ .who }} changes no conditions but those that Slipway writes
      reason: Forbidden
    - expression: >-
        variables.status.all(k, k == 'conditions' || k in variables.oldStatus && variables.oldStatus[k] == variables.status[k])
        && variables.oldStatus.all(k, k == 'conditions' || k in variables.status)
      message: {{ .who }} changes nothing of a node's status but conditions
      reason: Forbidden
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}-node
  {{- .metadata | nindent 2 }}
spec:
  policyName: {{ .name }}-node
  validationActions: [Deny]
{{- end }}

{{/*
Returns a pattern of the keys of the replaced tools, and of the label that excludes a node from load balancers. It takes a further key,
moreKeys, that begins with |.
*/}}
{{- define "slipway.guard.toolKeys" -}}
aks-node-termination-handler/|aws-node-termination-handler/|node[.]kubernetes[.]io/exclude-from-external-load-balancers$|mechanic[.]cordoned${{ .moreKeys }}
{{- end }}

{{/* The admission policies that limit an agent's token to its node. It takes a further key: moreKeys of slipway.guard.toolKeys. */}}
{{- define "slipway.guard.admission" -}}
# An agent's token may change only the node that it was mounted on, so that a stolen token is of little use. RBAC cannot
# limit this, because all agents share one ServiceAccount. The API server knows the node of a token
# (authentication.kubernetes.io/node-name, in Kubernetes 1.30 and later). The policy refuses a token without a node.
#
# Admission does not check reads, so each agent can list all pods and nodes. An Eviction does not name the pod's node. So a
# stolen token can evict pods on other nodes, {{ if not .zeroGrace }}with their grace period and {{ end }}within their PodDisruptionBudgets.
# The deletion of a pod, and its condition DisruptionTarget, are limited to the token's node.
{{ include "slipway.guard.node" (merge (dict "who" "a Slipway agent" "ownNode" true
  "keys" (include "slipway.guard.toolKeys" .) "andThose" " and the ones of the tools that it replaces" "andAnnotations" "") .) }}
---
{{ include "slipway.guard.pods" (merge (dict "who" "a Slipway agent" "ownNode" true) .) }}
---
{{ include "slipway.guard.eviction" (merge (dict "who" "a Slipway agent" "ownNode" true) .) }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ .name }}-eviction-request
  {{- .metadata | nindent 2 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [lifecycle.k8s.io]
        apiVersions: ['*']
        resources: [evictionrequests]
        operations: [CREATE, UPDATE, DELETE]
  matchConditions:
    - name: an-agent
      expression: request.userInfo.username == 'system:serviceaccount:{{ .namespace }}:{{ .account }}'
  variables:
    - name: node
      expression: request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][?0].orValue('')
    - name: requests
      expression: '[dyn(object), dyn(oldObject)].filter(o, o != null)'
  validations:
    - expression: variables.node != ''
      message: the token of a Slipway agent must be bound to its pod or node, and this one does not say which node it is of
      reason: Forbidden
    - expression: variables.requests.all(r, r.spec.requester == 'slipway.dev/drain')
      message: a Slipway agent writes no EvictionRequests but those of the requester slipway.dev/drain
      reason: Forbidden
    # A longer name is cut in the label, and ends with a hash. The hash is not checked.
    - expression: >-
        variables.requests.all(r, size(variables.node) > 63
        ? r.metadata.?labels[?'slipway.dev/drain-node'].orValue('').matches('^.{54}-[0-9a-f]{8}$')
        && r.metadata.labels['slipway.dev/drain-node'].startsWith(variables.node.substring(0, 54))
        : r.metadata.?labels[?'slipway.dev/drain-node'].orValue('') == variables.node)
      messageExpression: >-
        'this token is of the Slipway agent on node ' + variables.node + ', and writes no EvictionRequests of other drains'
      reason: Forbidden
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}-eviction-request
  {{- .metadata | nindent 2 }}
spec:
  policyName: {{ .name }}-eviction-request
  validationActions: [Deny]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ .name }}-event
  {{- .metadata | nindent 2 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [""]
        apiVersions: [v1]
        resources: [events]
        operations: [CREATE, UPDATE]
  matchConditions:
    - name: an-agent
      expression: request.userInfo.username == 'system:serviceaccount:{{ .namespace }}:{{ .account }}'
  variables:
    - name: node
      expression: request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][?0].orValue('')
    # Fields of the core group's Event. The API server converts an Event of events.k8s.io to this kind.
    - name: about
      expression: dyn(object).involvedObject
  validations:
    - expression: variables.node != ''
      message: the token of a Slipway agent must be bound to its pod or node, and this one does not say which node it is of
      reason: Forbidden
    - expression: variables.about.kind == 'Node' && variables.about.name == variables.node
      messageExpression: >-
        'this token is of the Slipway agent on node ' + variables.node + ', and reports of nothing else'
      reason: Forbidden
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}-event
  {{- .metadata | nindent 2 }}
spec:
  policyName: {{ .name }}-event
  validationActions: [Deny]
---
{{ include "slipway.guard.lease" (merge (dict "who" "a Slipway agent" "ownNode" true "leases" "slipway-drain-([0-9]|1[0-5])"
  "leaseWords" "those of drain slots, slipway-drain-0 to slipway-drain-15" "holds" "a drain slot") .) }}
{{- end }}

{{/* The policy that limits an account's evictions. Takes further keys: who (for messages), ownNode (the token belongs to one node). */}}
{{- define "slipway.guard.eviction" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ .name }}-eviction
  {{- .metadata | nindent 2 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [""]
        apiVersions: [v1]
        resources: [pods/eviction]
        operations: [CREATE]
  matchConditions:
    - name: the-account
      expression: request.userInfo.username == 'system:serviceaccount:{{ .namespace }}:{{ .account }}'
  validations:
    {{- with include "slipway.guard.boundToken" . | trim }}
    {{- . | nindent 4 }}
    {{- end }}
    - expression: object.?deleteOptions.?preconditions.?uid.orValue('') != ''
      message: {{ .who }} evicts no pod without its UID as the precondition
      reason: Forbidden
    {{- if not .zeroGrace }}
    - expression: object.?deleteOptions.?gracePeriodSeconds.orValue(1) != 0
      message: {{ .who }} evicts no pod with a grace period of 0, which leaves it no time to stop
      reason: Forbidden
    {{- end }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}-eviction
  {{- .metadata | nindent 2 }}
spec:
  policyName: {{ .name }}-eviction
  validationActions: [Deny]
{{- end }}

{{/*
The policy that limits an account's Leases. Takes further keys: who, leases (a pattern of the names), leaseWords and holds (the same for
messages), ownNode (the token belongs to one node, which is the holder).
*/}}
{{- define "slipway.guard.lease" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ .name }}-lease
  {{- .metadata | nindent 2 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [coordination.k8s.io]
        apiVersions: [v1]
        resources: [leases]
        operations: [CREATE, UPDATE]
  matchConditions:
    - name: the-account
      expression: request.userInfo.username == 'system:serviceaccount:{{ .namespace }}:{{ .account }}'
    {{- if .surge }}
    # {{ .name }}-surge-lease limits these.
    - name: no-record-of-a-surge
      expression: "!object.metadata.?name.orValue('').startsWith('slipway-surge-')"
    {{- end }}
  validations:
    {{- with include "slipway.guard.boundToken" . | trim }}
    {{- . | nindent 4 }}
    {{- end }}
    # RBAC cannot limit the names of created objects. Without this rule, a stolen token could create the manager's Lease.
    - expression: object.metadata.?name.orValue('').matches('^{{ .leases }}$')
      message: {{ .who }} writes no Leases but {{ .leaseWords }}
      reason: Forbidden
    {{- if .ownNode }}
    - expression: object.spec.?holderIdentity.orValue('') in ['', request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][?0].orValue('')]
      message: {{ .who }} holds {{ .holds }} for its own node alone (spec.holderIdentity)
      reason: Forbidden
    {{- end }}
    - expression: object.spec.?leaseDurationSeconds.orValue(1) <= 120
      message: {{ .who }} holds {{ .holds }} for 120 s at most (spec.leaseDurationSeconds), and renews it
      reason: Forbidden
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}-lease
  {{- .metadata | nindent 2 }}
spec:
  policyName: {{ .name }}-lease
  validationActions: [Deny]
{{- end }}

{{/*
The policy that limits the EvictionRequests of an account that drains every node. Takes further keys: who, clients (values of the label
slipway.dev/drain-client).
*/}}
{{- define "slipway.guard.drainRequest" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ .name }}-eviction-request
  {{- .metadata | nindent 2 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [lifecycle.k8s.io]
        apiVersions: ['*']
        resources: [evictionrequests]
        operations: [CREATE, UPDATE, DELETE]
  matchConditions:
    - name: the-account
      expression: request.userInfo.username == 'system:serviceaccount:{{ .namespace }}:{{ .account }}'
  variables:
    - name: requests
      expression: '[dyn(object), dyn(oldObject)].filter(o, o != null)'
    - name: metadata
      expression: dyn(object).metadata
    - name: oldMetadata
      expression: dyn(oldObject).metadata
    - name: spec
      expression: dyn(object).spec
    - name: oldSpec
      expression: dyn(oldObject).spec
    - name: owners
      expression: variables.metadata.?ownerReferences.orValue([])
    - name: uid
      expression: variables.spec.?target.?pod.?uid.orValue('')
  validations:
    # In queue mode, a process drains as the agent of a node would, with the client queue-agent.
    - expression: >-
        variables.requests.all(r, r.spec.requester == 'slipway.dev/drain'
        && r.metadata.?labels[?'slipway.dev/drain-client'].orValue('') in ['{{ join "', '" .clients }}'])
      message: >-
        {{ .who }} writes no EvictionRequests but its own: of the requester slipway.dev/drain, with the label
        slipway.dev/drain-client and the value {{ join " or " .clients }}
      reason: Forbidden
    - expression: >-
        request.operation != 'CREATE' || variables.metadata.?finalizers.orValue([]).size() == 0
        && variables.metadata.?name.orValue('')
        == 'slipway-' + variables.metadata.?labels[?'slipway.dev/drain-client'].orValue('') + '-' + variables.uid
        && variables.owners.size() == 1 && variables.owners.all(o, o.apiVersion == 'v1' && o.kind == 'Pod' && o.uid == variables.uid)
      message: >-
        an EvictionRequest of {{ .who }} is named slipway-CLIENT-UID with the pod's UID, has the pod as its only owner, and has
        no finalizers
      reason: Forbidden
    - expression: >-
        request.operation != 'UPDATE'
        || variables.metadata.all(k, k in ['managedFields', 'resourceVersion', 'generation'] ||
        k in variables.oldMetadata && variables.oldMetadata[k] == variables.metadata[k])
        && variables.oldMetadata.all(k, k == 'managedFields' || k in variables.metadata)
        && variables.spec.all(k, k == 'intent' || k in variables.oldSpec && variables.oldSpec[k] == variables.spec[k])
        && variables.oldSpec.all(k, k in variables.spec)
      message: {{ .who }} changes nothing of an EvictionRequest but spec.intent
      reason: Forbidden
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}-eviction-request
  {{- .metadata | nindent 2 }}
spec:
  policyName: {{ .name }}-eviction-request
  validationActions: [Deny]
{{- end }}

{{/*
The policies that limit an account's deletions of pods, and its changes of their status. Takes further keys: who (for messages), ownNode
(the token belongs to one node, and changes only the pods on it).
*/}}
{{- define "slipway.guard.pods" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ .name }}-pod
  {{- .metadata | nindent 2 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [""]
        apiVersions: [v1]
        resources: [pods]
        operations: [DELETE]
  matchConditions:
    - name: the-account
      expression: request.userInfo.username == 'system:serviceaccount:{{ .namespace }}:{{ .account }}'
  {{- if .ownNode }}
  variables:
    - name: node
      expression: request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][?0].orValue('')
  {{- end }}
  validations:
    {{- if .ownNode }}
    - expression: variables.node != ''
      message: the token of a Slipway agent must be bound to its pod or node, and this one does not say which node it is of
      reason: Forbidden
    - expression: oldObject.spec.?nodeName.orValue('') == variables.node
      messageExpression: >-
        'this token is of the Slipway agent on node ' + variables.node + ', and deletes no pods elsewhere'
      reason: Forbidden
    {{- else }}
    # A drain never deletes these pods.
    - expression: oldObject.spec.?nodeName.orValue('') != ''
      message: {{ .who }} deletes no pods but those on a node
      reason: Forbidden
    - expression: >-
        !oldObject.metadata.?ownerReferences.orValue([]).exists(r, r.kind == 'DaemonSet' && r.?controller.orValue(false))
        && !('kubernetes.io/config.mirror' in oldObject.metadata.?annotations.orValue({}))
      message: {{ .who }} deletes no pods of DaemonSets, and no static pods
      reason: Forbidden
    {{- end }}
    - expression: request.options.?preconditions.?uid.orValue('') != ''
      message: {{ .who }} deletes no pod without its UID as the precondition
      reason: Forbidden
    {{- if not .zeroGrace }}
    # With grace period 0, the pod object is removed while its process may still run. A StatefulSet would then start a second
    # one. The API server itself sets 0 for a pod with terminationGracePeriodSeconds 0, and for a finished pod.
    - expression: >-
        request.options.?gracePeriodSeconds.orValue(1) != 0 || oldObject.spec.?terminationGracePeriodSeconds.orValue(30) == 0
        || oldObject.status.?phase.orValue('') in ['Succeeded', 'Failed']
      message: {{ .who }} deletes no pod with a grace period of 0, which leaves it no time to stop
      reason: Forbidden
    {{- end }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}-pod
  {{- .metadata | nindent 2 }}
spec:
  policyName: {{ .name }}-pod
  validationActions: [Deny]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ .name }}-pod-status
  {{- .metadata | nindent 2 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [""]
        apiVersions: [v1]
        resources: [pods/status]
        operations: [UPDATE]
  matchConditions:
    - name: the-account
      expression: request.userInfo.username == 'system:serviceaccount:{{ .namespace }}:{{ .account }}'
  variables:
    {{- if .ownNode }}
    - name: node
      expression: request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][?0].orValue('')
    {{- end }}
    - name: otherConditions
      expression: object.status.?conditions.orValue([]).filter(c, c.type != 'DisruptionTarget')
    - name: oldOtherConditions
      expression: oldObject.status.?conditions.orValue([]).filter(c, c.type != 'DisruptionTarget')
    # Compares all fields that exist, so that the comparison includes fields that a later version of Kubernetes adds.
    - name: metadata
      expression: dyn(object.metadata)
    - name: oldMetadata
      expression: dyn(oldObject.metadata)
    - name: status
      expression: dyn(object.status)
    - name: oldStatus
      expression: dyn(oldObject.status)
  validations:
    {{- if .ownNode }}
    - expression: variables.node != ''
      message: the token of a Slipway agent must be bound to its pod or node, and this one does not say which node it is of
      reason: Forbidden
    - expression: oldObject.spec.?nodeName.orValue('') == variables.node
      messageExpression: >-
        'this token is of the Slipway agent on node ' + variables.node + ', and changes no pods elsewhere'
      reason: Forbidden
    {{- else }}
    - expression: oldObject.spec.?nodeName.orValue('') != ''
      message: {{ .who }} sets DisruptionTarget only of pods on a node
      reason: Forbidden
    {{- end }}
    - expression: >-
        variables.metadata.all(k, k in ['managedFields', 'resourceVersion', 'generation'] ||
        k in variables.oldMetadata && variables.oldMetadata[k] == variables.metadata[k])
        && variables.oldMetadata.all(k, k == 'managedFields' || k in variables.metadata)
      message: {{ .who }} changes nothing of a pod's metadata
      reason: Forbidden
    - expression: >-
        variables.status.all(k, k == 'conditions' || k in variables.oldStatus && variables.oldStatus[k] == variables.status[k])
        && variables.oldStatus.all(k, k == 'conditions' || k in variables.status)
      message: {{ .who }} changes nothing of a pod's status but the condition DisruptionTarget
      reason: Forbidden
    # The comparison ignores the order of the conditions, because a patch may change the order.
    - expression: >-
        variables.otherConditions.all(c, c in variables.oldOtherConditions)
        && variables.oldOtherConditions.all(c, c in variables.otherConditions)
      message: {{ .who }} changes no condition of a pod but DisruptionTarget
      reason: Forbidden
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}-pod-status
  {{- .metadata | nindent 2 }}
spec:
  policyName: {{ .name }}-pod-status
  validationActions: [Deny]
{{- end }}

{{/*
The additional permissions of an account with the manager's permissions, to drain any node before its deadline as the agent of
that node would.
*/}}
{{- define "slipway.guard.queueRules" -}}
# To delete pods near a deadline, and to set the condition DisruptionTarget before, as an agent does.
- apiGroups: [""]
  resources: [pods]
  verbs: [delete]
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch]
# To write the Events of a drain.
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end }}

{{/* The admission policies that limit these permissions. Takes the dict of slipway.guard.pods. */}}
{{- define "slipway.guard.queueAdmission" -}}
# With the right to delete pods, a token can delete pods in the whole cluster without regard to PodDisruptionBudgets. This policy
# limits how. It cannot limit on which nodes, because a policy sees the pod and not the state of its node.
{{ include "slipway.guard.pods" . }}
{{- end }}

{{/*
The additional permissions to start a pod's successor before the pod leaves. Takes further keys: who (for messages), ownNode (the token
belongs to one node, and changes only the pods on it), holder (a CEL expression: the prefix of the holder of the account's records),
recordLease (a CEL expression: false if the account writes a Lease that is no record, and another rule limits it).
*/}}
{{- define "slipway.guard.surgeRules" -}}
# To find a pod's owner and its other pods, and to read whether a rollout is running.
- apiGroups: [apps]
  resources: [deployments, replicasets]
  verbs: [get]
- apiGroups: [""]
  resources: [replicationcontrollers]
  verbs: [get]
- apiGroups: [argoproj.io]
  resources: [rollouts]
  verbs: [get]
- apiGroups: [apps.kruise.io]
  resources: [clonesets]
  verbs: [get]
# To raise the owner's size by one, and to lower it again.
- apiGroups: [apps]
  resources: [deployments/scale, replicasets/scale]
  verbs: [update]
- apiGroups: [""]
  resources: [replicationcontrollers/scale]
  verbs: [update]
- apiGroups: [argoproj.io]
  resources: [rollouts/scale]
  verbs: [update]
- apiGroups: [apps.kruise.io]
  resources: [clonesets/scale]
  verbs: [update]
# To raise and restore the minimum instead, if a HorizontalPodAutoscaler or a ScaledObject sizes the owner.
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, patch]
- apiGroups: [keda.sh]
  resources: [scaledobjects]
  verbs: [get, patch]
# To set the deletion cost of the leaving pod, so that its controller deletes this pod and no other.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, patch]
# To wait until Services send requests to the successor.
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list]
# To find out whether the successor could use the pod's volumes.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get]
{{- end }}

{{/* The additional permissions for the records of surges, in the account's own namespace. */}}
{{- define "slipway.guard.surgeLeaseRules" -}}
# The records of surges. Their names contain the UID of the owner, so RBAC cannot list the names. An admission policy limits them.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, list, create, update, delete]
{{- end }}

{{/* The admission policies that limit these permissions. Takes the same dict. */}}
{{- define "slipway.guard.surgeAdmission" -}}
# With the right to scale, a token can change the size of owners in the whole cluster. This policy allows steps of one, and never
# a size below one. Every step has the field manager slipway-surge, so managedFields and the audit log show it.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ .name }}-surge-scale
  {{- .metadata | nindent 2 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [apps]
        apiVersions: ["*"]
        resources: [deployments/scale, replicasets/scale]
        operations: [UPDATE]
      - apiGroups: [""]
        apiVersions: ["*"]
        resources: [replicationcontrollers/scale]
        operations: [UPDATE]
      - apiGroups: [argoproj.io]
        apiVersions: ["*"]
        resources: [rollouts/scale]
        operations: [UPDATE]
      - apiGroups: [apps.kruise.io]
        apiVersions: ["*"]
        resources: [clonesets/scale]
        operations: [UPDATE]
  matchConditions:
    - name: the-account
      expression: request.userInfo.username == 'system:serviceaccount:{{ .namespace }}:{{ .account }}'
  variables:
    - name: replicas
      expression: object.spec.?replicas.orValue(0)
    - name: oldReplicas
      expression: oldObject.spec.?replicas.orValue(0)
  validations:
    {{- with include "slipway.guard.boundToken" . | trim }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- include "slipway.guard.surgeManager" . | nindent 4 }}
    - expression: variables.replicas - variables.oldReplicas in [-1, 1]
      message: {{ .who }} changes a size by exactly one at a time (spec.replicas)
      reason: Forbidden
    - expression: variables.replicas >= 1 && variables.oldReplicas >= 1
      message: {{ .who }} lowers no size to 0, and raises none from 0 (spec.replicas)
      reason: Forbidden
---
{{ include "slipway.guard.surgeBinding" (merge (dict "suffix" "scale") .) }}
---
# A minimum may rise to one above the size of the moment. It may fall only if slipway-surge wrote it last: so a minimum that
# somebody else has set stays.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ .name }}-surge-autoscaler
  {{- .metadata | nindent 2 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [autoscaling]
        apiVersions: ["*"]
        resources: [horizontalpodautoscalers]
        operations: [UPDATE]
  matchConditions:
    - name: the-account
      expression: request.userInfo.username == 'system:serviceaccount:{{ .namespace }}:{{ .account }}'
  variables:
    {{- include "slipway.guard.surgeMinimum" (dict "field" "minReplicas" "default" 1) | nindent 4 }}
    - name: size
      expression: >-
        [variables.oldMinimum, oldObject.?status.?currentReplicas.orValue(0), oldObject.?status.?desiredReplicas.orValue(0)].max()
  validations:
    {{- include "slipway.guard.surgeMinimumRules" (merge (dict "field" "minReplicas" "kind" "HorizontalPodAutoscaler") .) | trim | nindent 4 }}
    - expression: variables.minimum <= variables.size + 1
      message: {{ .who }} raises a minimum to one above the present size at most (spec.minReplicas)
      reason: Forbidden
---
{{ include "slipway.guard.surgeBinding" (merge (dict "suffix" "autoscaler") .) }}
---
# A ScaledObject does not tell the size of the moment, so its maximum limits the minimum.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ .name }}-surge-scaledobject
  {{- .metadata | nindent 2 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [keda.sh]
        apiVersions: ["*"]
        resources: [scaledobjects]
        operations: [UPDATE]
  matchConditions:
    - name: the-account
      expression: request.userInfo.username == 'system:serviceaccount:{{ .namespace }}:{{ .account }}'
  variables:
    {{- include "slipway.guard.surgeMinimum" (dict "field" "minReplicaCount" "default" 0) | nindent 4 }}
  validations:
    {{- include "slipway.guard.surgeMinimumRules" (merge (dict "field" "minReplicaCount" "kind" "ScaledObject") .) | trim | nindent 4 }}
    - expression: variables.minimum <= oldObject.spec.?maxReplicaCount.orValue(100)
      message: {{ .who }} raises no minimum above the maximum (spec.minReplicaCount)
      reason: Forbidden
---
{{ include "slipway.guard.surgeBinding" (merge (dict "suffix" "scaledobject") .) }}
---
# RBAC lets a patch of a pod change its image too. This policy allows only the annotation of the deletion cost.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ .name }}-surge-pod
  {{- .metadata | nindent 2 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [""]
        apiVersions: [v1]
        resources: [pods]
        operations: [UPDATE]
  matchConditions:
    - name: the-account
      expression: request.userInfo.username == 'system:serviceaccount:{{ .namespace }}:{{ .account }}'
  variables:
    {{- if .ownNode }}
    - name: node
      expression: request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][?0].orValue('')
    {{- end }}
    - name: cost
      expression: "'controller.kubernetes.io/pod-deletion-cost'"
    {{- if .ownNode }}
    - name: lowest
      expression: "'-2147483648'"
    {{- end }}
    - name: annotations
      expression: object.metadata.?annotations.orValue({})
    - name: oldAnnotations
      expression: oldObject.metadata.?annotations.orValue({})
    # Compares all fields that exist, so that the comparison includes fields that a later version of Kubernetes adds.
    - name: metadata
      expression: dyn(object.metadata)
    - name: oldMetadata
      expression: dyn(oldObject.metadata)
  validations:
    {{- with include "slipway.guard.boundToken" . | trim }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- if .ownNode }}
    # An agent that takes over the record of a crashed one removes the lowest cost from a pod of another node.
    - expression: >-
        oldObject.spec.?nodeName.orValue('') == variables.node
        || variables.oldAnnotations[?variables.cost].orValue('') == variables.lowest && variables.annotations[?variables.cost].orValue('') != variables.lowest
      messageExpression: >-
        'this token is of the Slipway agent on node ' + variables.node + ', and sets no deletion cost of pods elsewhere'
      reason: Forbidden
    {{- end }}
    - expression: >-
        variables.annotations.all(k, k == variables.cost || k in variables.oldAnnotations && variables.oldAnnotations[k] == variables.annotations[k])
        && variables.oldAnnotations.all(k, k == variables.cost || k in variables.annotations)
      message: {{ .who }} changes no annotation of a pod but controller.kubernetes.io/pod-deletion-cost
      reason: Forbidden
    - expression: >-
        variables.metadata.all(k, k in ['annotations', 'managedFields', 'resourceVersion', 'generation'] ||
        k in variables.oldMetadata && variables.oldMetadata[k] == variables.metadata[k])
        && variables.oldMetadata.all(k, k in ['annotations', 'managedFields'] || k in variables.metadata)
      message: {{ .who }} changes nothing of a pod's metadata but its deletion cost
      reason: Forbidden
    - expression: dyn(object.spec) == dyn(oldObject.spec)
      message: {{ .who }} changes nothing of a pod's spec
      reason: Forbidden
---
{{ include "slipway.guard.surgeBinding" (merge (dict "suffix" "pod") .) }}
---
# A record of a surge makes other processes restore a size, so each account writes only records that it holds. To take over the
# record of a crashed process, an account first makes itself the holder.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ .name }}-surge-lease
  {{- .metadata | nindent 2 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [coordination.k8s.io]
        apiVersions: [v1]
        resources: [leases]
        operations: [CREATE, UPDATE, DELETE]
  matchConditions:
    - name: the-account
      expression: request.userInfo.username == 'system:serviceaccount:{{ .namespace }}:{{ .account }}'
    - name: a-record-of-a-surge
      expression: request.operation == 'DELETE' || {{ .recordLease }}
  variables:
    - name: lease
      expression: "request.operation == 'DELETE' ? dyn(oldObject) : dyn(object)"
  validations:
    {{- with include "slipway.guard.boundToken" . | trim }}
    {{- . | nindent 4 }}
    {{- end }}
    - expression: variables.lease.metadata.?name.orValue('').matches('^slipway-surge-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$')
      message: {{ .who }} writes and deletes no Leases but records of surges, slipway-surge-UID
      reason: Forbidden
    - expression: variables.lease.metadata.?labels.orValue({})[?'slipway.dev/surge'].orValue('') == 'true'
      message: a record of a surge has the label slipway.dev/surge with the value true
      reason: Forbidden
    - expression: variables.lease.spec.?holderIdentity.orValue('').startsWith({{ .holder }} + '/')
      message: {{ .who }} writes and deletes only records of surges that it holds (spec.holderIdentity)
      reason: Forbidden
    - expression: variables.lease.spec.?leaseDurationSeconds.orValue(0) >= 1 && variables.lease.spec.?leaseDurationSeconds.orValue(0) <= 60
      message: {{ .who }} holds a record of a surge for 60 s at most (spec.leaseDurationSeconds), and renews it
      reason: Forbidden
---
{{ include "slipway.guard.surgeBinding" (merge (dict "suffix" "lease") .) }}
{{- end }}

{{- define "slipway.guard.surgeBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}-surge-{{ .suffix }}
  {{- .metadata | nindent 2 }}
spec:
  policyName: {{ .name }}-surge-{{ .suffix }}
  validationActions: [Deny]
{{- end }}

{{- define "slipway.guard.boundToken" -}}
{{- if .ownNode }}
- expression: request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][?0].orValue('') != ''
  message: the token of a Slipway agent must be bound to its pod or node, and this one does not say which node it is of
  reason: Forbidden
{{- end }}
{{- end }}

{{- define "slipway.guard.surgeManager" -}}
- expression: request.options.?fieldManager.orValue('') == 'slipway-surge'
  message: {{ .who }} changes sizes with the field manager slipway-surge alone (options.fieldManager)
  reason: Forbidden
{{- end }}

{{/* The variables for a change of a minimum. Takes a dict: field, default (of the field). */}}
{{- define "slipway.guard.surgeMinimum" -}}
- name: minimum
  expression: object.spec.?{{ .field }}.orValue({{ .default }})
- name: oldMinimum
  expression: oldObject.spec.?{{ .field }}.orValue({{ .default }})
- name: managers
  expression: dyn(object.metadata.?managedFields.orValue([]))
- name: oldManagers
  expression: dyn(oldObject.metadata.?managedFields.orValue([]))
- name: ours
  expression: variables.managers.filter(m, m.?manager.orValue('') == 'slipway-surge' && size(m.?fieldsV1.orValue({})) > 0)
- name: isOurs
  expression: >-
    variables.oldManagers.exists(m, m.?manager.orValue('') == 'slipway-surge'
    && m.?fieldsV1[?'f:spec'][?'f:{{ .field }}'].hasValue())
# Compares all fields that exist, so that the comparison includes fields that a later version adds.
- name: metadata
  expression: dyn(object.metadata)
- name: oldMetadata
  expression: dyn(oldObject.metadata)
- name: spec
  expression: dyn(object.spec)
- name: oldSpec
  expression: dyn(oldObject.spec)
{{- end }}

{{/* The rules for a change of a minimum. Takes further keys: field, kind. */}}
{{- define "slipway.guard.surgeMinimumRules" -}}
{{- with include "slipway.guard.boundToken" . | trim }}
{{ . }}
{{- end }}
{{ include "slipway.guard.surgeManager" . }}
- expression: >-
    variables.metadata.all(k, k in ['managedFields', 'resourceVersion', 'generation'] ||
    k in variables.oldMetadata && variables.oldMetadata[k] == variables.metadata[k])
    && variables.oldMetadata.all(k, k == 'managedFields' || k in variables.metadata)
    && variables.spec.all(k, k == '{{ .field }}' || k in variables.oldSpec && variables.oldSpec[k] == variables.spec[k])
    && variables.oldSpec.all(k, k == '{{ .field }}' || k in variables.spec)
  message: {{ .who }} changes nothing of a {{ .kind }} but spec.{{ .field }}
  reason: Forbidden
# A token that could write managedFields would first make itself the manager of a minimum, and then lower it.
- expression: >-
    variables.ours.all(m, size(m.fieldsV1) == 1 && size(m.?fieldsV1[?'f:spec'].orValue({})) == 1
    && m.?fieldsV1[?'f:spec'][?'f:{{ .field }}'].hasValue())
    && (size(variables.ours) == 0 || variables.isOurs || variables.minimum != variables.oldMinimum)
  message: {{ .who }} becomes the manager of spec.{{ .field }} alone, and only by a change of it (metadata.managedFields)
  reason: Forbidden
# The API server removes the field from the entry of another client, and the entry if it is empty. It merges old entries of more
# than ten clients.
- expression: >-
    size(variables.oldManagers) >= 10
    || variables.managers.all(m, m.?manager.orValue('') == 'slipway-surge' || variables.oldManagers.exists(o,
    o.?manager == m.?manager && o.?operation == m.?operation && o.?subresource == m.?subresource && o.?time == m.?time
    && m.?fieldsV1.orValue({}).all(k, k in o.fieldsV1 && (k == 'f:spec' || o.fieldsV1[k] == m.fieldsV1[k]))
    && o.?fieldsV1.orValue({}).all(k, k == 'f:spec' || k in m.fieldsV1)
    && m.?fieldsV1[?'f:spec'].orValue({}).all(k, k in o.fieldsV1['f:spec'] && o.fieldsV1['f:spec'][k] == m.fieldsV1['f:spec'][k])
    && o.?fieldsV1[?'f:spec'].orValue({}).all(k, k == 'f:{{ .field }}' || m.?fieldsV1[?'f:spec'][?k].hasValue())))
    && variables.oldManagers.all(o, o.?manager.orValue('') == 'slipway-surge' || variables.managers.exists(m,
    o.?manager == m.?manager && o.?operation == m.?operation && o.?subresource == m.?subresource)
    || size(o.?fieldsV1.orValue({})) == 1 && size(o.?fieldsV1[?'f:spec'].orValue({})) == 1
    && o.?fieldsV1[?'f:spec'][?'f:{{ .field }}'].hasValue())
  message: {{ .who }} changes no entry of another client in metadata.managedFields
  reason: Forbidden
- expression: variables.minimum >= variables.oldMinimum || variables.isOurs
  message: {{ .who }} lowers no minimum that it has not raised itself (spec.{{ .field }})
  reason: Forbidden
{{- end }}

{{/* The API server's priority levels and flows for the agents' requests, or those of one process (ownProcess). */}}
{{- define "slipway.guard.flowControl" -}}
{{- if .ownProcess }}
# Priority levels of the API server for this account's requests only. When many nodes get notices at once, the queue that it
# shares with all controllers is full at about 300 requests. The API server then refuses further requests while machines are lost.
# With these levels, cordons come before evictions, and the drains do not delay other clients.
{{- else }}
# Priority levels of the API server for the agents' requests only. All agents use one ServiceAccount, so without these
# levels their requests share one flow with other controllers. When many agents get notices at once, that queue of about
# 300 requests is full. The API server then refuses further requests while machines are lost. With these levels, agents
# wait only for each other, cordons come before evictions, and agents do not delay other clients.
{{- end }}
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata:
  name: {{ .name }}-node
  {{- .metadata | nindent 2 }}
spec:
  type: Limited
  limited:
    nominalConcurrencyShares: 30
    lendablePercent: 90
    limitResponse:
      type: Queue
      queuing:
        queues: 1
        handSize: 1
        queueLengthLimit: 10000
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata:
  name: {{ .name | quote }}
  {{- .metadata | nindent 2 }}
spec:
  type: Limited
  limited:
    nominalConcurrencyShares: 100
    lendablePercent: 90
    limitResponse:
      type: Queue
      queuing:
        # The requests for one namespace are one flow. A flow uses 4 queues (handSize), so 4 * 2500 = 10000 of its requests can wait.
        queues: 64
        handSize: 4
        queueLengthLimit: 2500
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata:
  name: {{ .name }}-node
  {{- .metadata | nindent 2 }}
spec:
  # Must be lower than 9000, the precedence of service-accounts, which matches all ServiceAccounts, and than 1000, the
  # precedence of the FlowSchemas for workloads.
  matchingPrecedence: 800
  priorityLevelConfiguration:
    name: {{ .name }}-node
  rules:
    - subjects:
        - kind: ServiceAccount
          serviceAccount:
            namespace: {{ .namespace | quote }}
            name: {{ .account | quote }}
      resourceRules:
        - apiGroups: [""]
          resources: [nodes, nodes/status]
          verbs: ["*"]
          clusterScope: true
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata:
  name: {{ .name | quote }}
  {{- .metadata | nindent 2 }}
spec:
  matchingPrecedence: 810
  # Each namespace is its own flow. So slow evictions in one namespace, for example because of a webhook, do not delay
  # evictions in others.
  distinguisherMethod:
    type: ByNamespace
  priorityLevelConfiguration:
    name: {{ .name | quote }}
  rules:
    - subjects:
        - kind: ServiceAccount
          serviceAccount:
            namespace: {{ .namespace | quote }}
            name: {{ .account | quote }}
      resourceRules:
        - apiGroups: ["*"]
          resources: ["*"]
          verbs: ["*"]
          namespaces: ["*"]
          clusterScope: true
{{- end }}
