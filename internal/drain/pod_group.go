package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// minGroupPause and maxGroupPause are the shortest and the longest pause after the eviction of a group was denied.
	minGroupPause = time.Second
	maxGroupPause = 10 * time.Second
	// groupRequestTime is how long before its timeout a voluntary drain starts no group. The requests for one part of the
	// group would otherwise come after the timeout.
	groupRequestTime = minRequestTimeout
)

// groupKey identifies a group of pods.
type groupKey struct {
	namespace string
	podrules.Group
}

// groupState is the engine's state of the pods of one group on this node.
//
// The pods of a group lose their work together. So the drain requests all of them or none, after the other pods of their
// wave. It first sends the evictions as dry runs. A dry run does not count against a PDB, so the drain also reads the PDBs
// and counts the pods. With a deadline, the pods are removed like all others once the first of them has to be deleted. Pods
// on other nodes are not touched: the group's controller restarts them.
type groupState struct {
	groupKey

	members  []*podState // the held pods, decided anew in each step
	checking bool        // the dry runs are in flight
	// lastDenied is the pod with the last failed dry run. It is tried alone first.
	lastDenied *podState
	// earliestAt is when the next dry runs may be sent, and retryAt when they are sent if no PDB blocks the group.
	earliestAt, retryAt time.Time
	pause               time.Duration
	// releaseAt is when the pods are removed like all others, because of the deadline; zero is never.
	releaseAt time.Time

	mode         podrules.DisruptionMode // of a PodGroup; all for other groups
	modeProblem  string                  // why the mode is unknown
	modeAnswered bool                    // the first read of the mode has ended
	readingMode  bool
	nextModeRead time.Time
}

// String returns the group's name, and that its mode is unknown.
func (g *groupState) String() string {
	if g.modeProblem == "" {
		return g.Group.String()
	}
	return fmt.Sprintf("%s (counts as disruptionMode all, because it cannot be read: %s)", g.Group, g.modeProblem)
}

// findGroup returns the group of a pod, as far as the mode of its PodGroup is known.
func (d *Drain) findGroup(f *podrules.Facts, p *kubeapi.Pod) podrules.Group {
	if g := d.groups[groupKey{p.Namespace, f.Group}]; g != nil {
		return f.Group.ResolveMode(p.Labels, g.mode)
	}
	return f.Group
}

// getOrAddGroup returns the state of a pod's group.
func (d *Drain) getOrAddGroup(p *podState) *groupState {
	key := groupKey{p.pod.Namespace, p.group}
	g := d.groups[key]
	if g == nil {
		g = &groupState{groupKey: key}
		if p.group.Kind != podrules.PodGroup {
			g.mode = podrules.DisruptionModeAll
		}
		d.groups[key] = g
	}
	return g
}

// compareHeld sorts held pods after all others.
func compareHeld(a, b *podState) int {
	switch {
	case a.held == b.held:
		return 0
	case b.held:
		return -1
	}
	return 1
}

// holdGroups decides which pods are held for their groups in this step. The pods of a group go in the last of their waves.
// It also starts to read the modes of PodGroups. It returns when the next group is released because of the deadline.
func (d *Drain) holdGroups(ctx context.Context, now time.Time) (next time.Time) {
	for _, g := range d.collectGroups() {
		if at := d.startModeReadIfDue(ctx, g, now); !at.IsZero() {
			next = earlierNonZero(next, at)
		}
		g.releaseAt = d.groupReleaseTime(g)
		if g.releaseAt.IsZero() {
			continue
		}
		if now.Before(g.releaseAt) {
			next = earlierNonZero(next, g.releaseAt)
			continue
		}
		for _, p := range g.members {
			p.held = false
		}
	}
	return next
}

