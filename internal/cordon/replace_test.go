package cordon

import (
	"testing"
)

func TestReplacingClaimTakesOnePatch(t *testing.T) {
	f := newFixture(t)
	was := f.server.currentNode()
	f.writeClaim(bob, fullRequest())
	f.server.countWrites()
	r := fullRequest()
	r.Conditions[0].Type = MaintenanceInProgress
	r.Taints[0].Value, r.Labels = "soon", nil
	r.ReplacedOwners = []string{bob, "azure-nobody"}
	o := f.writeClaim(alice, r)
	if n := f.server.countWrites(); n != 3 || o.WasUncordoned || len(o.NotOurs)+len(o.OtherOwners) != 0 {
		t.Errorf("%d requests, want one for the claims, one for the conditions and one that drops the old condition; outcome %+v", n, o)
	}
	n := f.server.currentNode()
	records, _ := ListRecords(n)
	if len(records) != 1 || records[0].Owner != alice || records[0].Cordon != OwnCordon || len(records[0].Conditions) != 1 {
		t.Errorf("records %+v", records)
	}
	taints, labels, conditions := listOnNode(n)
	if !n.Spec.Unschedulable || taints["example.com/leaving"] != "soon" || len(labels) != 1 || labels[LabelKey(alice)] == "" ||
		conditions[MaintenanceInProgress] == "" || conditions[DrainInProgress] != "" {
		t.Errorf("node %+v", n)
	}
	f.removeClaim(alice)
	f.wantUnchanged(was)
}

func TestI3FoundCordonStaysWhenItsClaimIsReplaced(t *testing.T) {
	f := newFixture(t)
	f.server.foreignCordon(true)
	was := f.server.currentNode()
	f.writeClaim(bob, fullRequest())
	r := fullRequest()
	r.ReplacedOwners = []string{bob}
	if o := f.writeClaim(alice, r); o.Record.Cordon != FoundCordon {
		t.Errorf("the cordon is %q, want it found", o.Record.Cordon)
	}
	f.removeClaim(alice)
	f.wantUnchanged(was)
}
