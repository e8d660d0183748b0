package drain

import (
	"net/http"
	"strings"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// The API server's answers to an eviction, as pkg/registry/core/pod/storage/eviction.go in k8s.io/kubernetes gives them.

const budgetCause = "DisruptionBudget"

const namespaceGoes = "its namespace is being deleted, which deletes the pod"

// isDenial tells a disruption budget's 429 from an overloaded API server's. A budget whose status the disruption
// controller does not keep up with answers 403.
func isDenial(s *kubeapi.StatusError) bool {
	switch s.Code {
	case http.StatusTooManyRequests:
		return hasCause(s, budgetCause) || !isWebhook(s) && strings.Contains(s.Message, "disruption budget")
	case http.StatusForbidden:
		return strings.Contains(s.Message, "DisruptedPods map too big") ||
			strings.Contains(s.Message, "pdb disruptions allowed is negative")
	}
	return false
}

// isWebhook recognises the no of an admission webhook, which speaks of one pod and may bear any code: KubeVirt's answers 429
// to each eviction of a virtual machine. ToStatusErr in k8s.io/apiserver/pkg/admission/plugin/webhook/errors words it. One
// that cannot be called is an error of the API server's.
func isWebhook(s *kubeapi.StatusError) bool {
	return strings.HasPrefix(s.Message, `admission webhook "`) && strings.Contains(s.Message, `" denied the request`)
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
