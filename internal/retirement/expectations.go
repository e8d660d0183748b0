package retirement

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// expectations holds what this process knows from its own requests to the API server.
//
// An API server that lags behind etcd can answer with an older state. So answers that are older than a write of this
// process are rejected. Writes of this process also count before they can be read (invariants I5 and I7). Resource
// versions of one kind are compared as numbers (https://kep.k8s.io/5504). If a resource version is not a number, no
// comparison is made.
type expectations struct {
	mu sync.Mutex
	// latestVersions has the newest version seen of each NodeRetirement, by name. lastWritten is the newest version
	// that we wrote.
	latestVersions map[string]uint64
	lastWritten    uint64
	// staleReads has the NodeRetirements that were last read in an older version than before, by name.
	staleReads map[string]staleRead
	// admitted has our own admissions that are not known to be finished, by name of the retirement.
	admitted map[string]admission
	// deletedNodes has the Nodes that we deleted, and when. A cache may still have them.
	deletedNodes map[types.UID]time.Time
	// overrides has the announced overrides, by name of the retirement.
	overrides map[string]v1alpha1.OverrideProtection
	// instanceSeenAt is when the cloud last had the instance of a waiting retirement with an unready Node, by name.
	instanceSeenAt map[string]time.Time
	// nextPolls is when the deletion of an instance is polled next, by name of the retirement.
	nextPolls map[string]time.Time
}

// instanceCheckInterval is the pause between two reads of the instance of a retirement that waits for admission.
const instanceCheckInterval = time.Minute

// deletedNodeTTL is how long this process remembers that a Node was deleted. A working cache shows the deletion
// earlier.
const deletedNodeTTL = 10 * time.Minute

// staleRead counts successive stale reads of a record, and whether a warning was logged.
type staleRead struct {
	count  int
	warned bool
}

type admission struct {
	retirementUID types.UID
	node, group   string
}

func newExpectations() *expectations {
	return &expectations{
		latestVersions: map[string]uint64{}, admitted: map[string]admission{}, deletedNodes: map[types.UID]time.Time{},
		overrides: map[string]v1alpha1.OverrideProtection{}, staleReads: map[string]staleRead{},
		instanceSeenAt: map[string]time.Time{}, nextPolls: map[string]time.Time{},
	}
}

// recordReadUnlessStale records the version of a NodeRetirement that was read. It returns false, and records nothing,
// if an earlier read had a newer version.
func (k *expectations) recordReadUnlessStale(rt *v1alpha1.NodeRetirement) (fresh bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	v := kubeapi.ParseResourceVersion(rt.ResourceVersion)
	if v < k.latestVersions[rt.Name] {
		return v == 0
	}
	k.latestVersions[rt.Name] = v
	delete(k.staleReads, rt.Name)
	k.dropFinishedAdmission(rt)
	return true
}

// countStaleRead counts a stale read of a NodeRetirement, and returns how many stale reads in a row came before it.
func (k *expectations) countStaleRead(name string) (earlier int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.staleReads[name]
	k.staleReads[name] = staleRead{l.count + 1, l.warned}
	return l.count
}

// markStaleWarned reports whether a warning about stale reads must be logged now. It returns true only once, so the
// caller must log the warning.
func (k *expectations) markStaleWarned(name string) (first bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.staleReads[name]
	k.staleReads[name] = staleRead{l.count, true}
	return !l.warned
}

// dropFinishedAdmission forgets an admission if its retirement is finished, or if another NodeRetirement of the same
// name exists.
func (k *expectations) dropFinishedAdmission(rt *v1alpha1.NodeRetirement) {
	if a, ok := k.admitted[rt.Name]; ok && (a.retirementUID != rt.UID || rt.Status.Phase.IsFinal()) {
		delete(k.admitted, rt.Name)
	}
}

// recordWrite records a NodeRetirement as the API server returned it after a write.
func (k *expectations) recordWrite(rt *v1alpha1.NodeRetirement) {
	k.mu.Lock()
	defer k.mu.Unlock()
	v := kubeapi.ParseResourceVersion(rt.ResourceVersion)
	k.latestVersions[rt.Name] = max(k.latestVersions[rt.Name], v)
	k.lastWritten = max(k.lastWritten, v)
	k.dropFinishedAdmission(rt)
}

