package saved_test

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/saved"
)

func written(t interface{ Fatal(...any) }, o *saved.Objects, format saved.Format) []byte {
	var file bytes.Buffer
	if err := o.Write(&file, format); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

func TestASavedClusterGivesTheAnswersOfTheOneThatWasSaved(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := crowd(t)
		want := answers(t, o)
		for _, format := range []saved.Format{saved.Compact, saved.JSON} {
			reread, err := saved.Read(bytes.NewReader(written(t, o, format)))
			if err != nil {
				t.Fatal(err)
			}
			got := answers(t, reread)
			for question, answer := range want {
				if a, b := fmt.Sprint(got[question]), fmt.Sprint(answer); a != b {
					t.Fatalf("format %d, %s: saved\n%s\ndirect\n%s", format, question, a, b)
				}
			}
		}
	})
}

func TestBothFormatsHoldTheSame(t *testing.T) {
	o := &placementtest.Diverse(2, 30, 4000, 5).Objects
	o.Time = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	compact, err := saved.Decode(written(t, o, saved.Compact))
	if err != nil {
		t.Fatal(err)
	}
	asJSON := written(t, o, saved.JSON)
	if again := written(t, compact, saved.JSON); !bytes.Equal(again, asJSON) {
		t.Errorf("%d bytes of JSON, %d after the compact form", len(asJSON), len(again))
	}
	if !compact.Time.Equal(o.Time) || len(compact.Pods) != 4000 {
		t.Errorf("time %s, %d pods", compact.Time, len(compact.Pods))
	}
}

func TestACompactFileThatWasCutOffIsRefused(t *testing.T) {
	whole := written(t, &placementtest.Diverse(2, 3, 20, 1).Objects, saved.Compact)
	for size := range len(whole) {
		if _, err := saved.Decode(whole[:size]); err == nil {
			t.Fatalf("%d of %d bytes are taken for a cluster", size, len(whole))
		}
	}
	for name, raw := range map[string][]byte{
		`it is of version "v9", and this slipway reads v1`: []byte("slipway.dev/snapshot v9\n\x00\x00\x00"),
		"3 bytes after its end":                            append(bytes.Clone(whole), "abc"...),
		"objects of kind 99 are not known":                 []byte("slipway.dev/snapshot v1\n\x63\x01\x02\x01\x00\x00\x00\x00"),
		"9 objects are said to be in 2 bytes":              []byte("slipway.dev/snapshot v1\n\x04\x09\x02\x01\x00\x00\x00\x00"),
		"its pod number 1 is null":                         []byte(`{"pods":[{},null]}`),
		"unexpected EOF":                                   []byte("slipway.dev/snapshot v1\n\x04\xff\xff"),
	} {
		if _, err := saved.Read(bytes.NewReader(raw)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%q: error %v, want %q", raw[:min(len(raw), 40)], err, name)
		}
	}
}

func TestAFileThatCannotBeWrittenIsNoCluster(t *testing.T) {
	r, w := io.Pipe()
	_ = r.Close()
	for _, format := range []saved.Format{saved.Compact, saved.JSON} {
		if err := placementtest.Diverse(2, 3, 20, 1).Write(w, format); err == nil {
			t.Errorf("format %d: no error", format)
		}
	}
}

func FuzzDecode(f *testing.F) {
	o := &placementtest.Diverse(2, 3, 1, 1).Objects
	o.Nodes = o.Nodes[:1]
	f.Add(written(f, o, saved.Compact))
	f.Add(written(f, o, saved.JSON))
	f.Add([]byte("slipway.dev/snapshot v1\n\x04\x01\x02\x01\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		o, err := saved.Decode(raw)
		if err != nil {
			return
		}
		if _, err := o.Snapshot(); err != nil {
			return
		}
		hidden, _ := o.Hashed()
		if len(hidden.Pods) != len(o.Pods) {
			t.Errorf("%d pods hashed of %d", len(hidden.Pods), len(o.Pods))
		}
		again, err := saved.Decode(written(t, o, saved.Compact))
		if err != nil {
			t.Fatal(err)
		}
		if len(again.Nodes) != len(o.Nodes) {
			t.Errorf("%d nodes read again of %d", len(again.Nodes), len(o.Nodes))
		}
	})
}
