package protection

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

var (
	made = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	now  = made.Add(time.Hour)
)

// named is the first that holds.
func named(holds []Hold) string {
	for _, h := range holds {
		if h.At(now) {
			return h.Key
		}
	}
	return ""
}

func TestWhatHoldsAPodAndWhatHoldsANode(t *testing.T) {
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
				t.Errorf("%s with %s: %q: held by %q, want held: %t", what, c.key, c.value, got.by, got.held)
			}
		}
	}
}

func TestSlipwaysOwnMarkForTheClusterAutoscalerHoldsNothing(t *testing.T) {
	a := map[string]string{ScaleDownDisabled: "true", HoldsOff: "true"}
	if by := named(OfNode(a, made)); by != "" {
		t.Errorf("held by %s", by)
	}
	a[DoNotEvict] = "true"
	if by := named(OfNode(a, made)); by != DoNotEvict {
		t.Errorf("held by %q, want what somebody has set beside it", by)
	}
}

func TestWhatMayGoAndWhatMayBeLost(t *testing.T) {
	if !MayGo(map[string]string{SafeToEvict: "True"}) || MayGo(map[string]string{SafeToEvict: "false"}) || MayGo(nil) {
		t.Error("a pod may go when it is said to, and not otherwise")
	}
	a := map[string]string{SafeLocalVolumes: "scratch,cache"}
	if !MayLose(a, "cache") || MayLose(a, "data") || MayLose(nil, "cache") {
		t.Error("a volume may be lost when it is named, and not otherwise")
	}
}

// The longest hold holds exactly as long as any does, whatever is set.
func TestTheLongestHoldHoldsWhileAnyDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.MapOf(
			rapid.SampledFrom([]string{SafeToEvict, DoNotEvict, DoNotDisrupt, ScaleDownDisabled, HoldsOff, Membership, Detached}),
			rapid.SampledFrom([]string{"true", "false", "True", "", "1h", "90m", "3h", "-1h", "x"}),
		).Draw(t, "annotations")
		at := made.Add(time.Duration(rapid.IntRange(0, 300).Draw(t, "minutes")) * time.Minute)
		for what, holds := range map[string][]Hold{"pod": OfPod(a, made), "node": OfNode(a, made)} {
			longest, ok := Longest(holds)
			anyHolds := false
			for _, h := range holds {
				anyHolds = anyHolds || h.At(at)
			}
			if (ok && longest.At(at)) != anyHolds {
				t.Fatalf("%s with %v after %s: the longest is %+v (%t), any holds: %t", what, a, at.Sub(made), longest, ok, anyHolds)
			}
		}
	})
}
