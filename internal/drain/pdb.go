package drain

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// maxPDBPauseForced is the longest pause between two evictions under a PDB that denies them, for a drain with a
	// deadline. maxPDBPauseVoluntary is that pause without a deadline. A PDB allows an eviction again when a
	// replacement pod is ready, which takes seconds. One request per PDB and pause is little load, even if many pods
	// wait.
	maxPDBPauseForced    = time.Second
	maxPDBPauseVoluntary = 5 * time.Second
	// maxSerialWait is how long a request without an answer delays the next request under the same backoff.
	maxSerialWait = 2 * time.Second
	// pdbWatchRetryPause is the pause before the drain watches PDBs again, after it lacked the permission.
	pdbWatchRetryPause = 10 * time.Second
)

// pdbState holds the PDBs that the drain has read, and the backoffs that refusals have started.
type pdbState struct {
	namespaces map[string]*namespacePDBs
	backoffs   map[string]*sharedBackoff
}

// namespacePDBs holds the PDBs of one namespace. The drain watches them after the first denial, or before many
// evictions in the namespace, until it ends. When a PDB allows evictions again, the drain sees that at once and does
// not wait for the next retry.
type namespacePDBs struct {
	watching  bool
	rewatchAt time.Time // earliest time of the next watch after one has failed
	known     bool
	byName    map[string]selectorPDB
}

type selectorPDB struct {
	pdb     *kubeapi.PodDisruptionBudget
	matches func(map[string]string) bool
}

// sharedBackoff delays the requests of all pods that meet the same obstacle: a PDB, a missing permission, or a failing
// API server. Until its end, no request is sent. After it, one pod at a time tries, until a request succeeds. If that
// request hangs, the next pod tries too. So the number of requests does not depend on the number of waiting pods.
type sharedBackoff struct {
	reason ObstacleKind
	pdb    string // namespace/name, if the obstacle is a PDB
	detail string // the latest message of the API server
	// serial backoffs always allow only one request at a time: a PDB that allowed one eviction has probably used up its
	// disruptions.
	serial bool
	// evictionsOnly backoffs do not apply to deletions.
	evictionsOnly bool
	inFlight      int
	lastSentAt    time.Time // of the latest request
	until         time.Time
	pause         time.Duration
	// refusedSince is when the first of the refusals without a break was answered; zero if the obstacle may be over.
	refusedSince time.Time
}

// allowsRequest reports whether a request may be sent now. If not, it returns when the next request may be sent. The
// answer to a request in flight can make that time earlier.
func (b *sharedBackoff) allowsRequest(now time.Time) (allowed bool, from time.Time) {
	switch {
	case now.Before(b.until):
		return false, b.until
	case b.inFlight > 0 && (b.serial || b.pause > 0) && now.Before(b.lastSentAt.Add(maxSerialWait)):
		return false, b.lastSentAt.Add(maxSerialWait)
	}
	return true, time.Time{}
}

// extend starts the backoff again for at least the duration least and at most longest. Each time it doubles the last
// duration. If the backoff is active, extend does nothing: the requests in flight met the obstacle together.
func (b *sharedBackoff) extend(now time.Time, minPause, maxPause time.Duration) {
	if b.refusedSince.IsZero() {
		b.refusedSince = now
	}
	if now.Before(b.until) {
		return
	}
	b.pause = min(max(2*b.pause, minPause), maxPause)
	b.until = now.Add(b.pause)
}

// isFromPDB reports whether PDBs have denied an eviction. Otherwise the API server fails or a permission is missing.
func (b *sharedBackoff) isFromPDB() bool {
	return b.reason == ObstaclePDB || b.reason == ObstacleMultiplePDBs
}

func (b *sharedBackoff) reset() { b.pause, b.until, b.refusedSince = 0, time.Time{}, time.Time{} }

func newPDBState() *pdbState {
	return &pdbState{namespaces: map[string]*namespacePDBs{}, backoffs: map[string]*sharedBackoff{}}
}

// pdbsCovering returns the PDBs that select the pod. It returns false if the PDBs of the pod's namespace were not read.
func (b *pdbState) pdbsCovering(p *kubeapi.Pod) (covering []*kubeapi.PodDisruptionBudget, known bool) {
	ns := b.namespaces[p.Namespace]
	if ns == nil || !ns.known {
		return nil, false
	}
	var found []*kubeapi.PodDisruptionBudget
	for _, s := range ns.byName {
		if s.matches(p.Labels) {
			found = append(found, s.pdb)
		}
	}
	return found, true
}

