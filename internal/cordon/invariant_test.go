package cordon

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// world is one node, several owners of ours, and everybody else. It knows what everybody else wants on the node, and
// what each owner was told that it holds.
type world struct {
	server *apiServer
	keeper *Keeper

	cordoned   bool              // by somebody else, as far as that can be known
	taints     map[string]string // somebody else's
	labels     map[string]string
	conditions map[string]string

	holding map[string]Request         // by owner, once Hold has said that it is done
	spoilt  map[string]map[string]bool // what somebody else took off since then
}

const effect = "NoSchedule"

var (
	owners     = []string{"azure-A", "azure-B", "an owner / of any name"}
	taintKeys  = []string{"example.com/t1", "example.com/t2"}
	labelKeys  = []string{"example.com/l1", "example.com/l2"}
	conditions = []string{MaintenancePlanned, DrainInProgress}
)

func newWorld(t *rapid.T) *world {
	server := newAPIServer(t)
	keeper, err := New(server.client(), nodeName, nodeUID)
	must.NoError(t, err)
	return &world{
		server: server, keeper: keeper, taints: map[string]string{}, labels: map[string]string{},
		conditions: map[string]string{}, holding: map[string]Request{}, spoilt: map[string]map[string]bool{},
	}
}

func (w *world) spoil(what string) {
	for _, spoilt := range w.spoilt {
		spoilt[what] = true
	}
}

// foreign draws one thing that somebody else does. His values are told from ours by their names, as two that write the
// same value cannot be told apart.
func (w *world) foreign(t *rapid.T) func() {
	key := rapid.IntRange(0, 1).Draw(t, "which")
	value := rapid.SampledFrom([]string{"foreign1", "foreign2", ""}).Draw(t, "foreign value")
	set := func(is map[string]string, key string) {
		if value != "" {
			is[key] = value
			return
		}
		delete(is, key)
		w.spoil(key)
	}
	return rapid.SampledFrom([]func(){
		func() { w.foreignCordon(value != "") },
		func() { w.server.foreignTaint(taintKeys[key], effect, value); set(w.taints, taintKeys[key]) },
		func() { w.server.foreignLabel(labelKeys[key], value); set(w.labels, labelKeys[key]) },
		func() { w.server.foreignCondition(conditions[key], value); set(w.conditions, conditions[key]) },
	}).Draw(t, "foreign act")
}

// foreignCordon cordons or uncordons. Who cordons a node that is cordoned, or that we believe to hold cordoned, cannot
// be told from us.
func (w *world) foreignCordon(on bool) {
	node := w.server.read()
	if !on {
		w.cordoned = false
		w.spoil("cordon")
	} else if !node.Spec.Unschedulable && !ownsCordon(node) {
		w.cordoned = true
	}
	w.server.foreignCordon(on)
}

func ownsCordon(node *kubeapi.Node) bool {
	records, _ := List(node)
	return slices.ContainsFunc(records, func(r Record) bool { return r.Cordon == Own })
}

func drawRequest(t *rapid.T) Request {
	r := Request{
		Unschedulable: rapid.Bool().Draw(t, "unschedulable"),
		Phase:         rapid.SampledFrom([]Phase{"", Cordoned, Draining, Drained}).Draw(t, "phase"),
		Labels:        map[string]string{},
	}
	for _, key := range taintKeys {
		if value := rapid.SampledFrom([]string{"", "ours1", "ours2"}).Draw(t, key); value != "" {
			r.Taints = append(r.Taints, Taint{Key: key, Value: value, Effect: effect})
		}
	}
	for _, key := range labelKeys {
		if value := rapid.SampledFrom([]string{"", "ours1", "ours2"}).Draw(t, key); value != "" {
			r.Labels[key] = value
		}
	}
	for _, kind := range conditions {
		if reason := rapid.SampledFrom([]string{"", "Ours1", "Ours2"}).Draw(t, kind); reason != "" {
			message := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "message")
			r.Conditions = append(r.Conditions, Condition{Type: kind, Reason: reason, Message: message})
		}
	}
	return r
}

