package drain

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// Prediction is what a drain would do if it started now. Its pods are sorted by wave, namespace and name.
type Prediction struct {
	Node string          `json:"node"`
	At   time.Time       `json:"at"`
	Pods []PodPrediction `json:"pods"`
	// Problems lists what could not be read, such as PDBs without permission.
	Problems []string `json:"problems,omitempty"`
}

// PodPrediction is what a drain would do with one pod if it started now.
type PodPrediction struct {
	Namespace string          `json:"namespace"`
	Name      string          `json:"name"`
	UID       string          `json:"uid"`
	Owner     string          `json:"owner,omitempty"` // Kind/name of the controller
	Decision  Decision        `json:"decision"`
	Action    podrules.Action `json:"action"`
	Wave      int             `json:"wave"`
	Group     string          `json:"group,omitempty"` // as in PodReport
	// Removal is the kind of request: Evicted, DeletedOnRequest, or empty if none would be sent.
	Removal RemovalMethod `json:"removal,omitempty"`
	// WantedGraceSeconds is the grace of the pod or of the caller. GivenGraceSeconds is what the pod would get. Both in seconds.
	WantedGraceSeconds int64 `json:"graceWantedSeconds"`
	GivenGraceSeconds  int64 `json:"graceGivenSeconds"`
	// Surge says whether the pod would get a successor first. It is nil if it needs none.
	Surge *SurgeReport `json:"surge,omitempty"`
	// EvictionRequest says which responders of the pod would be asked first. With a dry run it also has what they have
	// answered to an earlier request, or why they would not be asked.
	EvictionRequest *EvictionRequestReport `json:"evictionRequest,omitempty"`
	// Obstacle is what would block the pod now. Its Reason is empty if nothing would.
	Obstacle BlockedPod `json:"obstacle,omitzero"`
}

// PodsRefusingDrain returns the pods that would make the whole drain end before it evicts a pod.
func (f Prediction) PodsRefusingDrain() []PodPrediction {
	return f.filterPods(func(p PodPrediction) bool { return p.Action == podrules.RefuseDrain })
}

// BlockedPods returns the pods with an eviction that would be denied now.
func (f Prediction) BlockedPods() []PodPrediction {
	return f.filterPods(func(p PodPrediction) bool { return p.Obstacle.Reason != "" })
}

func (f Prediction) filterPods(is func(PodPrediction) bool) (found []PodPrediction) {
	for _, p := range f.Pods {
		if is(p) {
			found = append(found, p)
		}
	}
	return found
}

