package cloudpool

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/observe"
)

// Kind is what an update does.
type Kind string

// The kinds of updates.
const (
	SetSize   Kind = "setDesiredSize"
	Terminate Kind = "terminateMachine"
	// Dispose is a termination that was asked for by making a machine disposable.
	Dispose Kind = "disposeMachine"
)

// Update is a change of a pool that takes machines away. It is all that has to be remembered of one.
type Update struct {
	ID   string `json:"id"`
	Kind Kind   `json:"kind"`
	Pool string `json:"pool"`
	// DesiredSize is what SetSize asks for.
	DesiredSize int `json:"desiredSize,omitempty"`
	// MachineID and Decrement are what the others ask for.
	MachineID   string `json:"machineId,omitempty"`
	Decrement   bool   `json:"decrementDesiredSize,omitempty"`
	RequestedBy string `json:"requestedBy,omitempty"`
	// Unblessed says that the machine was made evictable for it, which it is not to be if it stays.
	Unblessed bool      `json:"unblessed,omitempty"`
	Began     time.Time `json:"began"`
	// SizeBefore is the desired size when it began, and Observed the observation that the machines were known by.
	SizeBefore int       `json:"sizeBefore"`
	Observed   time.Time `json:"observed,omitzero"`
	// RestoreTo is the desired size that is to be had again, since the machine is replaced, or stays: one more than there was when
	// this was written down, so that it is raised once, whoever else changes it and whenever the process ends.
	RestoreTo int `json:"restoreTo,omitempty"`
	// Restored says that it is, or that it was not to be raised.
	Restored bool `json:"restored,omitempty"`
	// Ahead are the retirements under way whose machines are to be replaced, and that the desired size was raised for, or is just
	// being, before their clouds had taken them, by this update or by those before it that were given up: no other one raises it for
	// them again.
	Ahead []string `json:"ahead,omitempty"`
	// Decision is the one that it began with.
	Decision *Decision `json:"decision,omitempty"`
	Turns    []Turn    `json:"turns,omitempty"`
	// Message says what is being done or waited for.
	Message string `json:"message,omitempty"`
	// Told is what the clients were told who waited for it, where it goes on without them.
	Told *Outcome `json:"told,omitempty"`
	// Outcome is how it ended; nil while it goes on.
	Outcome *Outcome `json:"outcome,omitempty"`
}

// Turn is one machine's way out.
type Turn struct {
	Machine    string `json:"machine"`
	Node       string `json:"node,omitempty"`
	NodeUID    string `json:"nodeUID,omitempty"`
	ProviderID string `json:"providerID,omitempty"`
	// Retirement is the NodeRetirement's name; empty for a machine without a node, which its cloud is asked to take away.
	Retirement string `json:"retirement,omitempty"`
	// Adopted says that the NodeRetirement is not of this update.
	Adopted bool `json:"adopted,omitempty"`
	// Operation is the termination of a machine without a node; nil until its cloud has taken it.
	Operation *cloud.Operation `json:"operation,omitempty"`
	// Lowered says that its cloud was asked to take it away since the update began, which lowers the desired size.
	Lowered bool           `json:"lowered,omitempty"`
	State   TurnState      `json:"state"`
	Phase   v1alpha1.Phase `json:"phase,omitempty"`
	Why     string         `json:"why,omitempty"`
	Since   time.Time      `json:"since"`
	// Seen says that the NodeRetirement was there.
	Seen    bool     `json:"seen,omitempty"`
	trouble *trouble // what its retirement is held up by
	stage   *trouble // how far its retirement is
}

// trouble is what is so, and since when.
type trouble struct {
	code  string
	since time.Time
}

// TurnState is how far a machine's way out is.
type TurnState string

// The states of a turn.
const (
	Leaving TurnState = "Leaving"
	Gone    TurnState = "Gone"
	Refused TurnState = "Refused" // it stays
)

// Result is how an update ended.
type Result string

// The results.
const (
	Done        Result = "Done"
	Partly      Result = "Partly"      // some went, not as many as were asked for
	NotFound    Result = "NotFound"    // there is no such machine
	NotPossible Result = "NotPossible" // none could go
	BackendAway Result = "BackendAway" // the pool's server or its cloud does not do what it is asked
	ClusterAway Result = "ClusterAway" // the API server does not answer
	Failed      Result = "Failed"
)