// disturb draws what befalls the next call: a crash at one of its requests, or somebody else ahead of one of them.
func (w *world) disturb(t *rapid.T) {
	w.server.crash, w.server.before = 0, nil
	switch rapid.IntRange(0, 5).Draw(t, "disturbance") {
	case 0:
		w.server.crash = rapid.IntRange(1, 4).Draw(t, "at request") * rapid.SampledFrom([]int{-1, 1}).Draw(t, "ahead or after")
	case 1:
		countdown, act := rapid.IntRange(1, 4).Draw(t, "ahead of request"), w.foreign(t)
		w.server.before = func(string) {
			if countdown--; countdown == 0 {
				act()
			}
		}
	}
}

func (w *world) hold(t *rapid.T) {
	owner, r := rapid.SampledFrom(owners).Draw(t, "owner"), drawRequest(t)
	for _, other := range owners {
		if other != owner && rapid.IntRange(0, 3).Draw(t, "replaces "+other) == 0 {
			r.Replaces = append(r.Replaces, other)
			delete(w.holding, other)
		}
	}
	w.disturb(t)
	delete(w.holding, owner) // until it is said to be done
	w.spoilt[owner] = map[string]bool{}
	if w.done(t, func() error { _, err := w.keeper.Hold(t.Context(), owner, r); return err }) {
		w.holding[owner] = r
		w.spoilt[owner] = map[string]bool{}
		if r.Unschedulable { // then it is so for all who hold it so
			for _, spoilt := range w.spoilt {
				delete(spoilt, "cordon")
			}
		}
		w.quiet(t, func() (Outcome, error) { return w.keeper.Hold(t.Context(), owner, r) })
	}
}

func (w *world) release(t *rapid.T) {
	owner := rapid.SampledFrom(owners).Draw(t, "owner")
	w.disturb(t)
	delete(w.holding, owner)
	if w.done(t, func() error { _, err := w.keeper.Release(t.Context(), owner); return err }) {
		w.quiet(t, func() (Outcome, error) { return w.keeper.Release(t.Context(), owner) })
	}
}

// done makes a call, disturbed as drawn, and reports whether it came to its end.
func (w *world) done(t *rapid.T, call func() error) bool {
	err := call()
	w.server.crash, w.server.before = 0, nil
	if err != nil && !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	return err == nil
}

// quiet makes a call once more, which must find nothing to do.
func (w *world) quiet(t *rapid.T, call func() (Outcome, error)) {
	w.server.writes()
	o, err := call()
	must.NoError(t, err)
	if n := w.server.writes(); n != 0 || o.Changed {
		t.Fatalf("the same call again made %d changes", n)
	}
}

// check holds the invariants of I3 against the node as it is, whatever has crashed.
func (w *world) check(t *rapid.T) {
	node := w.server.read()
	w.checkForeign(t, node)
	w.checkClaims(t, node)
	for owner, r := range w.holding {
		w.checkHeld(t, node, owner, r)
	}
}

// checkForeign: what somebody else put on the node is there, as he put it.
func (w *world) checkForeign(t *rapid.T, node *kubeapi.Node) {
	if w.cordoned && !node.Spec.Unschedulable {
		t.Error("somebody else's cordon is gone")
	}
	taints, labels, conditions := on(node)
	for what, pair := range map[string][2]map[string]string{
		"taint": {w.taints, taints}, "label": {w.labels, labels}, "condition": {w.conditions, conditions},
	} {
		for key, want := range pair[0] {
			if got := pair[1][key]; got != want {
				t.Errorf("somebody else's %s %s is %q, want %q", what, key, got, want)
			}
		}
	}
}

