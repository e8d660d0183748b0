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

// model is one node, several owners of ours, and other users. It knows what the others want on the node, and what
// each owner was told that it has.
type model struct {
	server *apiServer
	writer *ClaimWriter

	cordoned   bool              // by others, as far as it can be known
	taints     map[string]string // of others
	labels     map[string]string
	conditions map[string]string

	claims  map[string]ClaimSpec       // by owner, once Hold returned without error
	removed map[string]map[string]bool // what others removed since then
}

const effect = "NoSchedule"

var (
	owners     = []string{"azure-A", "azure-B", "an owner / of any name"}
	taintKeys  = []string{"example.com/t1", "example.com/t2"}
	labelKeys  = []string{"example.com/l1", "example.com/l2"}
	conditions = []string{MaintenancePlanned, DrainInProgress}
)

func newModel(t *rapid.T) *model {
	server := newAPIServer(t)
	writer, err := NewClaimWriter(server.client(), nodeName, nodeUID)
	must.NoError(t, err)
	return &model{
		server: server, writer: writer, taints: map[string]string{}, labels: map[string]string{},
		conditions: map[string]string{}, claims: map[string]ClaimSpec{}, removed: map[string]map[string]bool{},
	}
}

func (w *model) markRemoved(what string) {
	for _, spoilt := range w.removed {
		spoilt[what] = true
	}
}

// drawForeignChange draws a change by another user. Its values differ from ours, because two writers of the same
// value cannot be told apart.
func (w *model) drawForeignChange(t *rapid.T) func() {
	key := rapid.IntRange(0, 1).Draw(t, "which")
	value := rapid.SampledFrom([]string{"foreign1", "foreign2", ""}).Draw(t, "foreign value")
	set := func(is map[string]string, key string) {
		if value != "" {
			is[key] = value
			return
		}
		delete(is, key)
		w.markRemoved(key)
	}
	return rapid.SampledFrom([]func(){
		func() { w.foreignCordon(value != "") },
		func() { w.server.foreignTaint(taintKeys[key], effect, value); set(w.taints, taintKeys[key]) },
		func() { w.server.foreignLabel(labelKeys[key], value); set(w.labels, labelKeys[key]) },
		func() { w.server.foreignCondition(conditions[key], value); set(w.conditions, conditions[key]) },
	}).Draw(t, "foreign act")
}

// foreignCordon cordons or uncordons. A cordon of a node that is cordoned, or that we recorded as cordoned, cannot be
// told from ours.
func (w *model) foreignCordon(on bool) {
	node := w.server.currentNode()
	if !on {
		w.cordoned = false
		w.markRemoved("cordon")
	} else if !node.Spec.Unschedulable && !ownsCordon(node) {
		w.cordoned = true
	}
	w.server.foreignCordon(on)
}

func ownsCordon(node *kubeapi.Node) bool {
	records, _ := ListRecords(node)
	return slices.ContainsFunc(records, func(r Record) bool { return r.Cordon == OwnCordon })
}

