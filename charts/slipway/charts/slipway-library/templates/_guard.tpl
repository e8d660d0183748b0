{{/*
What an agent's account may do, and what limits it to that. Each template takes a dict: name (of the objects), namespace and account
(of the agents), metadata (labels and annotations), mayDelete (pods), zeroGrace (evict pods with a grace period of 0).
*/}}

{{/* The rights of the agent in the whole cluster: its node, the pods on it, and no more. */}}
{{- define "slipway.guard.rules" -}}
# Cordon, taint, label, annotate, by patch; find the other machines of an event by label.
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, list, watch, patch]
# The lifecycle conditions.
- apiGroups: [""]
  resources: [nodes/status]
  verbs: [patch]
# The pods on the node, by field selector.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
{{- if .mayDelete }}
# What a deadline needs: a pod that still waits for a disruption budget when its time to stop must begin is deleted,
# and a pod that would outlive the machine is told to hurry. Without this right both are left to die with the machine.
- apiGroups: [""]
  resources: [pods]
  verbs: [delete]
# Jobs do not count the deletion as a failure: the condition DisruptionTarget is set before it.
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch]
{{- end }}
# To say which disruption budget blocks, and to go on as soon as it does not.
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
# --wait-for-detach
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get]
- apiGroups: [storage.k8s.io]
  resources: [volumeattachments]
  verbs: [list]
{{- end }}

{{/* The rights of the agent in its own namespace. */}}
{{- define "slipway.guard.leaseRules" -}}
# --max-concurrent-drains: the slots that agents hold while they drain. Which Leases they may change is said by name, so that
# they can take nobody else's. RBAC cannot limit creating so; an admission policy does.
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
What limits the patches of Nodes of an account to what Slipway writes there. It takes besides: who (for messages), keys (a pattern of
labels, annotations and taints that it writes beside Slipway's own), andThose and andAnnotations (the same for messages), ownNode (the
token is of one node, and changes no other).
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
    # Keys under which this account writes: Slipway's own, and a few of others.
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
    # Compared field by field, whichever fields there are, so that one that a later Kubernetes adds is not forgotten.
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
    - expression: >-
        variables.labels.all(k, k.matches(variables.ours) || k in variables.oldLabels && variables.oldLabels[k] == variables.labels[k])
        && variables.oldLabels.all(k, k.matches(variables.ours) || k in variables.labels)
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
    # A patch may put the conditions in another order.
    - expression: >-
        variables.otherConditions.all(c, c in variables.oldOtherConditions)
        && variables.oldOtherConditions.all(c, c in variables.otherConditions)
      message: {{ .who }} changes no conditions but those of a node's way out
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

{{/* What limits an agent's token to its node. */}}
{{- define "slipway.guard.admission" -}}
# An agent's token is of one node, and is good for that node alone: what a stolen one can do ends there. RBAC cannot say
# that, as all agents share one ServiceAccount; the API server can, as it knows on which node the token was mounted
# (authentication.kubernetes.io/node-name, in Kubernetes 1.30 and later). A token that does not say so is refused.
#
# Reads are not admitted by anybody, so that the list of the pods and nodes stays open to each agent. Which node a pod runs on
# is not in its Eviction, so that a stolen token can evict pods elsewhere, {{ if not .zeroGrace }}with time to stop, {{ end }}and no more than their disruption
# budgets allow. The deletion of a pod and its condition DisruptionTarget are tied to the node.
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
    # The object would be gone while the process may still run, so that a StatefulSet starts another one beside it.
    # The API server fills in 0 for a pod that wants 0, and for one that has finished.
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
    # Compared field by field, whichever fields there are, so that one that a later Kubernetes adds is not forgotten.
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
    # A patch may put the conditions in another order.
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
    # Of the core group's kind, to which the API server converts an Event of events.k8s.io.
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
    # RBAC cannot tie creating to a name. Without this a stolen token could create the manager's Lease.
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

{{/* The agents' requests in the API server's priority and fairness. */}}
{{- define "slipway.guard.flowControl" -}}
# A place of their own for the agents' requests in the API server's priority and fairness. All agents are one user to it,
# and so one flow: where they share a level with every other controller, as they do without this, a storm of notices meets
# a queue of some three hundred requests, finds it full, and is told to come back while the machines die. Here they queue
# behind nobody but each other, cordons before evictions, and nobody behind them.
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
        # A flow is what concerns one namespace, and its requests are in 4 of the queues: 10000 of one flow can wait.
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
  # Before service-accounts (9000), which is where the requests of all ServiceAccounts go, and those for workloads (1000).
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
  # Evictions in one namespace, such as those that a slow webhook delays, do not hold up those in others.
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