// isUnread reports whether the drain has not requested the PDBs of a namespace yet.
func (b *pdbState) isUnread(namespace string) bool { return b.namespaces[namespace] == nil }

// isReading reports whether the drain has requested the PDBs of a namespace, and has no answer yet.
func (b *pdbState) isReading(namespace string) bool {
	ns := b.namespaces[namespace]
	return ns != nil && ns.watching && !ns.known
}

func (b *pdbState) getOrAddNamespace(namespace string) *namespacePDBs {
	ns := b.namespaces[namespace]
	if ns == nil {
		ns = &namespacePDBs{byName: map[string]selectorPDB{}}
		b.namespaces[namespace] = ns
	}
	return ns
}

// replaceAllUnlessError replaces the PDBs of the namespace by list. If err is not nil, it keeps the previous PDBs.
func (ns *namespacePDBs) replaceAllUnlessError(list []kubeapi.PodDisruptionBudget, err error) {
	if err != nil {
		return
	}
	ns.known = true
	clear(ns.byName)
	for i := range list {
		ns.addPDB(&list[i])
	}
}

// addPDB adds or replaces one PDB. If its selector is invalid, the PDB selects no pod, as in the disruption controller.
func (ns *namespacePDBs) addPDB(b *kubeapi.PodDisruptionBudget) {
	sel, err := b.Spec.Selector.ToSelector()
	if err != nil {
		delete(ns.byName, b.Name)
		return
	}
	ns.byName[b.Name] = selectorPDB{b, func(l map[string]string) bool { return sel.Matches(labels.Set(l)) }}
}

// minPodsToReadPDBs is how many waiting pods a namespace must have so that the drain reads its PDBs before a denial.
// With fewer pods, a conflict on one PDB costs half a second at most. Each pod of a node may be in another namespace.
// If many nodes are drained at once, a list for each namespace would overload the API server.
const minPodsToReadPDBs = 4

// hasManyWaitingPods reports whether a namespace has at least minPodsToReadPDBs waiting pods.
func (d *Drain) hasManyWaitingPods(namespace string) bool {
	waiting := 0
	for _, p := range d.pods {
		if p.pod.Namespace == namespace && p.isWaiting() {
			waiting++
		}
	}
	return waiting >= minPodsToReadPDBs
}

// canWatchPDBs reports whether the drain may start to watch the PDBs of a namespace: it does not watch them yet, and no
// pause is active.
func (d *Drain) canWatchPDBs(namespace string, now time.Time) bool {
	ns := d.pdbs.getOrAddNamespace(namespace)
	return !d.ended && !ns.watching && !now.Before(ns.rewatchAt)
}

// startPDBWatch starts to watch the PDBs of a namespace in the background. It does nothing if they are watched already.
func (d *Drain) startPDBWatch(ctx context.Context, namespace string, now time.Time) {
	if !d.canWatchPDBs(namespace, now) {
		return
	}
	ns := d.pdbs.getOrAddNamespace(namespace)
	ns.watching = true
	follow, stop := context.WithCancel(ctx)
	put := func(n inboxEvent) {
		d.inbox.putAndWake(func(now time.Time) { n(now); d.pdbs.reassignBackoffs(d.remaining, namespace, now) })
	}
	handler := kubeapi.Handler[kubeapi.PodDisruptionBudget]{
		Replaced: func(all []kubeapi.PodDisruptionBudget) {
			put(func(now time.Time) {
				ns.replaceAllUnlessError(all, nil)
				d.rekeyQueues(namespace)
				for i := range all {
					d.applyPDBStatus(&all[i], now)
				}
			})
		},
		Changed: func(b kubeapi.PodDisruptionBudget) {
			put(func(now time.Time) { ns.addPDB(&b); d.applyPDBStatus(&b, now) })
		},
		Deleted: func(b kubeapi.PodDisruptionBudget) { put(func(time.Time) { delete(ns.byName, b.Name) }) },
		Failed: func(err error) {
			d.options.Logger.Debug("cannot watch disruption budgets", "namespace", namespace, "err", err)
			if kubeapi.IsForbidden(err) { // retrying would not help: use the text of the denials
				stop()
			}
		},
	}
	d.background.Go(func() {
		defer stop()
		_ = d.api.WatchPodDisruptionBudgets(follow, namespace, handler) // it returns only when its context ends
		d.inbox.putAndWake(func(now time.Time) { ns.watching, ns.rewatchAt = false, now.Add(pdbWatchRetryPause) })
	})
}

