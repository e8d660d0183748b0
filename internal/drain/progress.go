package drain

import (
	"fmt"
	"sort"
	"strings"
	"time"
)

// Obstacle is the kind of thing that a pod waits for.
type Obstacle string

const (
	// Budget: a PodDisruptionBudget allows no disruption now.
	Budget Obstacle = "disruption-budget"
	// SeveralBudgets: more than one PDB selects the pod, which the eviction API does not support.
	SeveralBudgets Obstacle = "several-disruption-budgets"
	// Busy: the API server answered 429 without a PDB.
	Busy Obstacle = "api-server-busy"
	// NoRight: a permission is missing.
	NoRight Obstacle = "forbidden"
	// Webhook: an admission webhook denies the request.
	Webhook Obstacle = "admission-webhook"
	// Failing: any other error.
	Failing Obstacle = "error"
	// EarlierWave: pods of lower priority are evicted first.
	EarlierWave Obstacle = "earlier-wave"
	// Stopping: the pod is terminating within its grace.
	Stopping Obstacle = "stopping"
	// ByPolicy: the policy does not allow the eviction.
	ByPolicy Obstacle = "policy"
	// Turn: other requests come first.
	Turn Obstacle = "turn"
)

// Blocked is a pod that has to be removed, and what it waits for.
type Blocked struct {
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	Reason    Obstacle  `json:"reason"`
	Budget    string    `json:"budget,omitempty"` // namespace/name of the PDB
	Detail    string    `json:"detail"`
	Since     time.Time `json:"since"`
}

func (b Blocked) String() string {
	return fmt.Sprintf("%s/%s: %s: %s", b.Namespace, b.Pod, b.Reason, b.Detail)
}

// Progress is the current state of a drain. Receivers may keep it.
type Progress struct {
	Node     string    `json:"node"`
	Began    time.Time `json:"began"`
	Deadline time.Time `json:"deadline,omitzero"`
	// Listed is false until the pods are known.
	Listed bool `json:"listed"`
	// Total counts the pods that have to be removed. It is the sum of Gone, Asked (requested, not gone) and Waiting
	// (not requested).
	Total   int `json:"total"`
	Gone    int `json:"gone"`
	Asked   int `json:"asked"`
	Waiting int `json:"waiting"`
	// Stayed counts the pods that are skipped.
	Stayed int `json:"stayed"`
	// Blocked lists every pod that is not gone and what it waits for, by namespace and name.
	Blocked []Blocked `json:"blocked,omitempty"`
}

// Obstructed returns the pods with an obstacle other than their own termination, their turn or an earlier wave.
func (p Progress) Obstructed() []Blocked {
	var out []Blocked
	for _, b := range p.Blocked {
		switch b.Reason {
		case Stopping, Turn, EarlierWave:
		default:
			out = append(out, b)
		}
	}
	return out
}

// String returns one line such as "7 of 12 gone, 3 stopping, 2 waiting (disruption-budget web: 2)".
func (p Progress) String() string {
	if !p.Listed {
		return "pods not listed yet"
	}
	s := fmt.Sprintf("%d of %d gone", p.Gone, p.Total)
	if p.Asked > 0 {
		s += fmt.Sprintf(", %d stopping", p.Asked)
	}
	if p.Waiting > 0 {
		s += fmt.Sprintf(", %d waiting", p.Waiting)
	}
	if why := p.describeObstacles(); why != "" {
		s += " (" + why + ")"
	}
	return s
}

func (p Progress) describeObstacles() string {
	count := map[string]int{}
	for _, b := range p.Obstructed() {
		key := string(b.Reason)
		if b.Budget != "" {
			key += " " + b.Budget
		}
		count[key]++
	}
	keys := make([]string, 0, len(count))
	for k := range count {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for i, k := range keys {
		keys[i] = fmt.Sprintf("%s: %d", k, count[k])
	}
	return strings.Join(keys, ", ")
}
