{{/*
What an agent's account may do, and what keeps it to that. The charts slipway and aks-node-termination-handler have the
same copy of this file. Each takes a dict: name (of the objects), namespace and account (of the agents), metadata (labels and
annotations), mayDelete (pods).
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

{{/*
Those in its own namespace, for --max-concurrent-drains: the slots that agents hold while they drain. Which Leases they may
change is said by name, so that they can take nobody else's; creating cannot be limited so.
*/}}
{{- define "slipway.guard.leaseRules" -}}
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
An agent's token is of one node, and is good for that node alone: what a stolen one can do ends there. RBAC cannot say
that, as all agents share one ServiceAccount; the API server can, as it knows on which node the token was mounted
(authentication.kubernetes.io/node-name, in Kubernetes 1.30 and later). A token that does not say so is refused.

Reads are not admitted by anybody, so that the list of the pods and nodes stays open to each agent. Which node a pod runs on
is not in its Eviction, so that a stolen token can evict pods elsewhere, and no more than their disruption budgets allow; the
deletion of a pod is tied to the node.
*/}}
{{- define "slipway.guard.admission" -}}
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
    - name: an-agent
      expression: request.userInfo.username == 'system:serviceaccount:{{ .namespace }}:{{ .account }}'
  variables:
    - name: node
      expression: request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][?0].orValue('')
    # Keys under which Slipway writes: its own, and those of the tools whose part it can play.
    - name: ours
      expression: "'^(([a-z0-9-]+[.])*slipway[.]dev/|aks-node-termination-handler/|mechanic[.]cordoned$)'"
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
    - expression: variables.node != ''
      message: the token of a Slipway agent must be bound to its pod or node, and this one does not say which node it is of
      reason: Forbidden
    - expression: object.metadata.name == variables.node
      messageExpression: >-
        'this token is of the Slipway agent on node ' + variables.node + ', and changes no other node'
      reason: Forbidden
    - expression: >-
        variables.labels.all(k, k.matches(variables.ours) || k in variables.oldLabels && variables.oldLabels[k] == variables.labels[k])
        && variables.oldLabels.all(k, k.matches(variables.ours) || k in variables.labels)
      message: a Slipway agent changes no labels but those under slipway.dev and the ones of the tools that it replaces
      reason: Forbidden
    - expression: >-
        variables.annotations.all(k, k.matches(variables.ours) || k in variables.oldAnnotations && variables.oldAnnotations[k] == variables.annotations[k])
        && variables.oldAnnotations.all(k, k.matches(variables.ours) || k in variables.annotations)
      message: a Slipway agent changes no annotations but those under slipway.dev
      reason: Forbidden
    - expression: >-
        variables.metadata.all(k, k in ['labels', 'annotations', 'managedFields', 'resourceVersion', 'generation'] ||
        k in variables.oldMetadata && variables.oldMetadata[k] == variables.metadata[k])
        && variables.oldMetadata.all(k, k in ['labels', 'annotations', 'managedFields'] || k in variables.metadata)
      message: a Slipway agent changes nothing of a node's metadata but labels and annotations
      reason: Forbidden
    - expression: variables.otherTaints == variables.oldOtherTaints
      message: a Slipway agent changes no taints but those under slipway.dev and the ones of the tools that it replaces
      reason: Forbidden
    - expression: >-
        variables.spec.all(k, k in ['unschedulable', 'taints'] || k in variables.oldSpec && variables.oldSpec[k] == variables.spec[k])
        && variables.oldSpec.all(k, k in ['unschedulable', 'taints'] || k in variables.spec)
      message: a Slipway agent changes nothing of a node's spec but unschedulable and taints
      reason: Forbidden
    # A patch may put the conditions in another order.
    - expression: >-
        variables.otherConditions.all(c, c in variables.oldOtherConditions)
        && variables.oldOtherConditions.all(c, c in variables.otherConditions)
      message: a Slipway agent changes no conditions but those of a node's way out
      reason: Forbidden
    - expression: >-
        variables.status.all(k, k == 'conditions' || k in variables.oldStatus && variables.oldStatus[k] == variables.status[k])
        && variables.oldStatus.all(k, k == 'conditions' || k in variables.status)
      message: a Slipway agent changes nothing of a node's status but conditions
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
{{- end }}

{{/*
A place of their own for the agents' requests in the API server's priority and fairness. All agents are one user to it,
and so one flow: where they share a level with every other controller, as they do without this, a storm of notices meets
a queue of some three hundred requests, finds it full, and is told to come back while the machines die. Here they queue
behind nobody but each other, cordons before evictions, and nobody behind them.
*/}}
{{- define "slipway.guard.flowControl" -}}
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
        queues: 1
        handSize: 1
        queueLengthLimit: 10000
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