// applyPDBStatus takes over the new status of a PDB. If the status allows an eviction, the pods that wait for this PDB
// may be evicted now. The status also shows whether the last eviction was counted.
func (d *Drain) applyPDBStatus(b *kubeapi.PodDisruptionBudget, now time.Time) {
	key := b.Namespace + "/" + b.Name
	if l := d.pdbQueues[key]; l != nil {
		l.recordPDBStatus(b)
	}
	for _, key := range []string{key, key + notReadySuffix} {
		if backoff := d.pdbs.backoffs[key]; backoff != nil && backoff.reason == ObstaclePDB && allowsRetry(b, key) {
			backoff.until, backoff.refusedSince = now, time.Time{}
		}
	}
}

// allowsRetry reports whether the status of a PDB shows that an eviction of the pods with this backoff key may succeed.
func allowsRetry(b *kubeapi.PodDisruptionBudget, key string) bool {
	return b.Status.DisruptionsAllowed > 0 || strings.HasSuffix(key, notReadySuffix) && b.ExemptsUnready()
}

// isExemptFromPDBs reports whether the API server evicts the pod without checking PDBs (canIgnorePDB in the API
// server).
func isExemptFromPDBs(p *kubeapi.Pod) bool {
	return p.Status.Phase == "Pending" || p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed"
}

// backoffKey returns the key of the backoff that a pod shares with other pods of the same PDBs. Unready pods have a
// separate key. Depending on its unhealthyPodEvictionPolicy, a PDB may allow their eviction while it denies the
// eviction of ready pods.
func backoffKey(p *kubeapi.Pod, budgets string) string {
	key := p.Namespace + "/" + budgets
	if !isReadyOrUnknown(p) {
		key += notReadySuffix
	}
	return key
}

const notReadySuffix = " (not ready)"

// isReadyOrUnknown reports whether a pod is ready. A pod without a Ready condition counts as ready.
func isReadyOrUnknown(p *kubeapi.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True"
		}
	}
	return true
}

// backoffOfDenyingPDB returns the backoff of the PDB that denied the eviction of a pod. If the PDBs of the pod are
// unknown, it reads the PDB's name from the denial.
func (b *pdbState) backoffOfDenyingPDB(p *kubeapi.Pod, denial *kubeapi.StatusError) *sharedBackoff {
	name := parsePDBName(denialMessage(denial))
	if covering, ok := b.pdbsCovering(p); ok && len(covering) == 1 {
		name = covering[0].Name
	}
	return b.getOrAddBackoff(backoffKey(p, name), sharedBackoff{reason: ObstaclePDB, pdb: p.Namespace + "/" + name, serial: true, evictionsOnly: true})
}

// multiplePDBBackoff returns the backoff of a pod that several PDBs select. All pods with the same PDBs share it.
func (b *pdbState) multiplePDBBackoff(p *kubeapi.Pod) *sharedBackoff {
	covering, _ := b.pdbsCovering(p)
	return b.getOrAddBackoff(backoffKey(p, joinPDBNames(covering)), sharedBackoff{reason: ObstacleMultiplePDBs, serial: true, evictionsOnly: true})
}

// forbiddenBackoff returns the backoff for pods of a namespace if the permission for this method is missing there.
func (b *pdbState) forbiddenBackoff(p *kubeapi.Pod, how RemovalMethod) *sharedBackoff {
	return b.getOrAddBackoff(p.Namespace+" "+string(how), sharedBackoff{reason: ObstacleForbidden, evictionsOnly: how == Evicted})
}

func (b *pdbState) getOrAddBackoff(key string, initial sharedBackoff) *sharedBackoff {
	backoff := b.backoffs[key]
	if backoff == nil {
		backoff = &initial
		b.backoffs[key] = backoff
	}
	return backoff
}

