package drain

import (
	"net/http"
	"strings"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// The answers of the API server to an eviction follow pkg/registry/core/pod/storage/eviction.go in k8s.io/kubernetes.

const pdbCause = "DisruptionBudget"

const namespaceDeletedDetail = "its namespace is being deleted, which deletes the pod"

// isPDBDenial reports whether the answer means that a PodDisruptionBudget denies the eviction. Usually the answer has
// the status 429. It has 403 if the disruption controller has not counted many evictions yet. From Kubernetes 1.37 on
// the 403 has a cause (https://github.com/kubernetes/kubernetes/pull/138003).
func isPDBDenial(s *kubeapi.StatusError) bool {
	switch s.Code {
	case http.StatusTooManyRequests:
		return hasCause(s, pdbCause) || !isWebhookError(s) && strings.Contains(s.Message, "disruption budget")
	case http.StatusForbidden:
		return hasCause(s, pdbCause) || strings.Contains(s.Message, "DisruptedPods map too big") ||
			strings.Contains(s.Message, "pdb disruptions allowed is negative")
	}
	return false
}

// isWebhookError reports whether an admission webhook has denied the request or was unavailable. Such an answer does
// not show the load of the API server, and does not concern other pods. A denial may have any status code: KubeVirt
// answers 429 to each eviction of a virtual machine. The texts that it looks for are in
// k8s.io/apiserver/pkg/admission/plugin/webhook/errors.
func isWebhookError(s *kubeapi.StatusError) bool {
	denied := strings.HasPrefix(s.Message, `admission webhook "`) && strings.Contains(s.Message, `" denied the request`)
	return denied || isWebhookUnavailable(s)
}

// isWebhookUnavailable reports whether the API server could not call an admission webhook. It has then not carried out
// the request.
func isWebhookUnavailable(s *kubeapi.StatusError) bool {
	return s.Code >= http.StatusInternalServerError && strings.Contains(s.Message, `failed calling webhook "`)
}

// isServerFailure reports whether the API server has not answered, or has answered with an internal error. It may have
// carried out the request.
func isServerFailure(s *kubeapi.StatusError) bool {
	return s == nil || s.Code >= http.StatusInternalServerError && !isMultiplePDBError(s) && !isWebhookError(s)
}

func denialMessage(s *kubeapi.StatusError) string {
	for _, c := range s.Causes {
		if c.Reason == pdbCause && c.Message != "" {
			return c.Message
		}
	}
	return s.Message
}

// isMultiplePDBError reports whether the eviction failed because several PDBs select the pod. The API server answers
// that with the status 500 without a machine-readable cause.
func isMultiplePDBError(s *kubeapi.StatusError) bool {
	return s.Code == http.StatusInternalServerError && strings.Contains(s.Message, "more than one PodDisruptionBudget")
}

func isNamespaceTerminating(s *kubeapi.StatusError) bool {
	return s.Code == http.StatusForbidden && hasCause(s, "NamespaceTerminating")
}

func hasCause(s *kubeapi.StatusError, reason string) bool {
	for _, c := range s.Causes {
		if c.Reason == reason {
			return true
		}
	}
	return false
}

// parsePDBName returns the PDB's name from a message like "The disruption budget NAME needs 2 healthy pods and has 2
// currently". It is only a fallback if PDBs cannot be listed.
func parsePDBName(denial string) string {
	_, rest, ok := strings.Cut(denial, "disruption budget ")
	if !ok {
		return "?"
	}
	name, _, _ := strings.Cut(rest, " ")
	return name
}