// collectGroups marks the pods that are held for their groups, and returns these groups.
func (d *Drain) collectGroups() (held []*groupState) {
	for _, g := range d.groups {
		g.members = nil
	}
	for _, p := range d.remaining {
		p.held = p.isWaiting() && !p.requesting && !p.group.IsZero() && !p.groupReleased
		if !p.held {
			continue
		}
		g := d.getOrAddGroup(p)
		if len(g.members) == 0 {
			held = append(held, g)
		}
		g.members = append(g.members, p)
	}
	for _, g := range held {
		slices.SortFunc(g.members, func(a, b *podState) int { return strings.Compare(a.pod.UID, b.pod.UID) })
		wave := 0
		for _, p := range g.members {
			wave = max(wave, p.wave)
		}
		for _, p := range g.members {
			p.wave = wave
		}
	}
	return held
}

// groupReleaseTime returns when the pods of a group are removed like all others. It is conditionLead before the first forced
// deletion of one of them, because the condition is written then. It is zero without a deadline.
func (d *Drain) groupReleaseTime(g *groupState) (at time.Time) {
	if !d.terms.HasDeadline() {
		return time.Time{}
	}
	for _, p := range g.members {
		at = earlierNonZero(at, forcedDeletionTime(p.wantedGrace, d.terms, d.deadlineSince).Add(-conditionLead))
	}
	return at
}

// startModeReadIfDue reads the mode of a PodGroup in the background, unless it is known. It returns when it has to be called
// again, or zero.
func (d *Drain) startModeReadIfDue(ctx context.Context, g *groupState, now time.Time) (retryAt time.Time) {
	switch {
	case g.mode != podrules.DisruptionModeUnknown || g.readingMode || d.ended:
		return time.Time{}
	case now.Before(g.nextModeRead):
		return g.nextModeRead
	}
	g.readingMode = true
	d.background.Go(func() {
		mode, err := d.readMode(ctx, g.groupKey)
		d.inbox.putAndWake(func(now time.Time) {
			g.readingMode, g.nextModeRead = false, now.Add(manualFixPause)
			if ctx.Err() == nil {
				d.recordMode(g, mode, err)
			}
		})
	})
	return time.Time{}
}

// readMode reads the mode of a PodGroup. The error says why the mode is unknown.
func (d *Drain) readMode(ctx context.Context, key groupKey) (podrules.DisruptionMode, error) {
	bounded, cancel := context.WithTimeout(ctx, minRequestTimeout)
	defer cancel()
	group, err := d.api.GetPodGroup(bounded, key.namespace, key.Name)
	if err != nil {
		return podrules.DisruptionModeUnknown, err
	}
	mode := podrules.ParseDisruptionMode(group.Spec.DisruptionMode)
	if mode == podrules.DisruptionModeUnknown {
		err = fmt.Errorf("its disruptionMode %s is not known", group.Spec.DisruptionMode)
	}
	return mode, err
}

// recordMode records the mode of a PodGroup. If its pods can be disrupted one by one, they leave the group.
func (d *Drain) recordMode(g *groupState, mode podrules.DisruptionMode, err error) {
	if err != nil {
		if !g.modeAnswered {
			d.options.Logger.Warn("cannot read the disruptionMode of a PodGroup: it counts as all",
				"namespace", g.namespace, "podGroup", g.Name, "err", err)
		}
		g.modeAnswered, g.modeProblem = true, err.Error()
		return
	}
	g.modeAnswered, g.mode, g.modeProblem = true, mode, ""
	if mode != podrules.DisruptionModeSingle {
		return
	}
	for _, p := range d.pods {
		if p.pod.Namespace == g.namespace && p.group == g.Group {
			p.group, p.wave, p.blocked = g.Group.ResolveMode(p.pod.Labels, mode), waveIndex(&p.pod, d.options.WaveBoundaries), BlockedPod{}
		}
	}
}

