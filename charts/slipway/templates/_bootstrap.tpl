{{/* The permissions to create bootstrap tokens for new machines, with the policy that limits them. Takes a list: root, part. */}}
{{- define "slipway.bootstrap" -}}
{{- $root := index . 0 }}
{{- $part := index . 1 }}
{{- $name := include "slipway.part" . }}
{{- $metadata := include "slipway.metadata" . -}}
# To create bootstrap tokens for new machines, and to find these tokens again.
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}-bootstrap
  namespace: kube-system
  {{- $metadata | nindent 2 }}
rules:
  - apiGroups: [""]
    resources: [secrets]
    verbs: [create, list, delete]
{{ include "slipway.binding" (dict "root" $root "part" $part "kind" "Role" "name" (printf "%s-bootstrap" $name) "namespace" "kube-system") }}
---
# To read the API server's address and its certificate authority.
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}-bootstrap
  namespace: kube-public
  {{- $metadata | nindent 2 }}
rules:
  - apiGroups: [""]
    resources: [configmaps]
    resourceNames: [cluster-info]
    verbs: [get]
{{ include "slipway.binding" (dict "root" $root "part" $part "kind" "Role" "name" (printf "%s-bootstrap" $name) "namespace" "kube-public") }}
---
# Kubernetes fills a Secret of type kubernetes.io/service-account-token with the token of any ServiceAccount in its
# namespace. So an account that may create any Secret in kube-system can control the whole cluster. RBAC cannot limit the
# type of a Secret, but this policy does.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ $name }}-bootstrap
  {{- $metadata | nindent 2 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [""]
        apiVersions: [v1]
        resources: [secrets]
        operations: [CREATE, UPDATE, DELETE]
  matchConditions:
    - name: the-{{ $part }}
      expression: request.userInfo.username == 'system:serviceaccount:{{ $root.Release.Namespace }}:{{ include "slipway.serviceAccount" . }}'
  variables:
    - name: secret
      expression: "request.operation == 'DELETE' ? dyn(oldObject) : dyn(object)"
    - name: data
      expression: variables.secret.?data.orValue({})
    # CEL has no function for base64. Each 4 characters stand for 3 bytes; the first 18 bytes are the date, the hour and the minute.
    - name: sixBits
      expression: >-
        variables.data[?'expiration'].orValue('').split('').map(c,
        'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'.indexOf(c))
    - name: bytes
      expression: >-
        [0, 4, 8, 12, 16, 20].map(i, [
        variables.sixBits[i] * 4 + variables.sixBits[i + 1] / 16,
        variables.sixBits[i + 1] % 16 * 16 + variables.sixBits[i + 2] / 4,
        variables.sixBits[i + 2] % 4 * 64 + variables.sixBits[i + 3]])
    # The time is read as UTC. Its offset is ignored, which makes a difference of at most 14 hours.
    - name: expiration
      expression: >-
        variables.bytes.map(three, three.map(b, '+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ'.substring(b - 43, b - 42)).join(''))
        .join('').substring(0, 16) + ':00Z'
  validations:
    - expression: >-
        request.namespace == 'kube-system' && variables.secret.?type.orValue('') == 'bootstrap.kubernetes.io/token'
        && variables.secret.metadata.?name.orValue('').startsWith('bootstrap-token-')
        && 'slipway.dev/bootstrap-token' in variables.secret.metadata.?labels.orValue({})
      message: >-
        the Slipway {{ $part }} writes no Secrets but bootstrap tokens of its own: bootstrap-token-ID in kube-system, of type
        bootstrap.kubernetes.io/token, with the label slipway.dev/bootstrap-token
      reason: Forbidden
    # The value is system:bootstrappers:kubeadm:default-node-token in base64.
    - expression: >-
        request.operation == 'DELETE'
        || variables.data[?'auth-extra-groups'].orValue('') == 'c3lzdGVtOmJvb3RzdHJhcHBlcnM6a3ViZWFkbTpkZWZhdWx0LW5vZGUtdG9rZW4='
      message: a bootstrap token of the Slipway {{ $part }} is of the group system:bootstrappers:kubeadm:default-node-token alone
      reason: Forbidden
    - expression: request.operation == 'DELETE' || variables.data[?'expiration'].orValue('') != ''
      message: a bootstrap token of the Slipway {{ $part }} has an expiration
      reason: Forbidden
    - expression: >-
        request.operation == 'DELETE' || variables.data[?'expiration'].orValue('') == ''
        || timestamp(variables.expiration) < timestamp(variables.secret.metadata.creationTimestamp) + duration('48h')
      message: a bootstrap token of the Slipway {{ $part }} expires within 48 hours
      reason: Forbidden
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ $name }}-bootstrap
  {{- $metadata | nindent 2 }}
spec:
  policyName: {{ $name }}-bootstrap
  validationActions: [Deny]
{{- end }}
