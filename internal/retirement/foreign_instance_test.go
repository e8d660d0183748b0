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

// foreign is a VM that the credential can delete and no NodeGroup's cloud group has.
const foreign = "sim://db"

// claimed is a NodeRetirement as a stolen token may write it, in a world that may help it.
type claimed struct {
	spec    v1alpha1.NodeRetirementSpec
	unsaid  bool          // the Node a does not say its instance
	alike   bool          // the foreign VM has the name of the Node a
	cluster bool          // no Node is in a group
	missing time.Duration // for how long the cloud says that the foreign VM is not there
	from    time.Duration // and from when on
	denied  bool          // the group's budget lets no node leave for a while
}

func drawClaimed(t *rapid.T) claimed {
	duration := func(name string) time.Duration {
		return time.Duration(rapid.IntRange(0, 60).Draw(t, name)) * time.Second
	}
	return claimed{
		spec: v1alpha1.NodeRetirementSpec{
			NodeName:   rapid.SampledFrom([]string{"a", "db", "vm-db", "vm-a", "made-up"}).Draw(t, "node"),
			NodeUID:    types.UID(rapid.SampledFrom([]string{"", "made-up", "uid-a"}).Draw(t, "UID")),
			ProviderID: rapid.SampledFrom([]string{foreign, foreign, "sim://a", "sim://z", ""}).Draw(t, "provider ID"),
			Group:      rapid.SampledFrom([]string{"", "ci", "made-up"}).Draw(t, "group"),
		},
		unsaid: rapid.Bool().Draw(t, "unsaid"), alike: rapid.Bool().Draw(t, "alike"), cluster: rapid.Bool().Draw(t, "cluster"),
		missing: duration("missing"), from: duration("from"), denied: rapid.Bool().Draw(t, "denied"),
	}
}

// play returns what was wrong.
func (c claimed) play(t *testing.T) (broken []string) {
	ctx, cancel := context.WithCancel(context.Background())
	defer func() { cancel(); synctest.Wait() }()
	s := ci(t)
	s.machines[foreign] = newMachine("db")
	if c.alike {
		s.machines[foreign].ComputerName = "a"
	}
	if c.unsaid {
		s.change("a", says(""))
	}
	if c.spec.NodeUID == "uid-a" {
		c.spec.NodeUID = s.node("a").UID
	}
	if c.denied {
		s.groups[0].Spec.Minimum = 2
		time.AfterFunc(2*time.Minute, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.groups[0].Spec.Minimum = 0
		})
	}
	began := time.Now()
	var away *machine
	_ = cloud.Instance{}
	s.atEach(func(moment, request string) error {
		if moment != "before" || request != "cloud instance" {
			return nil
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		since := time.Since(began)
		switch gone := since >= c.from && since < c.from+c.missing; {
		case gone && s.machines[foreign] != nil:
			away = s.machines[foreign]
			delete(s.machines, foreign)
		case !gone && away != nil:
			s.machines[foreign], away = away, nil
		}
		return nil
	})
	s.addPod("a", "web", nil)
	s.retire(t, "r", c.spec)
	s.settled(ctx, s.controller(t), "r", time.Hour)
	if s.touched[foreign] {
		broken = append(broken, "the foreign VM's deletion was asked for")
	}
	rt := s.record("r")
	if len(broken) > 0 && rt != nil {
		broken = append(broken, fmt.Sprintf("%s: %s", rt.Status.Phase, rt.Status.Message))
	}
	return append(broken, s.violations...)
}

func TestI4WhateverARetirementNamesNoForeignInstanceIsDeleted(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := drawClaimed(rt)
		var broken []string
		synctest.Test(t, func(t *testing.T) { broken = c.play(t) })
		if len(broken) > 0 {
			rt.Fatalf("%+v: %s", c, strings.Join(broken, "; "))
		}
	})
}
