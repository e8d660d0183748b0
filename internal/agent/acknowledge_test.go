package agent

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// Approving an event approves it for every machine that it names: one that is not known to be drained must hold it
// back, whatever the reason that it is not known (I7).
func TestI7OnlyMachinesKnownToBeDrainedCount(t *testing.T) {
	machine := func(id string) (string, error) {
		if id == "" {
			return "", errors.New("no provider ID")
		}
		return id, nil
	}
	node := func(id string) kubeapi.Node { return kubeapi.Node{Spec: kubeapi.NodeSpec{ProviderID: id}} }
	for name, tt := range map[string]struct {
		resources []string
		drained   []kubeapi.Node
		left      []string
	}{
		"alone":                                {[]string{"pool_1"}, nil, nil},
		"alone, in another letter case":        {[]string{"POOL_1"}, nil, nil},
		"another is not drained":               {[]string{"pool_1", "pool_2"}, nil, []string{"pool_2"}},
		"another is drained":                   {[]string{"pool_1", "pool_2"}, []kubeapi.Node{node("Pool_2")}, nil},
		"a machine that is no node":            {[]string{"pool_1", "stranger"}, []kubeapi.Node{node("pool_2")}, []string{"stranger"}},
		"a drained node without a provider ID": {[]string{"pool_1", "pool_2"}, []kubeapi.Node{node("")}, []string{"pool_2"}},
		"_1 drained is not _10 drained":        {[]string{"pool_1", "pool_10"}, []kubeapi.Node{node("pool_1")}, []string{"pool_10"}},
		"one of two others":                    {[]string{"pool_1", "pool_2", "pool_3"}, []kubeapi.Node{node("pool_3")}, []string{"pool_2"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.left, undrained(tt.resources, "pool_1", tt.drained, machine)); diff != "" {
				t.Errorf("not drained (-want +got):\n%s", diff)
			}
		})
	}
}