// tryReleaseGroup sends the dry runs for the group of a held pod, if the group's turn has come. It returns when to try
// again; zero means after the next event.
func (d *Drain) tryReleaseGroup(ctx context.Context, p *podState, now time.Time) (retryAt time.Time) {
	g := d.getOrAddGroup(p)
	if p != g.members[0] || g.checking { // one attempt for all pods
		return time.Time{}
	}
	if before := d.findEarlierWaitingPod(g, p.wave); before != nil {
		g.block(ObstacleQueued, fmt.Sprintf("the drain asks for the pods of %s last, and has not evicted pod %s yet", g, before.name()), now)
		return time.Time{}
	}
	tracker := d.trackerFor(d.groupMethod())
	switch {
	case !g.modeAnswered && g.mode == podrules.DisruptionModeUnknown:
		g.block(ObstacleQueued, "the disruptionMode of "+g.String()+" is being read", now)
		return time.Time{}
	case !d.terms.TimeoutAt.IsZero() && d.terms.TimeoutAt.Sub(now) < groupRequestTime:
		if p.blocked.Reason == ObstacleQueued || p.blocked.Reason == "" {
			g.block(ObstacleGroup, "too little time is left to ask for all pods of "+g.String(), now)
		}
		return time.Time{}
	case now.Before(g.earliestAt):
		return g.earliestAt
	}
	if short := d.findShortWatchedPDB(g); short != nil {
		g.blockByPDB(short, now)
		g.retryAt = time.Time{} // the dry runs follow as soon as the PDB allows the evictions
		return time.Time{}
	}
	switch {
	case now.Before(g.retryAt):
		return g.retryAt
	case tracker.inFlight > 0: // their answers wake the engine
		return time.Time{}
	}
	if open, at := tracker.busyBackoff.allowsRequest(now); !open {
		return at
	}
	d.startGroupCheck(ctx, g, now)
	return time.Time{}
}

// groupMethod returns the kind of request for the pods of a group.
func (d *Drain) groupMethod() RemovalMethod {
	if d.options.DisableEviction {
		return DeletedOnRequest
	}
	return Evicted
}

// findEarlierWaitingPod returns a waiting pod of this or an earlier wave that comes before the group. That is a pod without a
// group, or a pod of a released group that may have a PDB in common with this group. It returns nil if no pod comes before.
func (d *Drain) findEarlierWaitingPod(g *groupState, wave int) *podState {
	i := slices.IndexFunc(d.podsByName, func(p *podState) bool {
		return p.isWaiting() && p.wave <= wave && (p.group.IsZero() || p.groupReleased && p.pod.Namespace == g.namespace)
	})
	if i < 0 {
		return nil
	}
	return d.podsByName[i]
}

// block records one obstacle for all held pods of the group.
func (g *groupState) block(reason ObstacleKind, detail string, now time.Time) {
	for _, p := range g.members {
		p.setBlocked(reason, "", detail, now)
	}
}

// findShortWatchedPDB returns a PDB that does not allow the eviction of all pods of a group, by the last status that the
// drain has seen. It returns nil if there is none, or if the PDBs are unknown or no longer watched.
func (d *Drain) findShortWatchedPDB(g *groupState) *shortPDB {
	if ns := d.pdbs.namespaces[g.namespace]; ns != nil && ns.known && ns.watching {
		return d.findShortPDB(g.members, ns)
	}
	return nil
}

// shortPDB is a PDB that allows fewer evictions than a group needs.
type shortPDB struct {
	pdb  *kubeapi.PodDisruptionBudget
	pods []*podState // all pods of the group under the PDB
}

// findShortPDB returns a PDB of the namespace that does not allow the eviction of all of these pods, or nil. The dry runs
// decide about unready pods, and about pods with several PDBs.
func (d *Drain) findShortPDB(pods []*podState, ns *namespacePDBs) *shortPDB {
	if d.options.DisableEviction {
		return nil
	}
	needs := map[*kubeapi.PodDisruptionBudget][]*podState{}
	for _, p := range pods {
		if isExemptFromPDBs(&p.pod) {
			continue
		}
		for _, s := range ns.byName {
			counts := isReadyOrUnknown(&p.pod) || s.pdb.Status.DesiredHealthy <= 0 && s.pdb.Spec.UnhealthyPodEvictionPolicy != "AlwaysAllow"
			if counts && s.matches(p.pod.Labels) {
				needs[s.pdb] = append(needs[s.pdb], p)
			}
		}
	}
	var short *shortPDB
	for pdb, pods := range needs {
		if len(pods) > int(pdb.Status.DisruptionsAllowed) && (short == nil || pdb.Name < short.pdb.Name) {
			short = &shortPDB{pdb, pods}
		}
	}
	return short
}

