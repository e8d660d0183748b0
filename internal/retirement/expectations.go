package retirement

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// knowledge is what this process knows of NodeRetirements and Nodes from what it did itself. An API server that lags
// behind its etcd, as one that was cut off from it may, can answer a read with what was true some time ago; what it was
// made to write it cannot take back. So answers that are older than our own last writes are told from fresh ones, and
// what we did counts before it can be read (I5, I7).
//
// Resource versions of one kind can be compared as numbers (https://kep.k8s.io/5504). One that is no number is not
// judged.
type knowledge struct {
	mu sync.Mutex
	// latest is the newest version of each record that was met, by name, and written the newest that we wrote.
	latest  map[string]uint64
	written uint64
	// late are the records that were last read in an older version than one met before, by name.
	late map[string]lateness
	// admitted are the nodes whose retirements we admitted and that are not over as far as we know, by the record's name.
	admitted map[string]admission
	// departed are Nodes that we deleted, and when: a cache may have them for some time.
	departed map[types.UID]time.Time
	// overrides are those that were told of, by the record's name.
	overrides map[string]v1alpha1.OverrideProtection
	// looked is when the cloud last had the machine of a record that waits and whose Node is not Ready, by the record's name.
	looked map[string]time.Time
	// polls are when the deletion of a record's machine is next asked about, by the record's name.
	polls map[string]time.Time
}

// lookAgain is the pause between two looks at the machine of a retirement that waits.
const lookAgain = time.Minute

// departedFor is for how long a Node that we deleted is remembered. No cache that is of use is further behind.
const departedFor = 10 * time.Minute

// lateness is how often in a row a record was read too old, and whether that was said.
type lateness struct {
	reads int
	said  bool
}

type admission struct {
	record      types.UID
	node, group string
}

func newKnowledge() *knowledge {
	return &knowledge{
		latest: map[string]uint64{}, admitted: map[string]admission{}, departed: map[types.UID]time.Time{},
		overrides: map[string]v1alpha1.OverrideProtection{}, late: map[string]lateness{},
		looked: map[string]time.Time{}, polls: map[string]time.Time{},
	}
}

// read notes a record that was read, and reports false when it is older than one met before.
func (k *knowledge) read(rt *v1alpha1.NodeRetirement) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	v := kubeapi.Version(rt.ResourceVersion)
	if v < k.latest[rt.Name] {
		return v == 0
	}
	k.latest[rt.Name] = v
	delete(k.late, rt.Name)
	k.release(rt)
	return true
}

// behind counts a read of a record that was too old, and gives how many there were in a row before it.
func (k *knowledge) behind(name string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.late[name]
	k.late[name] = lateness{l.reads + 1, l.said}
	return l.reads
}

// warn reports whether it was not said yet that a record is read too old, and notes that it is now.
func (k *knowledge) warn(name string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.late[name]
	k.late[name] = lateness{l.reads, true}
	return !l.said
}

// release drops an admission that is over, or is another record's of the same name.
func (k *knowledge) release(rt *v1alpha1.NodeRetirement) {
	if held, ok := k.admitted[rt.Name]; ok && (held.record != rt.UID || rt.Status.Phase.Finished()) {
		delete(k.admitted, rt.Name)
	}
}

// wrote notes a record that was written, as it came back.
func (k *knowledge) wrote(rt *v1alpha1.NodeRetirement) {
	k.mu.Lock()
	defer k.mu.Unlock()
	v := kubeapi.Version(rt.ResourceVersion)
	k.latest[rt.Name] = max(k.latest[rt.Name], v)
	k.written = max(k.written, v)
	k.release(rt)
}

// forget drops what is known of a record that is gone.
func (k *knowledge) forget(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.latest, name)
	delete(k.admitted, name)
	delete(k.overrides, name)
	delete(k.late, name)
	delete(k.looked, name)
	delete(k.polls, name)
}

// look notes that the cloud has the machine of a record.
func (k *knowledge) look(rt *v1alpha1.NodeRetirement) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.looked[rt.Name] = time.Now()
}

// lookDue reports whether the machine of a record was not looked at lately.
func (k *knowledge) lookDue(rt *v1alpha1.NodeRetirement) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return time.Since(k.looked[rt.Name]) >= lookAgain
}

// pollAfter notes that the deletion of a record's machine is next asked about after a pause.
func (k *knowledge) pollAfter(rt *v1alpha1.NodeRetirement, pause time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.polls[rt.Name] = time.Now().Add(pause)
}

// untilPoll is the time until the deletion of a record's machine is asked about; after a restart that is due.
func (k *knowledge) untilPoll(rt *v1alpha1.NodeRetirement) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return time.Until(k.polls[rt.Name])
}

// override notes that a record's override is told of, and reports whether it is new.
func (k *knowledge) override(rt *v1alpha1.NodeRetirement) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	is := *rt.Spec.OverrideProtection
	was, told := k.overrides[rt.Name]
	k.overrides[rt.Name] = is
	return !told || was.By != is.By || was.Why != is.Why || !was.Until.Equal(&is.Until)
}

// admit notes that a node's retirement is about to be admitted: should the answer get lost, it may have been. It reports
// whether that is new.
func (k *knowledge) admit(rt *v1alpha1.NodeRetirement) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	before, was := k.admitted[rt.Name]
	k.admitted[rt.Name] = admission{rt.UID, rt.Spec.NodeName, rt.Status.Captured.Group}
	return !was || before.record != rt.UID
}

// refuse takes an admission back that was never sent to the API server.
func (k *knowledge) refuse(rt *v1alpha1.NodeRetirement) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.admitted, rt.Name)
}

// depart notes that a Node was deleted.
func (k *knowledge) depart(node string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.departed, func(_ types.UID, at time.Time) bool { return time.Since(at) > departedFor })
	k.departed[types.UID(node)] = time.Now()
}

// leaving gives what this process has admitted, but for the one that asks.
func (k *knowledge) leaving(asks *v1alpha1.NodeRetirement) []admission {
	k.mu.Lock()
	defer k.mu.Unlock()
	var others []admission
	for _, held := range k.admitted {
		if held.record != asks.UID {
			others = append(others, held)
		}
	}
	return others
}

// gone gives the Nodes that are known to be deleted: those that the records tell of, and those that we deleted.
func (k *knowledge) gone(records []v1alpha1.NodeRetirement) map[types.UID]bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	gone := map[types.UID]bool{}
	for uid := range k.departed {
		gone[uid] = true
	}
	for i := range records {
		status := &records[i].Status
		if status.Captured != nil && (pastReturn(status.Phase) || status.Phase == v1alpha1.Failed) {
			gone[status.Captured.NodeUID] = true
		}
	}
	return gone
}

// floor is the version that an answer about NodeRetirements has to have at least.
func (k *knowledge) floor(rt *v1alpha1.NodeRetirement) uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return max(k.written, kubeapi.Version(rt.ResourceVersion))
}
