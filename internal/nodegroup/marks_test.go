package nodegroup

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/drainability"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// applyPatch applies a merge patch of annotations, as the API server does.
func applyPatch(t must.T, n *corev1.Node, patch []byte) {
	if patch == nil {
		return
	}
	var p struct {
		Metadata struct {
			Annotations     map[string]*string `json:"annotations"`
			UID             string             `json:"uid"`
			ResourceVersion string             `json:"resourceVersion"`
		} `json:"metadata"`
	}
	must.NoError(t, json.Unmarshal(patch, &p))
	if p.Metadata.UID != string(n.UID) || p.Metadata.ResourceVersion != n.ResourceVersion {
		t.Fatal("the patch is not for the Node as it was read:", string(patch))
	}
	for key, value := range p.Metadata.Annotations {
		if value == nil {
			delete(n.Annotations, key)
			continue
		}
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations[key] = *value
	}
}

func TestMarksRoundTripAndAreWrittenOnce(t *testing.T) {
	n := newNode("a", "ci")
	m := Marks{Since: noon, Used: true, SelectorHash: ciKind, SetScaleDownDisabled: true}
	patch, err := m.makePatch(&n, markOwner{group: "ci"})
	must.NoError(t, err)
	applyPatch(t, &n, patch)
	if got := readMarks(&n, "ci", ciKind); !got.Since.Equal(noon) || !got.Used || !got.SetScaleDownDisabled {
		t.Errorf("%+v", got)
	}
	if patch, _ := readMarks(&n, "ci", ciKind).makePatch(&n, markOwner{group: "ci"}); patch != nil {
		t.Errorf("written again: %s", patch)
	}
	if got := readMarks(&n, "gpu", ciKind); !got.Since.IsZero() || got.Used {
		t.Errorf("another group takes them for its own: %+v", got)
	}
	if got := readMarks(&n, "ci", "other"); !got.Since.IsZero() || got.Used || !got.SetScaleDownDisabled {
		t.Errorf("a rule that selects other pods takes them for its own: %+v", got)
	}
	without := n.DeepCopy()
	delete(without.Annotations, annotationSelectorHash)
	if got := readMarks(without, "ci", ciKind); !got.Since.IsZero() || got.Used {
		t.Errorf("of whatever pods they are: %+v", got)
	}
	n.Annotations[annotationSince] = "a while ago"
	if got := readMarks(&n, "ci", ciKind); !got.Since.IsZero() {
		t.Errorf("a time that cannot be read is %s", got.Since)
	}
}

// TestI3OnlyOurScaleDownDisabledIsRemoved has the group and people set and remove the annotation in any order. At the
// end the group gives the node up. Each removal is observed before the next change: an identical value that is set
// again at once looks like no removal.
func TestI3OnlyOurScaleDownDisabledIsRemoved(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := newNode("a", "ci")
		theirs := "" // what a person has set last and not removed
		person := func(value string) {
			if n.Annotations == nil {
				n.Annotations = map[string]string{}
			}
			n.Annotations[drainability.ScaleDownDisabled], theirs = value, value
		}
		manager := func(wanted bool) {
			m := readMarks(&n, "ci", ciKind).withScaleDownDisabled(&n, wanted)
			patch, err := m.makePatch(&n, markOwner{group: "ci"})
			must.NoError(t, err)
			applyPatch(t, &n, patch)
		}
		asks := false
		t.Repeat(map[string]func(*rapid.T){
			"a person sets it to false": func(*rapid.T) { person("false") },
			"a person sets it if missing": func(*rapid.T) {
				if _, there := n.Annotations[drainability.ScaleDownDisabled]; !there {
					person(annotationTrue)
				}
			},
			"a person removes it": func(*rapid.T) {
				delete(n.Annotations, drainability.ScaleDownDisabled)
				theirs = ""
				manager(asks)
			},
			"the group asks for it": func(*rapid.T) { asks = true; manager(true) },
			"the group does not":    func(*rapid.T) { asks = false; manager(false) },
			"": func(t *rapid.T) {
				if theirs != "" && n.Annotations[drainability.ScaleDownDisabled] != theirs {
					t.Fatalf("another client's %q has become %q", theirs, n.Annotations[drainability.ScaleDownDisabled])
				}
			},
		})
		manager(false)
		manager(false)
		if _, there := n.Annotations[drainability.ScaleDownDisabled]; there != (theirs != "") {
			t.Fatalf("left behind: %v, and people want %q", n.Annotations, theirs)
		}
		for key := range n.Annotations {
			if key != drainability.ScaleDownDisabled {
				t.Fatalf("left behind: %s", key)
			}
		}
	})
}

func TestMarksRoundTripAtAnyTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := noon.Add(time.Duration(rapid.Int64Range(0, int64(1000*time.Hour)).Draw(t, "ns")))
		n := newNode("a", "ci")
		patch, err := Marks{Since: roundUpToSecond(at), SelectorHash: ciKind}.makePatch(&n, markOwner{group: "ci"})
		must.NoError(t, err)
		applyPatch(t, &n, patch)
		if got := readMarks(&n, "ci", ciKind).Since; got.Before(at) || got.Sub(at) >= time.Second {
			t.Fatalf("%s is read as %s", at, got)
		}
	})
}