// startGroupCheck reads the PDBs and sends the dry runs for all pods of a group. If all are allowed, the group is released.
func (d *Drain) startGroupCheck(ctx context.Context, g *groupState, now time.Time) {
	method, pods := d.groupMethod(), slices.Clone(g.members)
	if slices.Contains(pods, g.lastDenied) {
		pods = []*podState{g.lastDenied}
	}
	inFlight := min(len(pods), d.options.maxOtherInFlight())
	tracker := d.trackerFor(method)
	tracker.inFlight += inFlight
	tracker.lastSentAt, g.checking = now, true
	requests := make([]kubeapi.PodRemoval, len(pods))
	timeout := maxRequestTimeout
	for i, p := range pods {
		requests[i], _ = d.newRemoval(p, now)
		requests[i].DryRun = true
		timeout = min(timeout, d.requestTimeout(p, method, now))
	}
	d.background.Go(func() {
		bounded, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		pdbs, pdbErr := d.listPDBsOfGroup(bounded, g.namespace, len(pods))
		errs := d.sendDryRuns(bounded, method, requests, inFlight) // the engine may change its options
		d.inbox.putAndWake(func(now time.Time) {
			g.checking = false
			tracker.inFlight -= inFlight
			if !d.ended && ctx.Err() == nil {
				d.recordGroupCheck(ctx, g, pods, errs, pdbs, pdbErr, now)
			}
		})
	})
}

// listPDBsOfGroup returns the current PDBs of a namespace. A group of one pod does not need them, because its dry run says
// all.
func (d *Drain) listPDBsOfGroup(ctx context.Context, namespace string, pods int) (*namespacePDBs, error) {
	ns := &namespacePDBs{byName: map[string]selectorPDB{}}
	if d.options.DisableEviction || pods < 2 {
		return ns, nil
	}
	list, err := listOnce(ctx, func(ctx context.Context, h kubeapi.Handler[kubeapi.PodDisruptionBudget]) error {
		return d.api.WatchPodDisruptionBudgets(ctx, namespace, h)
	})
	ns.replaceAllUnlessError(list, err)
	return ns, err
}

// sendDryRuns sends the requests, at most maxInFlight at once, and returns their errors in the same order.
func (d *Drain) sendDryRuns(ctx context.Context, method RemovalMethod, requests []kubeapi.PodRemoval, maxInFlight int) []error {
	send := d.api.EvictPod
	if method != Evicted {
		send = d.api.DeletePod
	}
	errs := make([]error, len(requests))
	slots := make(chan struct{}, maxInFlight)
	var all sync.WaitGroup
	for i := range requests {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			errs[i] = send(ctx, requests[i])
		})
	}
	all.Wait()
	return errs
}

// recordGroupCheck releases the group if all of its pods may be removed. Otherwise it records what blocks them.
func (d *Drain) recordGroupCheck(ctx context.Context, g *groupState, checked []*podState, errs []error, pdbs *namespacePDBs, pdbErr error, now time.Time) {
	var blocked []*podState
	for i, p := range checked {
		if err := errs[i]; err != nil && p.isWaiting() {
			d.recordDryRunError(p, err, now)
			p.recordRefusal(p.blocked.Reason, p.blocked.PDB, p.blocked.Detail, now)
			blocked = append(blocked, p)
		}
	}
	g.lastDenied = nil
	if len(blocked) > 0 {
		g.lastDenied = blocked[0]
	}
	d.collectGroups()
	unchecked := func(p *podState) bool { return !slices.Contains(checked, p) }
	switch short := d.findShortPDB(g.members, pdbs); {
	case len(g.members) == 0 || len(blocked) == 0 && slices.ContainsFunc(g.members, unchecked): // the next step decides
		return
	case len(blocked) > 0:
	case pdbErr != nil:
		g.block(ObstacleGroup, fmt.Sprintf("the drain asks for all pods of %s or for none, and their disruption budgets cannot be read: %v", g, pdbErr), now)
		g.delay(now)
		return
	case short != nil:
		g.blockByPDB(short, now)
		g.delay(now)
		d.startPDBWatch(ctx, g.namespace, now)
		return
	default:
		d.releaseGroup(g)
		return
	}
	g.blockOthers(blocked, now)
	g.delay(now)
	if slices.ContainsFunc(blocked, func(p *podState) bool { return p.blocked.Reason == ObstaclePDB }) {
		d.startPDBWatch(ctx, g.namespace, now)
	}
}