// Outcome is how an update ended, and why.
type Outcome struct {
	Result  Result    `json:"result"`
	Detail  string    `json:"detail,omitempty"`
	Removed int       `json:"removed"`
	At      time.Time `json:"at"`
}

// same reports whether two updates ask for the same thing.
func (u *Update) same(other *Update) bool {
	return u.Kind == other.Kind && u.Pool == other.Pool && u.DesiredSize == other.DesiredSize && u.MachineID == other.MachineID &&
		u.Decrement == other.Decrement
}

// String is what an update asks for.
func (u *Update) String() string {
	if u.Kind == SetSize {
		return fmt.Sprintf("setting the desired size to %d (update %s)", u.DesiredSize, u.ID)
	}
	return fmt.Sprintf("terminating machine %s (update %s)", u.MachineID, u.ID)
}

func (u *Update) removed() int {
	n := 0
	for _, t := range u.Turns {
		if t.State == Gone {
			n++
		}
	}
	return n
}

func (u *Update) turn(machine string) *Turn {
	for i := range u.Turns {
		if u.Turns[i].Machine == machine {
			return &u.Turns[i]
		}
	}
	return nil
}

func (u *Update) clone() *Update {
	c := *u
	c.Turns, c.Ahead = slices.Clone(u.Turns), slices.Clone(u.Ahead)
	for _, o := range []**Outcome{&c.Outcome, &c.Told} {
		if *o != nil {
			is := **o
			*o = &is
		}
	}
	return &c
}

// answered is the update as a client is told of it: how it ended, or with what its clients were left. False is one that is to
// be waited for.
func (u *Update) answered() (*Update, bool) {
	c := u.clone()
	c.Outcome = cmp.Or(c.Outcome, c.Told)
	return c, c.Outcome != nil
}

// owes reports an update that has done something which nobody else undoes: its machine leaves, or has left, and is to be
// replaced, and the server wants one machine fewer then; so it does where the machine stays after all; or the machine stays, and
// was made evictable.
func (u *Update) owes() bool {
	t := u.turn(u.MachineID)
	switch {
	case u.Kind == SetSize:
		return u.RestoreTo > 0 && !u.Restored
	case t == nil || t.State == Refused:
		return u.Unblessed || t != nil && t.Lowered && !u.Restored
	}
	return !u.Decrement && !u.Restored && (t.State == Gone || t.Retirement != "" || t.Lowered)
}

// debt is what an update that owes something goes on for.
func (u *Update) debt() string {
	t := u.turn(u.MachineID)
	size := fmt.Sprintf("the desired size is %d again", cmp.Or(u.RestoreTo, u.SizeBefore))
	switch stays := u.Kind == SetSize || t == nil || t.State == Refused; {
	case stays && u.Unblessed:
		return "machine " + u.MachineID + " is not evictable again"
	case stays:
		return size
	}
	return "the machine is gone and " + size
}

// record is what is written down of a pool: the update that is under way, and the latest that are over.
type record struct {
	Current *Update  `json:"current,omitempty"`
	Past    []Update `json:"past,omitempty"`
	// Raised is what the desired size was raised for so that machines count again.
	Raised raised `json:"raised,omitempty"`
}

// keepPast is how many updates are remembered that are over, and mostPassed how many machines that could not go are.
const (
	keepPast   = 20
	mostPassed = 50
	// keepRefused is how many machines that were to go and have not are remembered of an update that is over.
	keepRefused = 5
)

// find gives an update by its ID; nil when it is not remembered.
func (r *record) find(id string) *Update {
	if r.Current != nil && r.Current.ID == id {
		return r.Current
	}
	for i := range r.Past {
		if r.Past[i].ID == id {
			return &r.Past[i]
		}
	}
	return nil
}

// begin puts an update in place of the one that is over.
func (r *record) begin(u *Update) {
	if r.Current != nil {
		r.Past = append([]Update{r.Current.past()}, r.Past...)
		r.Past = r.Past[:min(len(r.Past), keepPast)]
	}
	r.Current = u
}

// past is what is kept of an update that is over: how it ended, and some of the machines that were to go and have not.
func (u *Update) past() Update {
	p := *u
	p.Decision, p.Turns, p.Told, p.Ahead = nil, nil, nil, nil
	for i := range u.Turns {
		if t := u.Turns[i].short(); t.State == Refused && len(p.Turns) < keepRefused {
			p.Turns = append(p.Turns, t)
		}
	}
	return p
}

