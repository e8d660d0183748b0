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

{{/* The admission policies that limit an agent's token to its node. */}}
{{- define "slipway.guard.admission" -}}
# An agent's token may change only the node that it was mounted on, so that a stolen token is of little use. RBAC cannot
# limit this, because all agents share one ServiceAccount. The API server knows the node of a token
# (authentication.kubernetes.io/node-name, in Kubernetes 1.30 and later). The policy refuses a token without a node.
#
# Admission does not check reads, so each agent can list all pods and nodes. An Eviction does not name the pod's node. So a
# stolen token can evict pods on other nodes, {{ if not .zeroGrace }}with their grace period and {{ end }}within their PodDisruptionBudgets.
# The deletion of a pod, and its condition DisruptionTarget, are limited to the token's node.
{{ include "slipway.guard.node" (merge (dict "who" "a Slipway agent" "ownNode" true
  "keys" "aks-node-termination-handler/|mechanic[.]cordoned$" "andThose" " and the ones of the tools that it replaces" "andAnnotations" "") .) }}
---
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
    - name: an-agent
      expression: request.userInfo.username == 'system:serviceaccount:{{ .namespace }}:{{ .account }}'
  variables:
    - name: node
      expression: request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][?0].orValue('')
  validations:
    - expression: variables.node != ''
      message: the token of a Slipway agent must be bound to its pod or node, and this one does not say which node it is of
      reason: Forbidden
    - expression: oldObject.spec.?nodeName.orValue('') == variables.node
      messageExpression: >-
        'this token is of the Slipway agent on node ' + variables.node + ', and deletes no pods elsewhere'
      reason: Forbidden
    - expression: request.options.?preconditions.?uid.orValue('') != ''
      message: a Slipway agent deletes no pod without its UID as the precondition
      reason: Forbidden
    {{- if not .zeroGrace }}
    # With grace period 0, the pod object is removed while its process may still run. A StatefulSet would then start a second
    # one. The API server itself sets 0 for a pod with terminationGracePeriodSeconds 0, and for a finished pod.
    - expression: >-
        request.options.?gracePeriodSeconds.orValue(1) != 0 || oldObject.spec.?terminationGracePeriodSeconds.orValue(30) == 0
        || oldObject.status.?phase.orValue('') in ['Succeeded', 'Failed']
      message: a Slipway agent deletes no pod with a grace period of 0, which leaves it no time to stop
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
    - name: an-agent
      expression: request.userInfo.username == 'system:serviceaccount:{{ .namespace }}:{{ .account }}'
  variables:
    - name: node
      expression: request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][?0].orValue('')
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
    - expression: variables.node != ''
      message: the token of a Slipway agent must be bound to its pod or node, and this one does not say which node it is of
      reason: Forbidden
    - expression: oldObject.spec.?nodeName.orValue('') == variables.node
      messageExpression: >-
        'this token is of the Slipway agent on node ' + variables.node + ', and changes no pods elsewhere'
      reason: Forbidden
    - expression: >-
        variables.metadata.all(k, k in ['managedFields', 'resourceVersion', 'generation'] ||
        k in variables.oldMetadata && variables.oldMetadata[k] == variables.metadata[k])
        && variables.oldMetadata.all(k, k == 'managedFields' || k in variables.metadata)
      message: a Slipway agent changes nothing of a pod's metadata
      reason: Forbidden
    - expression: >-
        variables.status.all(k, k == 'conditions' || k in variables.oldStatus && variables.oldStatus[k] == variables.status[k])
        && variables.oldStatus.all(k, k == 'conditions' || k in variables.status)
      message: a Slipway agent changes nothing of a pod's status but the condition DisruptionTarget
      reason: Forbidden
    # The comparison ignores the order of the conditions, because a patch may change the order.
    - expression: >-
        variables.otherConditions.all(c, c in variables.oldOtherConditions)
        && variables.oldOtherConditions.all(c, c in variables.otherConditions)
      message: a Slipway agent changes no condition of a pod but DisruptionTarget
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
---
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
    - name: an-agent
      expression: request.userInfo.username == 'system:serviceaccount:{{ .namespace }}:{{ .account }}'
  validations:
    - expression: request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][?0].orValue('') != ''
      message: the token of a Slipway agent must be bound to its pod or node, and this one does not say which node it is of
      reason: Forbidden
    - expression: object.?deleteOptions.?preconditions.?uid.orValue('') != ''
      message: a Slipway agent evicts no pod without its UID as the precondition
      reason: Forbidden
    {{- if not .zeroGrace }}
    - expression: object.?deleteOptions.?gracePeriodSeconds.orValue(1) != 0
      message: a Slipway agent evicts no pod with a grace period of 0, which leaves it no time to stop
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
    - name: an-agent
      expression: request.userInfo.username == 'system:serviceaccount:{{ .namespace }}:{{ .account }}'
  validations:
    - expression: request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][?0].orValue('') != ''
      message: the token of a Slipway agent must be bound to its pod or node, and this one does not say which node it is of
      reason: Forbidden
    # RBAC cannot limit the names of created objects. Without this rule, a stolen token could create the manager's Lease.
    - expression: object.metadata.?name.orValue('').matches('^slipway-drain-([0-9]|1[0-5])$')
      message: a Slipway agent writes no Leases but those of drain slots, slipway-drain-0 to slipway-drain-15
      reason: Forbidden
    - expression: object.spec.?holderIdentity.orValue('') in ['', request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][?0].orValue('')]
      message: a Slipway agent holds a drain slot for its own node alone (spec.holderIdentity)
      reason: Forbidden
    - expression: object.spec.?leaseDurationSeconds.orValue(1) <= 120
      message: a Slipway agent holds a drain slot for 120 s at most (spec.leaseDurationSeconds), and renews it
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

{{/* The API server's priority levels and flows for the agents' requests. */}}
{{- define "slipway.guard.flowControl" -}}
# Priority levels of the API server for the agents' requests only. All agents use one ServiceAccount, so without these
# levels their requests share one flow with other controllers. When many agents get notices at once, that queue of about
# 300 requests is full. The API server then refuses further requests while machines are lost. With these levels, agents
# wait only for each other, cordons come before evictions, and agents do not delay other clients.
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
  name: {{ .name }}
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
            namespace: {{ .namespace }}
            name: {{ .account }}
      resourceRules:
        - apiGroups: [""]
          resources: [nodes, nodes/status]
          verbs: ["*"]
          clusterScope: true
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata:
  name: {{ .name }}
  {{- .metadata | nindent 2 }}
spec:
  matchingPrecedence: 810
  # Each namespace is its own flow. So slow evictions in one namespace, for example because of a webhook, do not delay
  # evictions in others.
  distinguisherMethod:
    type: ByNamespace
  priorityLevelConfiguration:
    name: {{ .name }}
  rules:
    - subjects:
        - kind: ServiceAccount
          serviceAccount:
            namespace: {{ .namespace }}
            name: {{ .account }}
      resourceRules:
        - apiGroups: ["*"]
          resources: ["*"]
          verbs: ["*"]
          namespaces: ["*"]
          clusterScope: true
{{- end }}
