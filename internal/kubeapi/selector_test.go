package kubeapi

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/testing/must"
)

// The test compares Selector with apimachinery's own function, for valid and invalid selectors and similar labels.
func TestSelectorMatchesLikeApimachinery(t *testing.T) {
	key := rapid.SampledFrom([]string{"app", "tier", "example.com/app", "", "no good", strings.Repeat("k", 64)})
	goodKey := rapid.SampledFrom([]string{"app", "example.com/app"})
	value := rapid.SampledFrom([]string{"web", "db", "", "no good", strings.Repeat("v", 64)})
	goodValue := rapid.SampledFrom([]string{"web", "db", ""})
	operator := rapid.SampledFrom([]string{"In", "NotIn", "Exists", "DoesNotExist"})
	anyOperator := rapid.SampledFrom([]string{"In", "NotIn", "Exists", "DoesNotExist", "", "in", "Gt", "="})

	var sets []labels.Set // every combination of two keys with three values or without a value
	for _, app := range []string{"-", "", "web", "db"} {
		for _, other := range []string{"-", "", "web", "db"} {
			set := labels.Set{"app": app, "example.com/app": other}
			maps.DeleteFunc(set, func(_, v string) bool { return v == "-" })
			sets = append(sets, set)
		}
	}

	rapid.Check(t, func(rt *rapid.T) {
		k, v, op := goodKey, goodValue, operator
		good := rapid.IntRange(0, 3).Draw(rt, "quality") > 0
		if !good {
			k, v, op = key, value, anyOperator
		}
		var theirs *metav1.LabelSelector
		if rapid.IntRange(0, 9).Draw(rt, "nil") > 0 {
			theirs = &metav1.LabelSelector{MatchLabels: rapid.MapOfN(k, v, 0, 1).Draw(rt, "matchLabels")}
			for range rapid.IntRange(0, 2).Draw(rt, "expressions") {
				e := metav1.LabelSelectorRequirement{
					Key:      k.Draw(rt, "key"),
					Operator: metav1.LabelSelectorOperator(op.Draw(rt, "operator")),
				}
				switch {
				case !good:
					e.Values = rapid.SliceOfN(v, 0, 2).Draw(rt, "values")
				case e.Operator == "In" || e.Operator == "NotIn":
					e.Values = rapid.SliceOfN(v, 1, 2).Draw(rt, "values")
				}
				theirs.MatchExpressions = append(theirs.MatchExpressions, e)
			}
		}
		raw, err := json.Marshal(theirs)
		must.NoError(rt, err)
		var ours *LabelSelector
		must.NoError(rt, json.Unmarshal(raw, &ours))

		got, gotErr := ours.ToSelector()
		want, wantErr := metav1.LabelSelectorAsSelector(theirs)
		if (gotErr == nil) != (wantErr == nil) {
			rt.Fatalf("%s: error %v, want %v", raw, gotErr, wantErr)
		}
		if gotErr != nil {
			return
		}
		for _, set := range sets {
			if got.Matches(set) != want.Matches(set) {
				rt.Fatalf("%s matches %v: %v, want %v", raw, set, got.Matches(set), want.Matches(set))
			}
		}
		if got.Empty() != want.Empty() {
			rt.Fatalf("%s is empty: %v, want %v", raw, got.Empty(), want.Empty())
		}
	})
}

func TestInvalidSelectorErrorNamesTheField(t *testing.T) {
	for raw, want := range map[string]string{
		`{"matchLabels":{"no good":"x"}}`:                                     `matchLabels["no good"]: `,
		`{"matchExpressions":[{"key":"a","operator":"Like"}]}`:                `matchExpressions[0].operator: "Like": want In, NotIn, Exists or DoesNotExist`,
		`{"matchExpressions":[{"key":"a","operator":"In","values":["no "]}]}`: `matchExpressions[0]: `,
	} {
		var s *LabelSelector
		must.NoError(t, json.Unmarshal([]byte(raw), &s))
		if _, err := s.ToSelector(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", raw, err, want)
		}
	}
}
