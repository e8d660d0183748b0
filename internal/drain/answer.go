package drain

import (
	"net/http"
	"strings"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// The API server's answers to an eviction, as pkg/registry/core/pod/storage/eviction.go in k8s.io/kubernetes gives them.

const budgetCause = "DisruptionBudget"

const namespaceGoes = "its namespace is being deleted, which deletes the pod"

// isDenial reports that a PodDisruptionBudget denies the eviction. While the disruption controller has not counted many
// evictions the answer is 403; from Kubernetes 1.37 on it has a cause (https://github.com/kubernetes/kubernetes/pull/138003).
func isDenial(s *kubeapi.StatusError) bool {
	switch s.Code {
	case http.StatusTooManyRequests:
		return hasCause(s, budgetCause) || !isWebhook(s) && strings.Contains(s.Message, "disruption budget")
	case http.StatusForbidden:
		return hasCause(s, budgetCause) || strings.Contains(s.Message, "DisruptedPods map too big") ||
			strings.Contains(s.Message, "pdb disruptions allowed is negative")
	}
	return false
}

// isWebhook reports that an admission webhook denied the request, or could not be called. Neither says anything about the
// API server or about other pods. A denial may have any code: KubeVirt answers 429 to each eviction of a virtual machine.
// The words are those of k8s.io/apiserver/pkg/admission/plugin/webhook/errors.
func isWebhook(s *kubeapi.StatusError) bool {
	denied := strings.HasPrefix(s.Message, `admission webhook "`) && strings.Contains(s.Message, `" denied the request`)
	return denied || isWebhookFailure(s)
}

// isWebhookFailure reports that an admission webhook could not be called, so that the request was not carried out.
func isWebhookFailure(s *kubeapi.StatusError) bool {
	return s.Code >= http.StatusInternalServerError && strings.Contains(s.Message, `failed calling webhook "`)
}

// isFailure recognises a request that was not answered, or not carried out for no fault of its own. It may have worked.
func isFailure(s *kubeapi.StatusError) bool {
	return s == nil || s.Code >= http.StatusInternalServerError && !isSeveralBudgets(s) && !isWebhook(s)
}

func denialOf(s *kubeapi.StatusError) string {
	for _, c := range s.Causes {
		if c.Reason == budgetCause && c.Message != "" {
			return c.Message
		}
	}
	return s.Message
}

// isSeveralBudgets recognises the API server's answer for a pod under more than one budget, a plain 500.
func isSeveralBudgets(s *kubeapi.StatusError) bool {
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

// budgetNamedIn reads the budget's name out of the API server's "The disruption budget NAME needs 2 healthy pods and
// has 2 currently". It is only a fallback for when budgets may not be listed.
func budgetNamedIn(denial string) string {
	_, rest, ok := strings.Cut(denial, "disruption budget ")
	if !ok {
		return "?"
	}
	name, _, _ := strings.Cut(rest, " ")
	return name
}