// forgetRetirement forgets everything about a deleted NodeRetirement.
func (k *expectations) forgetRetirement(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.latestVersions, name)
	delete(k.admitted, name)
	delete(k.overrides, name)
	delete(k.staleReads, name)
	delete(k.instanceSeenAt, name)
	delete(k.nextPolls, name)
}

func (k *expectations) recordInstanceSeen(rt *v1alpha1.NodeRetirement) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.instanceSeenAt[rt.Name] = time.Now()
}

// isInstanceCheckDue reports whether a read of the instance is due.
func (k *expectations) isInstanceCheckDue(rt *v1alpha1.NodeRetirement) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return time.Since(k.instanceSeenAt[rt.Name]) >= instanceCheckInterval
}

// schedulePoll sets the pause before the next poll of the instance's deletion.
func (k *expectations) schedulePoll(rt *v1alpha1.NodeRetirement, pause time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.nextPolls[rt.Name] = time.Now().Add(pause)
}

// timeUntilPoll returns the time until the next poll of the deletion. It is not positive if the poll is due, as after a
// restart.
func (k *expectations) timeUntilPoll(rt *v1alpha1.NodeRetirement) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return time.Until(k.nextPolls[rt.Name])
}

// recordOverride records that the Event about an override of protections was written. It reports whether this is the
// first time.
func (k *expectations) recordOverride(rt *v1alpha1.NodeRetirement) (isNew bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := *rt.Spec.OverrideProtection
	before, announced := k.overrides[rt.Name]
	k.overrides[rt.Name] = now
	return !announced || before.By != now.By || before.Why != now.Why || !before.Until.Equal(&now.Until)
}

// addAdmission records that the retirement is admitted, before the request that stores the admission. So the retirement
// counts as admitted even if the answer to that request is lost. It returns false if the admission was recorded before.
func (k *expectations) addAdmission(rt *v1alpha1.NodeRetirement) (isNew bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	previous, existed := k.admitted[rt.Name]
	k.admitted[rt.Name] = admission{rt.UID, rt.Spec.NodeName, rt.Status.Captured.Group}
	return !existed || previous.retirementUID != rt.UID
}

// removeAdmission drops an admission that was never sent to the API server.
func (k *expectations) removeAdmission(rt *v1alpha1.NodeRetirement) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.admitted, rt.Name)
}

func (k *expectations) recordNodeDeleted(uid string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.deletedNodes, func(_ types.UID, at time.Time) bool { return time.Since(at) > deletedNodeTTL })
	k.deletedNodes[types.UID(uid)] = time.Now()
}

// otherAdmissions returns the admissions of this process, except the admission of caller.
func (k *expectations) otherAdmissions(caller *v1alpha1.NodeRetirement) []admission {
	k.mu.Lock()
	defer k.mu.Unlock()
	var others []admission
	for _, a := range k.admitted {
		if a.retirementUID != caller.UID {
			others = append(others, a)
		}
	}
	return others
}

// deletedNodeUIDs returns the UIDs of the Nodes that are known to be deleted. Either a NodeRetirement has that in its
// status, or this process has requested the deletion.
func (k *expectations) deletedNodeUIDs(records []v1alpha1.NodeRetirement) map[types.UID]bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	gone := map[types.UID]bool{}
	for uid := range k.deletedNodes {
		gone[uid] = true
	}
	for i := range records {
		status := &records[i].Status
		if status.Captured != nil && (isNodeGonePhase(status.Phase) || status.Phase == v1alpha1.Failed) {
			gone[status.Captured.NodeUID] = true
		}
	}
	return gone
}

// minVersion returns the lowest acceptable resource version of a list of NodeRetirements. An older list lacks a write
// of this process.
func (k *expectations) minVersion(rt *v1alpha1.NodeRetirement) uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return max(k.lastWritten, kubeapi.ParseResourceVersion(rt.ResourceVersion))
}
