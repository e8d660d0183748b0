package storm

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-dev/slipway/dev/bench/result"
)

func TestNoticesAreSpreadOverScaleSetsAndLeaveOthers(t *testing.T) {
	for _, size := range []int{10, 50, 100, 150, 200, 370, maxSize} {
		s := &stormBench{size: size}
		sum := 0
		for i := range s.scaleSetCount() {
			n := s.noticedIn(i)
			if n > machinesEach {
				t.Errorf("size %d: scale set %d has %d notices, want at most %d", size, i, n, machinesEach)
			}
			sum += n
		}
		if sum != size || s.machineCount()-size < minOtherMachines {
			t.Errorf("size %d: %d notices for %d machines, want %d and at least %d without", size, sum, s.machineCount(), size, minOtherMachines)
		}
	}
}

func TestSweepKeepsResultsIfSizesFail(t *testing.T) {
	measure := func(_ context.Context, _ Options, size int) ([]result.Result, error) {
		lost := result.Result{Name: "lost", Unit: "pods"}
		switch size {
		case 50:
			return nil, errors.New("no agents")
		case 150:
			return []result.Result{lost}, errors.New("no floor") // of the agents alone
		case 200:
			lost.Value = 1
		}
		return []result.Result{lost}, nil
	}
	results, err := measureSizes(t.Context(), Options{Sizes: []int{50, 100, 150, 200}, Progress: io.Discard}, measure)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range results {
		names = append(names, r.Name)
	}
	want := []string{
		"50 notices: failures", "100 notices: lost", "150 notices: lost", "150 notices: failures", "200 notices: lost",
		"largest storm without a pod deleted past its PDB or lost",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Fatalf("-want +got:\n%s", diff)
	}
	if largest := results[len(results)-1].Value; largest != 150 {
		t.Errorf("the largest storm is %v, want 150", largest)
	}
	if missed := result.MissedTargets(results); len(missed) != 1 || missed[0] != names[0] || !strings.Contains(results[0].Setup, "no agents") {
		t.Errorf("missed targets %q with %q, want the failure of 50 notices", missed, results[0].Setup)
	}
	if results, err := measureSizes(t.Context(), Options{Sizes: []int{50}}, measure); err == nil || results != nil {
		t.Errorf("the only size fails: got %v, %v", results, err)
	}
}
