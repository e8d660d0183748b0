package drainability

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

var (
	created = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	now     = created.Add(time.Hour)
)

// firstActiveKey returns the key of the first active protection, or "".
func firstActiveKey(all []Protection) string {
	for _, p := range all {
		if p.IsActive(now) {
			return p.Key
		}
	}
	return ""
}

func TestProtectingAnnotations(t *testing.T) {
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
			by        string
			protected bool
		}{"pod": {firstActiveKey(PodProtections(a, created)), c.pod}, "node": {firstActiveKey(NodeProtections(a, created)), c.node}} {
			if (got.by == c.key) != got.protected || got.by != "" && got.by != c.key {
				t.Errorf("%s with %s: %q: protected by %q, want protected: %t", what, c.key, c.value, got.by, got.protected)
			}
		}
	}
}

func TestOwnScaleDownDisabledProtectsNothing(t *testing.T) {
	a := map[string]string{ScaleDownDisabled: "true", ScaleDownDisabledBySlipway: "true"}
	if by := firstActiveKey(NodeProtections(a, created)); by != "" {
		t.Errorf("protected by %s", by)
	}
	a[DoNotEvict] = "true"
	if by := firstActiveKey(NodeProtections(a, created)); by != DoNotEvict {
		t.Errorf("protected by %q, want the user's annotation", by)
	}
}

func TestAnnotationsAllowingEviction(t *testing.T) {
	if !IsSafeToEvict(map[string]string{SafeToEvict: "True"}) || IsSafeToEvict(map[string]string{SafeToEvict: "false"}) || IsSafeToEvict(nil) {
		t.Error("safe-to-evict allows an eviction only if it is true")
	}
	a := map[string]string{SafeLocalVolumes: "scratch,cache"}
	if !IsSafeVolume(a, "cache") || IsSafeVolume(a, "data") || IsSafeVolume(nil, "cache") {
		t.Error("only named volumes may be lost")
	}
}

func TestLongestProtectionIsActiveAsLongAsAny(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.MapOf(
			rapid.SampledFrom([]string{SafeToEvict, DoNotEvict, DoNotDisrupt, ScaleDownDisabled, ScaleDownDisabledBySlipway, Membership, Detached}),
			rapid.SampledFrom([]string{"true", "false", "True", "", "1h", "90m", "3h", "-1h", "x"}),
		).Draw(t, "annotations")
		at := created.Add(time.Duration(rapid.IntRange(0, 300).Draw(t, "minutes")) * time.Minute)
		for what, all := range map[string][]Protection{"pod": PodProtections(a, created), "node": NodeProtections(a, created)} {
			longest, ok := FindLongestProtection(all)
			inForce := false
			for _, p := range all {
				inForce = inForce || p.IsActive(at)
			}
			if (ok && longest.IsActive(at)) != inForce {
				t.Fatalf("%s with %v after %s: the longest is %+v (%t), any in force: %t", what, a, at.Sub(created), longest, ok, inForce)
			}
		}
	})
}