// short is what has to be remembered of a turn: of one that is over that it was, and why.
func (t Turn) short() Turn {
	if t.State == Leaving {
		return t
	}
	return Turn{Machine: t.Machine, Node: t.Node, Lowered: t.Lowered, State: t.State, Why: observe.Clip(t.Why, maxWhy), Since: t.Since}
}

// The API server takes objects of no more than 1 MiB. A record is kept within less, in bytes, and an update of which it may
// come to be larger is not begun.
const (
	maxRecord = 900 << 10
	// maxWhy is what is kept of why a machine stays, and turnSize the most that a turn takes beside the names in it.
	maxWhy   = 400
	turnSize = 1200
)

// fits reports an update that cannot be written down to its end: with the decision that it begins with, and a turn for each
// machine that is to go, with names and IDs as long as the victims'.
func (u *Update) fits() error {
	if u.Decision == nil || len(u.Decision.Victims) == 0 {
		return nil
	}
	all, err := json.Marshal(u)
	if err != nil {
		return err
	}
	victims, err := json.Marshal(u.Decision.Victims)
	if err != nil {
		return err
	}
	each := turnSize + 4*len(victims)/len(u.Decision.Victims)
	if most := (maxRecord - len(all) + len(victims)) / each; u.Decision.Excess() > most {
		return failure(NotPossible, "taking %d machines away at once is more than can be written down of it: want a desiredSize of at least %d, and then a smaller one",
			u.Decision.Excess(), u.Decision.Active-most)
	}
	return nil
}

// encode gives a record as it is written down: without what is dispensable, if it were too large with it.
func (r *record) encode() ([]byte, error) {
	kept := *r
	if kept.Current != nil {
		kept.Current = kept.Current.clone()
		for i := range kept.Current.Turns {
			kept.Current.Turns[i] = kept.Current.Turns[i].short()
		}
	}
	for {
		raw, err := json.Marshal(&kept)
		switch {
		case err != nil || len(raw) <= maxRecord:
			return raw, err
		case len(kept.Past) > 0:
			kept.Past = kept.Past[:len(kept.Past)/2]
		case kept.Current != nil && kept.Current.Decision != nil:
			kept.Current.Decision = nil
		default:
			return raw, nil
		}
	}
}

// store keeps a pool's record in a ConfigMap. Every write carries the version that was read, so that of two processes
// that both take themselves for the one that works on a pool one fails.
type store struct {
	client    typed.ConfigMapInterface
	namespace string
	name      string

	object *corev1.ConfigMap // as last read or written; nil when there was none
}

const (
	recordKey   = "updates"
	recordLabel = "slipway.dev/cloudpool"
)

// recordName is a name for an object of a pool's.
func recordName(pool string) string {
	return "slipway-cloudpool-" + strings.ToLower(strings.NewReplacer("_", "-", ".", "-").Replace(pool))
}

// load reads the record. One that cannot be read is an error: what it says of an update that goes on must not be lost.
func (s *store) load(ctx context.Context) (*record, error) {
	object, err := s.client.Get(ctx, s.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		s.object = nil
		return &record{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ConfigMap %s/%s: %w", s.namespace, s.name, err)
	}
	var r record
	if text := object.Data[recordKey]; text != "" {
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			return nil, fmt.Errorf("ConfigMap %s/%s: %s cannot be read; delete the key if no update is under way: %w", s.namespace, s.name,
				recordKey, err)
		}
	}
	s.object = object
	return &r, nil
}

// save writes the record, if nobody else has since it was read.
func (s *store) save(ctx context.Context, r *record) error {
	raw, err := r.encode()
	if err != nil {
		return err
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: s.namespace, Name: s.name, Labels: map[string]string{recordLabel: "record"},
	}}
	write := s.client.Create
	var written *corev1.ConfigMap
	if s.object != nil {
		object = s.object.DeepCopy()
		object.Data = map[string]string{recordKey: string(raw)}
		written, err = s.client.Update(ctx, object, metav1.UpdateOptions{})
	} else {
		object.Data = map[string]string{recordKey: string(raw)}
		written, err = write(ctx, object, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("ConfigMap %s/%s: %w", s.namespace, s.name, err)
	}
	s.object = written
	return nil
}