func joinPDBNames(covering []*kubeapi.PodDisruptionBudget) string {
	all := make([]string, len(covering))
	for i, b := range covering {
		all[i] = b.Name
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// assignPDBBackoff makes a pod wait for the backoff of its PDBs, if these PDBs have denied the eviction of another pod. A pause
// after another obstacle ends first.
func (b *pdbState) assignPDBBackoff(p *podState, now time.Time) {
	if !p.isWaiting() || p.forceDeletion || p.backoff != nil && !p.backoff.isFromPDB() && now.Before(p.backoff.until) {
		return
	}
	covering, ok := b.pdbsCovering(&p.pod)
	if !ok || len(covering) == 0 {
		return
	}
	if isExemptFromPDBs(&p.pod) {
		p.backoff = nil
		return
	}
	if backoff := b.backoffs[backoffKey(&p.pod, joinPDBNames(covering))]; backoff != nil || p.backoff != nil && p.backoff.reason == ObstaclePDB {
		p.backoff = backoff
	}
}

// assignMissingBackoffs calls assignPDBBackoff for each pod of the namespace that has no backoff.
func (b *pdbState) assignMissingBackoffs(pods []*podState, namespace string, now time.Time) {
	for _, p := range pods {
		if p.backoff == nil && p.pod.Namespace == namespace {
			b.assignPDBBackoff(p, now)
		}
	}
}

// reassignBackoffs assigns a backoff to all pods of a namespace, after the drain has read its PDBs. It also makes the
// explanations more precise. A pod that no PDB selects any more stops waiting.
func (b *pdbState) reassignBackoffs(pods []*podState, namespace string, now time.Time) {
	for _, p := range pods {
		if p.pod.Namespace != namespace || !p.isWaiting() {
			continue
		}
		if p.backoff != nil && p.backoff.isFromPDB() {
			b.moveBackoffToCoveringPDBs(p)
		} else {
			b.assignPDBBackoff(p, now)
		}
		if backoff := p.backoff; backoff != nil && (p.blocked.Reason == ObstaclePDB || p.blocked.Reason == ObstacleMultiplePDBs) {
			p.setBlocked(backoff.reason, backoff.pdb, b.explainObstacle(backoff.reason, &p.pod, backoff.detail), now)
		}
	}
}

// moveBackoffToCoveringPDBs moves a pod to the backoff of the PDBs that select it now. The remaining pause moves with
// the pod.
func (b *pdbState) moveBackoffToCoveringPDBs(p *podState) {
	covering, _ := b.pdbsCovering(&p.pod)
	old := p.backoff
	switch {
	case len(covering) == 0:
		p.backoff = nil
		return
	case len(covering) == 1:
		name := covering[0].Name
		p.backoff = b.getOrAddBackoff(backoffKey(&p.pod, name), sharedBackoff{reason: ObstaclePDB, pdb: p.pod.Namespace + "/" + name, serial: true, evictionsOnly: true})
	default:
		p.backoff = b.multiplePDBBackoff(&p.pod)
	}
	if p.backoff != old && p.backoff.until.IsZero() {
		p.backoff.until, p.backoff.pause, p.backoff.detail, p.backoff.refusedSince = old.until, old.pause, old.detail, old.refusedSince
	}
}

// explainObstacle returns one sentence that says when the pod's PDBs would allow its eviction. If the PDBs are unknown,
// or are not the obstacle, it returns the API server's message.
func (b *pdbState) explainObstacle(obstacle ObstacleKind, p *kubeapi.Pod, serverMessage string) string {
	covering, _ := b.pdbsCovering(p)
	switch {
	case obstacle == ObstacleMultiplePDBs && len(covering) > 1:
		return fmt.Sprintf("pod is selected by %d disruption budgets (%s) and the API server cannot evict such a pod: make their "+
			"selectors disjoint", len(covering), joinPDBNames(covering))
	case obstacle == ObstaclePDB && len(covering) == 1 && strings.Contains(serverMessage, " needs "):
		return explainPDB(covering[0])
	case obstacle == ObstaclePDB && len(covering) == 1: // the denial is not about numbers
		return serverMessage + " (" + explainPDB(covering[0]) + ")"
	}
	return serverMessage
}

func explainPDB(b *kubeapi.PodDisruptionBudget) string {
	s := b.Status
	now := fmt.Sprintf("budget %s allows %d disruptions: %d of %d pods are healthy, %d must be", b.Name,
		s.DisruptionsAllowed, s.CurrentHealthy, s.ExpectedPods, s.DesiredHealthy)
	if n := len(s.DisruptedPods); n > 0 {
		now += fmt.Sprintf("; it still counts %d pods as being evicted, for up to two minutes", n)
	}
	if isStuckPDB(b) {
		return now + "; it never allows an eviction, because every pod must be healthy: raise the replicas or relax the budget"
	}
	return now
}

// isStuckPDB reports whether a PDB blocks evictions permanently: all its pods are healthy and not being evicted, and it
// still allows no eviction.
func isStuckPDB(b *kubeapi.PodDisruptionBudget) bool {
	s := b.Status
	return s.ExpectedPods > 0 && s.CurrentHealthy >= s.ExpectedPods && s.DisruptionsAllowed == 0 &&
		len(s.DisruptedPods) == 0 && kubeapi.CanNeverAllowEviction(s.DesiredHealthy, s.ExpectedPods)
}
