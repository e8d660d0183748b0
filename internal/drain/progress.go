package drain

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"
)

// ObstacleKind is the reason why a pod is not removed yet.
type ObstacleKind string

const (
	// ObstaclePDB: a PodDisruptionBudget allows no disruption now.
	ObstaclePDB ObstacleKind = "disruption-budget"
	// ObstacleMultiplePDBs: more than one PDB selects the pod, which the eviction API does not support.
	ObstacleMultiplePDBs ObstacleKind = "several-disruption-budgets"
	// ObstacleAPIServerBusy: the API server answered 429 without a PDB.
	ObstacleAPIServerBusy ObstacleKind = "api-server-busy"
	// ObstacleForbidden: a permission is missing.
	ObstacleForbidden ObstacleKind = "forbidden"
	// ObstacleWebhook: an admission webhook denies the request.
	ObstacleWebhook ObstacleKind = "admission-webhook"
	// ObstacleError: any other error.
	ObstacleError ObstacleKind = "error"
	// ObstacleEarlierWave: pods of lower priority are evicted first.
	ObstacleEarlierWave ObstacleKind = "earlier-wave"
	// ObstacleSurge: its successor is started first.
	ObstacleSurge ObstacleKind = "surge"
	// ObstacleGroup: the pod goes together with the other pods of its group, and not all of them can be evicted.
	ObstacleGroup ObstacleKind = "group"
	// ObstacleStopping: the pod is terminating within its grace.
	ObstacleStopping ObstacleKind = "stopping"
	// ObstacleResponder: a responder of the pod was asked to remove it, see EvictionRequestReport.
	ObstacleResponder ObstacleKind = "eviction-responder"
	// ObstaclePolicy: the policy does not allow the eviction.
	ObstaclePolicy ObstacleKind = "policy"
	// ObstacleQueued: other requests come first.
	ObstacleQueued ObstacleKind = "turn"
)

// BlockedPod is a pod that has to be removed, and the obstacle that it waits for.
type BlockedPod struct {
	Namespace string       `json:"namespace"`
	Pod       string       `json:"pod"`
	Reason    ObstacleKind `json:"reason"`
	PDB       string       `json:"pdb,omitempty"` // namespace/name of the PDB
	Detail    string       `json:"detail"`
	Since     time.Time    `json:"since"`
}

func (b BlockedPod) String() string {
	return fmt.Sprintf("%s/%s: %s: %s", b.Namespace, b.Pod, b.Reason, b.Detail)
}

// Progress is the state of a drain at one moment. Later changes of the drain do not change it, so a receiver may keep
// it.
type Progress struct {
	Node      string
	StartedAt time.Time
	Deadline  time.Time
	// Listed is false until the pods are known.
	Listed bool
	// Total counts the pods that have to be removed. It is the sum of Gone, Stopping (requested, not gone) and Waiting
	// (not requested).
	Total    int
	Gone     int
	Stopping int
	Waiting  int
	// Surging counts the waiting pods with a surge that runs.
	Surging int
	// Skipped counts the pods that are skipped.
	Skipped int
	// RemainingPods lists every pod that is not gone and what it waits for, by namespace and name.
	RemainingPods []BlockedPod
}

// BlockedPods returns the pods that cannot be evicted now. Unlike WaitingPods, it leaves out pods that wait for their successor
// or for a responder: nothing is wrong with these, and the drain limits both waits.
func (p Progress) BlockedPods() []BlockedPod {
	return slices.DeleteFunc(p.WaitingPods(), func(b BlockedPod) bool {
		return b.Reason == ObstacleSurge || b.Reason == ObstacleResponder
	})
}

// WaitingPods returns the pods that wait for an obstacle. It leaves out pods that are terminating, that wait for other
// requests, or that wait for an earlier wave.
func (p Progress) WaitingPods() []BlockedPod {
	var out []BlockedPod
	for _, b := range p.RemainingPods {
		switch b.Reason {
		case ObstacleStopping, ObstacleQueued, ObstacleEarlierWave:
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
	if p.Stopping > 0 {
		s += fmt.Sprintf(", %d stopping", p.Stopping)
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
	for _, b := range p.WaitingPods() {
		key := string(b.Reason)
		if b.PDB != "" {
			key += " " + b.PDB
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