// blockByPDB records that a PDB blocks the group.
func (g *groupState) blockByPDB(short *shortPDB, now time.Time) {
	detail := explainPDB(short.pdb)
	if n := len(short.pods); n > 1 {
		detail += fmt.Sprintf("; the %d pods of %s need %d", n, g, n)
	}
	for _, p := range short.pods {
		p.setBlocked(ObstaclePDB, short.pdb.Namespace+"/"+short.pdb.Name, detail, now)
	}
	g.blockOthers(short.pods, now)
}

// blockOthers records for the pods without an obstacle of their own that they wait for the blocked ones.
func (g *groupState) blockOthers(blocked []*podState, now time.Time) {
	first := slices.MinFunc(blocked, func(a, b *podState) int { return strings.Compare(a.name(), b.name()) })
	detail := fmt.Sprintf("the drain asks for all pods of %s or for none, and pod %s cannot be evicted: %s", g, first.name(), first.blocked.Detail)
	for _, p := range g.members {
		if !slices.Contains(blocked, p) {
			p.setBlocked(ObstacleGroup, "", detail, now)
		}
	}
}

// delay starts the pause before the next dry runs.
func (g *groupState) delay(now time.Time) {
	g.pause = min(max(2*g.pause, minGroupPause), maxGroupPause)
	g.earliestAt, g.retryAt = now.Add(minGroupPause), now.Add(g.pause)
}

// releaseGroup lets all held pods of a group go. Backoffs of earlier denials end, because the dry runs have succeeded since.
func (d *Drain) releaseGroup(g *groupState) {
	d.options.Logger.Info("all pods of a group can be evicted: the drain asks for them at once",
		"namespace", g.namespace, "group", g.Group.String(), "pods", len(g.members))
	for _, p := range g.members {
		p.groupReleased, p.held, p.blocked, p.retryAt = true, false, BlockedPod{}, time.Time{}
		if p.backoff != nil && p.backoff.evictionsOnly {
			p.backoff.reset()
		}
	}
	g.pause, g.earliestAt, g.retryAt = 0, time.Time{}, time.Time{}
}

// holdReleasedGroup holds a released pod again that has to wait for an earlier wave, so that new dry runs precede its eviction:
// the pods of that wave may take what a PDB allows. If another pod of its group is already evicted, it follows without.
func (d *Drain) holdReleasedGroup(p *podState) {
	if p.groupReleased && !slices.ContainsFunc(d.remaining, func(o *podState) bool {
		return o.pod.Namespace == p.pod.Namespace && o.group == p.group && (o.requesting || o.removal != NotRemoved)
	}) {
		p.groupReleased = false
	}
}

// readGroupsOfWaitingPods marks the pods of groups for a prediction. It reads the modes of PodGroups, and returns one text
// for each that it could not read.
func (d *Drain) readGroupsOfWaitingPods(ctx context.Context, now time.Time) (problems []string) {
	for _, g := range d.collectGroups() {
		if g.mode != podrules.DisruptionModeUnknown {
			continue
		}
		mode, err := d.readMode(ctx, g.groupKey)
		if d.recordMode(g, mode, err); err != nil && !errors.Is(err, context.Canceled) {
			problems = append(problems, fmt.Sprintf("namespace %s: %s", g.namespace, g))
		}
	}
	d.collectGroups() // a PodGroup with the mode single does not count
	return problems
}

// markBlockedByGroups records in a prediction which pods wait because another pod of their group is blocked.
func (d *Drain) markBlockedByGroups(now time.Time) {
	for _, g := range d.collectGroups() {
		var blocked []*podState
		for _, p := range g.members {
			if p.blocked.Reason != "" {
				blocked = append(blocked, p)
			}
		}
		if len(blocked) > 0 {
			g.blockOthers(blocked, now)
		}
	}
}
