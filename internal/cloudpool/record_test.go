package cloudpool

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// large is an update of n Azure machines, all of which have had their turns.
func large(n int, over bool) *Update {
	id := "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/mc_demo/providers/Microsoft.Compute/virtualMachineScaleSets/aks-workers-12345678-vmss/virtualMachines/%d"
	up := &Update{ID: "0123456789abcdef", Kind: SetSize, Began: time.Now(), Decision: &Decision{Active: 2 * n, Desired: n}}
	if over {
		up.Outcome = &Outcome{Result: Partly, Removed: n - 10}
	}
	for i := range n {
		t := Turn{
			Machine: fmt.Sprintf(id, i), Node: fmt.Sprintf("aks-workers-12345678-vmss%06d", i), NodeUID: uuid(i), ProviderID: "azure://" + fmt.Sprintf(id, i),
			State: Gone, Phase: "Succeeded", Since: time.Now(),
		}
		if i < 10 {
			t.State, t.Why = Refused, strings.Repeat("because ", 1000)
		}
		t.Retirement = retirementName(up.ID, t.Node)
		up.Turns = append(up.Turns, t)
		up.Decision.Victims = append(up.Decision.Victims, Victim{Machine: t.Machine, Node: t.Node})
	}
	return up
}

func TestTheRecordStaysSmallHoweverManyUpdatesThereWere(t *testing.T) {
	r := &record{}
	for range 2 * keepPast {
		r.begin(large(150, true))
	}
	r.begin(large(150, false))
	raw, err := r.encode()
	if err != nil || len(raw) > maxRecord/2 || len(r.Past) != keepPast {
		t.Errorf("%d bytes with %d past updates, %v", len(raw), len(r.Past), err)
	}
	if last := r.Past[0]; last.Outcome.Removed != 140 || !hasFailed(&last) {
		t.Errorf("%+v, want it known how it ended, and that machines have stayed", last)
	}
}

func TestAnUpdateThatCannotBeWrittenDownIsNotBegun(t *testing.T) {
	up := large(2000, false)
	up.Turns = nil
	err := up.fits()
	if resultOf(err) != NotPossible || !strings.Contains(err.Error(), "taking 2000 machines away at once") {
		t.Fatalf("%v", err)
	}
	var least int
	_, says, _ := strings.Cut(err.Error(), "want a desiredSize of ")
	if _, err := fmt.Sscanf(says, "at least %d", &least); err != nil {
		t.Fatal(err)
	}
	step := large(up.Decision.Active-least, false)
	turns := step.Turns
	step.Turns = nil
	if err := step.fits(); err != nil {
		t.Errorf("the step that was asked for: %v", err)
	}
	for i := range turns {
		turns[i].State, turns[i].Why = Refused, strings.Repeat("because ", 1000)
	}
	step.Turns = turns
	raw, err := (&record{Current: step, Past: []Update{large(150, true).past()}}).encode()
	if err != nil || len(raw) > maxRecord {
		t.Errorf("%d bytes, %v; want it to fit to its end", len(raw), err)
	}
	var read record
	if err := json.Unmarshal(raw, &read); err != nil || len(read.Current.Turns) != len(turns) {
		t.Errorf("%d turns are left, %v", len(read.Current.Turns), err)
	}
}
