package retirement

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
)

// foreignInstanceID is a VM that the credential can delete and that is in no NodeGroup's cloud group.
const foreignInstanceID = "sim://db"

// forgedRetirement is a NodeRetirement as a stolen token may write it, in a cluster that may make it succeed.
type forgedRetirement struct {
	spec    v1alpha1.NodeRetirementSpec
	unsaid  bool          // the Node a has no provider ID
	alike   bool          // the foreign VM has the name of the Node a
	cluster bool          // no Node is in a group
	missing time.Duration // how long the cloud does not find the foreign VM
	from    time.Duration // and from when on
	denied  bool          // the group's disruption budget allows nothing for a while
}

func drawForgedRetirement(t *rapid.T) forgedRetirement {
	duration := func(name string) time.Duration {
		return time.Duration(rapid.IntRange(0, 60).Draw(t, name)) * time.Second
	}
	return forgedRetirement{
		spec: v1alpha1.NodeRetirementSpec{
			NodeName:   rapid.SampledFrom([]string{"a", "db", "vm-db", "vm-a", "made-up"}).Draw(t, "node"),
			NodeUID:    types.UID(rapid.SampledFrom([]string{"", "made-up", "uid-a"}).Draw(t, "UID")),
			ProviderID: rapid.SampledFrom([]string{foreignInstanceID, foreignInstanceID, "sim://a", "sim://z", ""}).Draw(t, "provider ID"),
			Group:      rapid.SampledFrom([]string{"", "ci", "made-up"}).Draw(t, "group"),
		},
		unsaid: rapid.Bool().Draw(t, "unsaid"), alike: rapid.Bool().Draw(t, "alike"), cluster: rapid.Bool().Draw(t, "cluster"),
		missing: duration("missing"), from: duration("from"), denied: rapid.Bool().Draw(t, "denied"),
	}
}

// runAndCheck returns every violation.
func (c forgedRetirement) runAndCheck(t *testing.T) (broken []string) {
	ctx, cancel := context.WithCancel(context.Background())
	defer func() { cancel(); synctest.Wait() }()
	s := newGroupOfTwo(t)
	s.instances[foreignInstanceID] = newSimInstance("db")
	if c.alike {
		s.instances[foreignInstanceID].ComputerName = "a"
	}
	if c.unsaid {
		s.changeNode("a", setProviderID(""))
	}
	if c.spec.NodeUID == "uid-a" {
		c.spec.NodeUID = s.getNode("a").UID
	}
	if c.denied {
		s.groups[0].Spec.MinSize = 2
		time.AfterFunc(2*time.Minute, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.groups[0].Spec.MinSize = 0
		})
	}
	began := time.Now()
	var away *simInstance
	_ = cloud.Instance{}
	s.interceptRequests(func(moment, request string) error {
		if moment != "before" || request != "cloud instance" {
			return nil
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		since := time.Since(began)
		switch gone := since >= c.from && since < c.from+c.missing; {
		case gone && s.instances[foreignInstanceID] != nil:
			away = s.instances[foreignInstanceID]
			delete(s.instances, foreignInstanceID)
		case !gone && away != nil:
			s.instances[foreignInstanceID], away = away, nil
		}
		return nil
	})
	s.addPod("a", "web", nil)
	s.createRetirement(t, "r", c.spec)
	s.reconcileUntilDone(ctx, s.newController(t), "r", time.Hour)
	if s.deletionRequested[foreignInstanceID] {
		broken = append(broken, "the foreign VM's deletion was asked for")
	}
	rt := s.getRetirement("r")
	if len(broken) > 0 && rt != nil {
		broken = append(broken, fmt.Sprintf("%s: %s", rt.Status.Phase, rt.Status.Message))
	}
	return append(broken, s.violations...)
}

func TestI4ForgedRetirementDeletesNoForeignInstance(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := drawForgedRetirement(rt)
		var broken []string
		synctest.Test(t, func(t *testing.T) { broken = c.runAndCheck(t) })
		if len(broken) > 0 {
			rt.Fatalf("%+v: %s", c, strings.Join(broken, "; "))
		}
	})
}