func drawRequest(t *rapid.T) ClaimSpec {
	r := ClaimSpec{
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

// drawDisturbance draws what happens in the next call: a crash at one of its requests, or a foreign change before
// one.
func (w *model) drawDisturbance(t *rapid.T) {
	w.server.crash, w.server.before = 0, nil
	switch rapid.IntRange(0, 5).Draw(t, "disturbance") {
	case 0:
		w.server.crash = rapid.IntRange(1, 4).Draw(t, "at request") * rapid.SampledFrom([]int{-1, 1}).Draw(t, "ahead or after")
	case 1:
		countdown, act := rapid.IntRange(1, 4).Draw(t, "ahead of request"), w.drawForeignChange(t)
		w.server.before = func(string) {
			if countdown--; countdown == 0 {
				act()
			}
		}
	}
}

func (w *model) hold(t *rapid.T) {
	owner, r := rapid.SampledFrom(owners).Draw(t, "owner"), drawRequest(t)
	for _, other := range owners {
		if other != owner && rapid.IntRange(0, 3).Draw(t, "replaces "+other) == 0 {
			r.ReplacedOwners = append(r.ReplacedOwners, other)
			delete(w.claims, other)
		}
	}
	w.drawDisturbance(t)
	delete(w.claims, owner) // until Hold returns without error
	w.removed[owner] = map[string]bool{}
	if w.call(t, func() error { _, err := w.writer.WriteClaim(t.Context(), owner, r); return err }) {
		w.claims[owner] = r
		w.removed[owner] = map[string]bool{}
		if r.Unschedulable { // then every owner knows it
			for _, spoilt := range w.removed {
				delete(spoilt, "cordon")
			}
		}
		w.wantNoChange(t, func() (ClaimResult, error) { return w.writer.WriteClaim(t.Context(), owner, r) })
	}
}

func (w *model) release(t *rapid.T) {
	owner := rapid.SampledFrom(owners).Draw(t, "owner")
	w.drawDisturbance(t)
	delete(w.claims, owner)
	if w.call(t, func() error { _, err := w.writer.RemoveClaim(t.Context(), owner); return err }) {
		w.wantNoChange(t, func() (ClaimResult, error) { return w.writer.RemoveClaim(t.Context(), owner) })
	}
}

// call makes a disturbed call, and reports whether it completed.
func (w *model) call(t *rapid.T, call func() error) bool {
	err := call()
	w.server.crash, w.server.before = 0, nil
	if err != nil && !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	return err == nil
}

// wantNoChange repeats a call, which must change nothing.
func (w *model) wantNoChange(t *rapid.T, call func() (ClaimResult, error)) {
	w.server.countWrites()
	o, err := call()
	must.NoError(t, err)
	if n := w.server.countWrites(); n != 0 || o.Changed {
		t.Fatalf("the repeated call made %d changes", n)
	}
}

// check checks the invariants of I3 against the node, after any crash.
func (w *model) check(t *rapid.T) {
	node := w.server.currentNode()
	w.checkForeign(t, node)
	w.checkRecorded(t, node)
	for owner, r := range w.claims {
		w.checkClaimed(t, node, owner, r)
	}
}

// checkForeign checks that everything others set on the node is unchanged.
func (w *model) checkForeign(t *rapid.T, node *kubeapi.Node) {
	if w.cordoned && !node.Spec.Unschedulable {
		t.Error("a foreign cordon was removed")
	}
	taints, labels, conditions := listOnNode(node)
	for what, pair := range map[string][2]map[string]string{
		"taint": {w.taints, taints}, "label": {w.labels, labels}, "condition": {w.conditions, conditions},
	} {
		for key, want := range pair[0] {
			if got := pair[1][key]; got != want {
				t.Errorf("foreign %s %s is %q, want %q", what, key, got, want)
			}
		}
	}
}

// checkRecorded checks that everything of ours on the node is in a record, so it will be removed.
func (w *model) checkRecorded(t *rapid.T, node *kubeapi.Node) {
	records, problems := ListRecords(node)
	if len(problems) != 0 {
		t.Errorf("own records are unreadable: %v", problems)
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
	taints, labels, conditions := listOnNode(node)
	for what, is := range map[string]map[string]string{"taint": taints, "label": labels, "condition": conditions} {
		for key, value := range is {
			ours := strings.HasPrefix(strings.ToLower(value), "ours") || strings.HasPrefix(key, labelPrefix)
			if ours && !claimed[what+" "+key+value] {
				t.Errorf("%s %s=%s is ours, but in no record", what, key, value)
			}
		}
	}
	if node.Spec.Unschedulable && !w.cordoned && !ownsCordon(node) {
		t.Error("the node is cordoned by Slipway, but no record says so")
	}
}

// checkClaimed checks that everything an owner claimed is there, unless another user removed it.
func (w *model) checkClaimed(t *rapid.T, node *kubeapi.Node, owner string, r ClaimSpec) {
	taints, labels, conditions := listOnNode(node)
	missing := func(key string, there bool) {
		if !there && !w.removed[owner][key] {
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

// listOnNode lists the taints by key, the labels, and the reasons of the conditions by type.
func listOnNode(node *kubeapi.Node) (taints, labels, conditions map[string]string) {
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
	rapid.Check(t, runInterleaving)
}

func runInterleaving(t *rapid.T) {
	w := newModel(t)
	t.Repeat(map[string]func(*rapid.T){
		"claim":          w.hold,
		"claim more":     w.hold, // twice as often as the others
		"remove":         w.release,
		"foreign change": func(t *rapid.T) { w.drawForeignChange(t)() },
		"":               w.check,
	})
	for _, owner := range owners {
		if _, err := w.writer.RemoveClaim(t.Context(), owner); err != nil {
			t.Fatal(err)
		}
		delete(w.claims, owner)
		w.check(t)
	}
	w.checkRestored(t)
}

// checkRestored checks that the node is as the others want it after the last claim was removed.
func (w *model) checkRestored(t *rapid.T) {
	node := w.server.currentNode()
	if len(node.Annotations) != 0 {
		t.Errorf("remaining annotations: %v", node.Annotations)
	}
	if node.Spec.Unschedulable != w.cordoned {
		t.Errorf("unschedulable is %v, want %v", node.Spec.Unschedulable, w.cordoned)
	}
	taints, labels, conditions := listOnNode(node)
	delete(conditions, "Ready")
	for _, pair := range [][2]map[string]string{{w.taints, taints}, {w.labels, labels}, {w.conditions, conditions}} {
		if !maps.Equal(pair[0], pair[1]) {
			t.Errorf("on the node: %v, want only foreign settings %v", pair[1], pair[0])
		}
	}
}
