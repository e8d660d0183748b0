package drain

import (
	"fmt"
	"sort"
	"strings"
	"time"
)

// Obstacle is the kind of thing that a pod waits for.
type Obstacle string

// The obstacles.
const (
	// Budget: a PodDisruptionBudget allows no disruption now.
	Budget Obstacle = "disruption-budget"
	// SeveralBudgets: more than one selects the pod, which the eviction API does not support.
	SeveralBudgets Obstacle = "several-disruption-budgets"
	// Busy: the API server asks for patience.
	Busy Obstacle = "api-server-busy"
	// NoRight: a right is missing.
	NoRight Obstacle = "forbidden"
	// Webhook: an admission webhook denies the request.
	Webhook Obstacle = "admission-webhook"
	// Failing: any other error.
	Failing Obstacle = "error"
	// EarlierWave: pods of lower priority leave first.
	EarlierWave Obstacle = "earlier-wave"
	// Stopping: it was asked, and takes the time it was given.
	Stopping Obstacle = "stopping"
	// ByPolicy: policy keeps it where it is.
	ByPolicy Obstacle = "policy"
	// Turn: it has not been its turn yet.
	Turn Obstacle = "turn"
)

// Blocked says what one pod that has to leave is waiting for.
type Blocked struct {
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	Reason    Obstacle  `json:"reason"`
	Budget    string    `json:"budget,omitempty"` // namespace/name
	Detail    string    `json:"detail"`
	Since     time.Time `json:"since"`
}

func (b Blocked) String() string {
	return fmt.Sprintf("%s/%s: %s: %s", b.Namespace, b.Pod, b.Reason, b.Detail)
}

// Progress is how far a drain is. It is a value: what receives it may keep it.
type Progress struct {
	Node     string    `json:"node"`
	Began    time.Time `json:"began"`
	Deadline time.Time `json:"deadline,omitzero"`
	// Listed is false until the pods are known.
	Listed bool `json:"listed"`
	// Total is how many pods have to leave; Gone, Asked (and not gone) and Waiting (not asked yet) add up to it.
	Total   int `json:"total"`
	Gone    int `json:"gone"`
	Asked   int `json:"asked"`
	Waiting int `json:"waiting"`
	// Stayed counts the pods that are left alone.
	Stayed int `json:"stayed"`
	// Blocked lists, for every pod that is not gone, what it waits for, by namespace and name.
	Blocked []Blocked `json:"blocked,omitempty"`
}

// Obstructed returns the blocked pods that something other than their own stopping or turn holds up.
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

// String is the progress in one line: "7 of 12 gone, 3 stopping, 2 waiting (disruption-budget web: 2)".
func (p Progress) String() string {
	if !p.Listed {
		return "pods not known yet"
	}
	s := fmt.Sprintf("%d of %d gone", p.Gone, p.Total)
	if p.Asked > 0 {
		s += fmt.Sprintf(", %d stopping", p.Asked)
	}
	if p.Waiting > 0 {
		s += fmt.Sprintf(", %d waiting", p.Waiting)
	}
	if why := p.why(); why != "" {
		s += " (" + why + ")"
	}
	return s
}

// why counts the obstacles.
func (p Progress) why() string {
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
