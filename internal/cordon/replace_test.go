package cordon

import (
	"testing"
)

func TestReplacementMovesItsClaimInOnePatch(t *testing.T) {
	f := newFixture(t)
	was := f.server.read()
	f.hold(bob, everything())
	f.server.writes()
	r := everything()
	r.Conditions[0].Type = MaintenanceInProgress
	r.Taints[0].Value, r.Labels = "soon", nil
	r.Replaces = []string{bob, "azure-nobody"}
	o := f.hold(alice, r)
	if n := f.server.writes(); n != 3 || o.Uncordoned || len(o.Foreign)+len(o.HeldBy) != 0 {
		t.Errorf("%d requests, want the claims' one, the conditions' and one that gives up the old condition; outcome %+v", n, o)
	}
	n := f.server.read()
	records, _ := List(n)
	if len(records) != 1 || records[0].Owner != alice || records[0].Cordon != Own || len(records[0].Conditions) != 1 {
		t.Errorf("records %+v", records)
	}
	taints, labels, conditions := on(n)
	if !n.Spec.Unschedulable || taints["example.com/leaving"] != "soon" || len(labels) != 1 || labels[LabelKey(alice)] == "" ||
		conditions[MaintenanceInProgress] == "" || conditions[DrainInProgress] != "" {
		t.Errorf("node %+v", n)
	}
	f.release(alice)
	f.same(was)
}

func TestI3FoundCordonStaysWhenItsClaimIsReplaced(t *testing.T) {
	f := newFixture(t)
	f.server.foreignCordon(true)
	was := f.server.read()
	f.hold(bob, everything())
	r := everything()
	r.Replaces = []string{bob}
	if o := f.hold(alice, r); o.Record.Cordon != Found {
		t.Errorf("the cordon is %q, want it found", o.Record.Cordon)
	}
	f.release(alice)
	f.same(was)
}
