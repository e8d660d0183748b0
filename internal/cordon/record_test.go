package cordon

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestOwnerKeyIsItsNameOrAHash(t *testing.T) {
	for owner, want := range map[string]string{
		alice:                   alice,
		"a":                     "a",
		strings.Repeat("x", 63): strings.Repeat("x", 63),
		strings.Repeat("x", 64): strings.Repeat("x", 46) + "-7ce100971f64e700",
		"azure/evt 1":           "azure-evt-1-1e129cde706e665d",
		"-":                     "3973e022e93220f9",
	} {
		if got := ToKeyName(owner); got != want {
			t.Errorf("Key(%q) = %q, want %q", owner, got, want)
		}
	}
}

func TestAnyOwnerNameMakesAUniqueValidKey(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.String().Draw(t, "a"), rapid.String().Draw(t, "b")
		for _, key := range []string{AnnotationKey(a), LabelKey(a)} {
			if !isValidKey(key) {
				t.Errorf("owner %q has the key %q", a, key)
			}
		}
		if (a == b) != (ToKeyName(a) == ToKeyName(b)) {
			t.Errorf("owners %q and %q have the keys %q and %q", a, b, ToKeyName(a), ToKeyName(b))
		}
	})
}

func TestRecordsAreListedOldestFirst(t *testing.T) {
	f := newFixture(t)
	for owner, since := range map[string]string{"a": "2026-09-03T00:00:00Z", "b": "2026-09-01T00:00:00Z", "c": "2026-09-02T00:00:00Z"} {
		f.server.annotate(AnnotationKey(owner), `{"owner":"`+owner+`","since":"`+since+`","later":"field"}`)
	}
	f.server.annotate("example.com/cordon", "{")
	records, problems := ListRecords(f.server.currentNode())
	var got []string
	for _, r := range records {
		got = append(got, r.Owner)
	}
	if diff := cmp.Diff([]string{"b", "c", "a"}, got); diff != "" || problems != nil {
		t.Errorf("owners (-want +got):\n%s, problems %v", diff, problems)
	}
}

func FuzzAnnotationsOfAnyContent(f *testing.F) {
	f.Add("azure-A", `{"owner":"azure-A","since":"2026-09-01T12:00:00Z","cordon":"own","taints":[{"key":"k","effect":"NoSchedule"}]}`)
	f.Add("azure-A", `{"owner":"azure-A","conditions":{"Drained":{"since":"2026-09-01T12:00:00Z","reason":"R"}},"state":null}`)
	f.Add("x", `[]`)
	f.Add("", ``)
	f.Fuzz(func(t *testing.T, owner, value string) {
		key := AnnotationKey(owner)
		node := &kubeapi.Node{ObjectMeta: kubeapi.ObjectMeta{Annotations: map[string]string{key: value}}}
		records, problems := ListRecords(node)
		if len(records)+len(problems) != 1 {
			t.Fatalf("%d records and %d problems for one annotation", len(records), len(problems))
		}
		other := "another-" + ToKeyName(owner)
		for _, plan := range []func() (plan, error){
			func() (plan, error) { return planClaim(node, other, fullRequest(), time.Unix(1, 0), true) },
			func() (plan, error) { return planClaimRemoval(node, other, true) },
		} {
			p, err := plan()
			must.NoError(t, err)
			if deleted, planned := p.annotations[key]; planned && deleted == nil {
				t.Error("a foreign annotation is deleted")
			}
		}
		if _, err := planClaimRemoval(node, owner, true); (err != nil) != (len(problems) == 1) {
			t.Errorf("Release: error %v, problems %v", err, problems)
		}
	})
}