// checkClaims: what is ours on the node is in a record, so that somebody will take it off.
func (w *world) checkClaims(t *rapid.T, node *kubeapi.Node) {
	records, problems := List(node)
	if len(problems) != 0 {
		t.Errorf("our own records cannot be read: %v", problems)
	}
	claimed := map[string]bool{}
	for _, r := range records {
		for _, taint := range r.Taints {
			claimed["taint "+taint.Key+taint.Value] = true
		}
		for key, value := range r.Labels {
			claimed["label "+key+value] = true
		}
		for kind, claim := range r.Conditions {
			claimed["condition "+kind+claim.Reason] = true
		}
		claimed["label "+LabelKey(r.Owner)+string(r.Phase)] = true
	}
	taints, labels, conditions := on(node)
	for what, is := range map[string]map[string]string{"taint": taints, "label": labels, "condition": conditions} {
		for key, value := range is {
			ours := strings.HasPrefix(strings.ToLower(value), "ours") || strings.HasPrefix(key, labelPrefix)
			if ours && !claimed[what+" "+key+value] {
				t.Errorf("%s %s=%s is ours and in no record", what, key, value)
			}
		}
	}
	if node.Spec.Unschedulable && !w.cordoned && !ownsCordon(node) {
		t.Error("the node is cordoned, and nobody will uncordon it")
	}
}

// checkHeld: what an owner was told that it holds is there, unless somebody else took it off since.
func (w *world) checkHeld(t *rapid.T, node *kubeapi.Node, owner string, r Request) {
	taints, labels, conditions := on(node)
	missing := func(key string, there bool) {
		if !there && !w.spoilt[owner][key] {
			t.Errorf("owner %s: %s is missing", owner, key)
		}
	}
	missing("cordon", !r.Unschedulable || node.Spec.Unschedulable)
	for _, taint := range r.Taints {
		missing(taint.Key, taints[taint.Key] != "")
	}
	for key := range r.Labels {
		missing(key, labels[key] != "")
	}
	for _, c := range r.Conditions {
		missing(c.Type, conditions[c.Type] != "")
	}
	if got := labels[LabelKey(owner)]; got != string(r.Phase) {
		t.Errorf("owner %s: phase label is %q, want %q", owner, got, r.Phase)
	}
}

// on lists what is on the node: taints by key, labels, and reasons of conditions by type.
func on(node *kubeapi.Node) (taints, labels, conditions map[string]string) {
	taints, conditions = map[string]string{}, map[string]string{}
	for _, t := range node.Spec.Taints {
		taints[t.Key] = t.Value
	}
	for _, c := range node.Status.Conditions {
		conditions[c.Type] = c.Reason
	}
	return taints, node.Labels, conditions
}

func TestI3HoldsForAnyInterleavingOfOwnersAndCrashes(t *testing.T) {
	rapid.Check(t, interleave)
}

func interleave(t *rapid.T) {
	w := newWorld(t)
	t.Repeat(map[string]func(*rapid.T){
		"hold":       w.hold,
		"hold more":  w.hold, // twice as often as the rest
		"release":    w.release,
		"interfered": func(t *rapid.T) { w.foreign(t)() },
		"":           w.check,
	})
	for _, owner := range owners {
		if _, err := w.keeper.Release(t.Context(), owner); err != nil {
			t.Fatal(err)
		}
		delete(w.holding, owner)
		w.check(t)
	}
	w.checkLeft(t)
}

// checkLeft: when the last owner has let go, the node is as everybody else wants it.
func (w *world) checkLeft(t *rapid.T) {
	node := w.server.read()
	if len(node.Annotations) != 0 {
		t.Errorf("annotations are left: %v", node.Annotations)
	}
	if node.Spec.Unschedulable != w.cordoned {
		t.Errorf("unschedulable is %v, and somebody else's wish %v", node.Spec.Unschedulable, w.cordoned)
	}
	taints, labels, conditions := on(node)
	delete(conditions, "Ready")
	for _, pair := range [][2]map[string]string{{w.taints, taints}, {w.labels, labels}, {w.conditions, conditions}} {
		if !maps.Equal(pair[0], pair[1]) {
			t.Errorf("left on the node: %v, somebody else's: %v", pair[1], pair[0])
		}
	}
}
