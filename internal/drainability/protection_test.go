package drainability

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

var (
	made = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	now  = made.Add(time.Hour)
)

// named returns the key of the first protection in force.
func named(all []Protection) string {
	for _, h := range all {
		if h.InForce(now) {
			return h.Key
		}
	}
	return ""
}

func TestAnnotationsThatProtectPodsAndNodes(t *testing.T) {
	for _, c := range []struct {
		key, value string
		pod, node  bool
	}{
		{SafeToEvict, "false", true, false},
		{SafeToEvict, " False ", true, false},
		{SafeToEvict, "true", false, false},
		{SafeToEvict, "", false, false},
		{SafeToEvict, "never", false, false},
		{DoNotEvict, "true", true, true},
		{DoNotEvict, "TRUE", true, true},
		{DoNotEvict, "false", false, false},
		{DoNotEvict, "2h", true, true},
		{DoNotEvict, "1h", false, false},
		{DoNotDisrupt, "true", true, true},
		{DoNotDisrupt, "61m", true, true},
		{DoNotDisrupt, "30m", false, false},
		{DoNotDisrupt, "-2h", false, false},
		{DoNotDisrupt, "maybe", false, false},
		{DoNotDisrupt, "2562047h", true, true},
		{ScaleDownDisabled, "True", false, true},
		{ScaleDownDisabled, "2h", false, false},
		{ScaleDownDisabled, "false", false, false},
		{Membership, `{"active":true,"evictable":false}`, false, true},
		{Membership, `{"active":false,"evictable":false}`, false, true},
		{Membership, `{"active":true}`, false, true},
		{Membership, `blessed`, false, true},
		{Membership, `{"active":true,"evictable":true}`, false, false},
		{Membership, "", false, false},
		{Detached, "true", false, true},
		{Detached, "", false, false},
	} {
		a := map[string]string{c.key: c.value}
		for what, got := range map[string]struct {
			by   string
			held bool
		}{"pod": {named(OfPod(a, made)), c.pod}, "node": {named(OfNode(a, made)), c.node}} {
			if (got.by == c.key) != got.held || got.by != "" && got.by != c.key {
				t.Errorf("%s with %s: %q: protected by %q, want protected: %t", what, c.key, c.value, got.by, got.held)
			}
		}
	}
}

func TestSlipwaysMarkForClusterAutoscalerProtectsNothing(t *testing.T) {
	a := map[string]string{ScaleDownDisabled: "true", HoldsOff: "true"}
	if by := named(OfNode(a, made)); by != "" {
		t.Errorf("protected by %s", by)
	}
	a[DoNotEvict] = "true"
	if by := named(OfNode(a, made)); by != DoNotEvict {
		t.Errorf("protected by %q, want what somebody has set beside it", by)
	}
}

func TestAnnotationsThatAllowAnEviction(t *testing.T) {
	if !IsSafeToEvict(map[string]string{SafeToEvict: "True"}) || IsSafeToEvict(map[string]string{SafeToEvict: "false"}) || IsSafeToEvict(nil) {
		t.Error("safe-to-evict allows an eviction only if it is true")
	}
	a := map[string]string{SafeLocalVolumes: "scratch,cache"}
	if !IsSafeVolume(a, "cache") || IsSafeVolume(a, "data") || IsSafeVolume(nil, "cache") {
		t.Error("only a volume that is named may be lost")
	}
}

func TestTheLongestProtectionIsInForceAsLongAsAny(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.MapOf(
			rapid.SampledFrom([]string{SafeToEvict, DoNotEvict, DoNotDisrupt, ScaleDownDisabled, HoldsOff, Membership, Detached}),
			rapid.SampledFrom([]string{"true", "false", "True", "", "1h", "90m", "3h", "-1h", "x"}),
		).Draw(t, "annotations")
		at := made.Add(time.Duration(rapid.IntRange(0, 300).Draw(t, "minutes")) * time.Minute)
		for what, all := range map[string][]Protection{"pod": OfPod(a, made), "node": OfNode(a, made)} {
			longest, ok := Longest(all)
			inForce := false
			for _, h := range all {
				inForce = inForce || h.InForce(at)
			}
			if (ok && longest.InForce(at)) != inForce {
				t.Fatalf("%s with %v after %s: the longest is %+v (%t), any in force: %t", what, a, at.Sub(made), longest, ok, inForce)
			}
		}
	})
}