// Predict returns what a drain would do now. It changes nothing. It lists the node's pods once and reads the PDBs of
// their namespaces. If server is true, it also sends each eviction as a dry run, so that the API server reports which
// evictions it would deny. That requires the permission to evict. The error is set only if the pods could not be
// listed; other failures are in Problems.
func Predict(ctx context.Context, api API, o Options, dryRun bool) (Prediction, error) {
	d := New(api, o)
	pods, err := d.listPods(ctx)
	if err != nil {
		return Prediction{}, err
	}
	now := time.Now()
	d.startedAt, d.deadlineSince = now, now
	d.replacePods(pods, now)
	d.applyDueTimers(now)
	f := Prediction{Node: o.Node, At: now}
	f.Problems = d.readGroupsOfWaitingPods(ctx, now)
	f.Problems = append(f.Problems, d.readPDBsOfWaitingPods(ctx)...)
	d.markBlockedByPDBs(now)
	d.predictSurges(ctx, now)
	if dryRun {
		d.dryRunAndRecordObstacles(ctx, now)
	}
	d.markBlockedByGroups(now)
	for _, p := range d.dropGoneAndSortRemaining() {
		f.Pods = append(f.Pods, d.predictPod(p, now))
	}
	slices.SortStableFunc(f.Pods, func(a, b PodPrediction) int {
		return cmp.Or(cmp.Compare(a.Wave, b.Wave), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	if dryRun {
		d.dryRunEvictionRequests(ctx, f.Pods)
	}
	return f, ctx.Err()
}

func (d *Drain) predictPod(p *podState, now time.Time) PodPrediction {
	r := p.toReport()
	f := PodPrediction{
		Namespace: r.Namespace, Name: r.Name, UID: r.UID, Owner: r.Owner, Decision: r.Decision,
		Action: r.Action, Wave: r.Wave, Group: r.Group, WantedGraceSeconds: r.WantedGraceSeconds, GivenGraceSeconds: r.GivenGraceSeconds, Obstacle: p.blocked,
		Surge: r.Surge,
	}
	if p.isWaiting() {
		f.Removal, f.GivenGraceSeconds = Evicted, int64(capGrace(p.wantedGrace, d.terms, now)/time.Second)
		if d.options.DisableEviction {
			f.Removal = DeletedOnRequest
		}
		f.EvictionRequest = d.predictResponders(p)
	}
	return f
}

// readPDBsOfWaitingPods reads the PDBs of every namespace with pods to evict. It returns one text for each namespace
// that it could not read.
func (d *Drain) readPDBsOfWaitingPods(ctx context.Context) (problems []string) {
	for _, p := range d.dropGoneAndSortRemaining() {
		ns := p.pod.Namespace
		if d.options.DisableEviction || !p.isWaiting() || !d.pdbs.isUnread(ns) {
			continue
		}
		list, err := listOnce(ctx, func(ctx context.Context, h kubeapi.Handler[kubeapi.PodDisruptionBudget]) error {
			return d.api.WatchPodDisruptionBudgets(ctx, ns, h)
		})
		if err != nil {
			problems = append(problems, fmt.Sprintf("namespace %s: reading its disruption budgets: %v", ns, err))
		}
		d.pdbs.getOrAddNamespace(ns).replaceAllUnlessError(list, err)
	}
	return problems
}

// markBlockedByPDBs records an obstacle for each pod with PDBs that would deny its eviction, by their status.
func (d *Drain) markBlockedByPDBs(now time.Time) {
	spent := map[*kubeapi.PodDisruptionBudget]int32{}
	for _, p := range d.dropGoneAndSortRemaining() {
		if !p.isWaiting() || isExemptFromPDBs(&p.pod) || d.options.DisableEviction {
			continue
		}
		covering, _ := d.pdbs.pdbsCovering(&p.pod)
		switch len(covering) {
		case 0:
		case 1:
			b := covering[0]
			if !isReadyOrUnknown(&p.pod) && b.ExemptsUnready() {
				continue
			}
			if spent[b] >= b.Status.DisruptionsAllowed {
				p.setBlocked(ObstaclePDB, b.Namespace+"/"+b.Name, explainPDB(b)+describePodsBefore(spent[b]), now)
			}
			spent[b]++
		default:
			p.setBlocked(ObstacleMultiplePDBs, "", d.pdbs.explainObstacle(ObstacleMultiplePDBs, &p.pod, ""), now)
		}
	}
}

func describePodsBefore(before int32) string {
	if before == 0 {
		return ""
	}
	return fmt.Sprintf("; %d of this node's pods are evicted first", before)
}

// dryRunAndRecordObstacles sends each eviction as a dry run. If the API server denies it, the denial is recorded as an
// obstacle, even if the PDB's status allows the eviction. If the API server accepts it, the obstacle is removed. The
// obstacle stays if evictions of other pods on the node would use up the PDB: a dry run does not count against the PDB.
func (d *Drain) dryRunAndRecordObstacles(ctx context.Context, now time.Time) {
	var group sync.WaitGroup
	slots := make(chan struct{}, d.options.maxOtherInFlight())
	answers := make(map[*podState]*error)
	for _, p := range d.dropGoneAndSortRemaining() {
		if !p.isWaiting() {
			continue
		}
		answer := new(error)
		answers[p] = answer
		r, _ := d.newRemoval(p, now)
		r.DryRun = true
		send := d.api.EvictPod
		if d.options.DisableEviction {
			send = d.api.DeletePod
		}
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			bounded, cancel := context.WithTimeout(ctx, maxRequestTimeout)
			defer cancel()
			*answer = send(bounded, r)
		})
	}
	group.Wait()
	for p, err := range answers {
		switch {
		case *err != nil:
			p.blocked = BlockedPod{}
			d.recordDryRunError(p, *err, now)
		case p.blocked.Reason == ObstaclePDB && d.isDisruptionAllowed(p): // other pods use up the PDB first
		default:
			p.blocked = BlockedPod{}
		}
	}
}

func (d *Drain) recordDryRunError(p *podState, err error, now time.Time) {
	status := kubeapi.ToStatusError(err)
	switch {
	case status == nil:
		p.setBlocked(ObstacleError, "", err.Error(), now)
	case isPDBDenial(status):
		p.setBlocked(ObstaclePDB, d.pdbs.backoffOfDenyingPDB(&p.pod, status).pdb, d.pdbs.explainObstacle(ObstaclePDB, &p.pod, denialMessage(status)), now)
	case isMultiplePDBError(status):
		p.setBlocked(ObstacleMultiplePDBs, "", d.pdbs.explainObstacle(ObstacleMultiplePDBs, &p.pod, status.Message), now)
	case isNamespaceTerminating(status):
		p.setBlocked(ObstacleError, "", namespaceDeletedDetail, now)
	case isWebhookError(status):
		p.setBlocked(ObstacleWebhook, "", status.Message, now)
	case status.Code == http.StatusForbidden:
		p.setBlocked(ObstacleForbidden, "", status.Message, now)
	case status.Code == http.StatusTooManyRequests:
		p.setBlocked(ObstacleAPIServerBusy, "", status.Message, now)
	default:
		p.setBlocked(ObstacleError, "", err.Error(), now)
	}
}

// isDisruptionAllowed reports whether the PDB of a pod allows one disruption now. Another pod of the PDB may use it.
func (d *Drain) isDisruptionAllowed(p *podState) bool {
	covering, _ := d.pdbs.pdbsCovering(&p.pod)
	return len(covering) == 1 && covering[0].Status.DisruptionsAllowed > 0
}
