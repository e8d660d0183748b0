package saved_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	"pgregory.net/rapid"

	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/saved"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func writeObjects(t must.T, o *saved.Objects, format saved.Format) []byte {
	var file bytes.Buffer
	must.NoError(t, o.WriteReduced(&file, format))
	return file.Bytes()
}

func TestSavedClusterGivesTheSameAnswers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := drawObjects(t)
		want := collectAnswers(t, o)
		for _, format := range []saved.Format{saved.Compact, saved.JSON} {
			reread, err := saved.Decode(writeObjects(t, o, format))
			must.NoError(t, err)
			got := collectAnswers(t, reread)
			for question, answer := range want {
				if a, b := fmt.Sprint(got[question]), fmt.Sprint(answer); a != b {
					t.Fatalf("format %d, %s: saved\n%s\ndirect\n%s", format, question, a, b)
				}
			}
		}
	})
}

func TestBothFormatsHoldSameObjects(t *testing.T) {
	o := &placementtest.NewDiverseCluster(2, 30, 4000, 5).Objects
	o.Time = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	compact, err := saved.Decode(writeObjects(t, o, saved.Compact))
	must.NoError(t, err)
	asJSON := writeObjects(t, o, saved.JSON)
	again := writeObjects(t, compact, saved.JSON)
	check.Not(t, !bytes.Equal(again, asJSON), "%d bytes of JSON, %d after the compact form", len(asJSON), len(again))
	check.Not(t, !compact.Time.Equal(o.Time) || len(compact.Pods) != 4000, "time %s, %d pods", compact.Time, len(compact.Pods))
}

func TestTruncatedCompactFileIsRejected(t *testing.T) {
	whole := writeObjects(t, &placementtest.NewDiverseCluster(2, 3, 20, 1).Objects, saved.Compact)
	for size := range len(whole) {
		if _, err := saved.Decode(whole[:size]); err == nil {
			t.Fatalf("%d of %d bytes are accepted as a cluster", size, len(whole))
		}
	}
	for name, raw := range map[string][]byte{
		`version "v9" is not supported: this slipway reads v1`: []byte("slipway.dev/snapshot v9\n\x00\x00\x00"),
		"3 bytes after the end frame":                          append(bytes.Clone(whole), "abc"...),
		"frame kind 99 is not known":                           []byte("slipway.dev/snapshot v1\n\x63\x01\x02\x01\x00\x00\x00\x00"),
		"a frame of 2 bytes claims 9 objects":                  []byte("slipway.dev/snapshot v1\n\x04\x09\x02\x01\x00\x00\x00\x00"),
		"pod number 1 is null":                                 []byte(`{"pods":[{},null]}`),
		"unexpected EOF":                                       []byte("slipway.dev/snapshot v1\n\x04\xff\xff"),
	} {
		if _, err := saved.Decode(raw); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%q: error %v, want %q", raw[:min(len(raw), 40)], err, name)
		}
	}
}

// newFrame returns a compact file with one frame that claims to have count objects.
func newFrame(kind byte, count int, body []byte) []byte {
	file := append([]byte("slipway.dev/snapshot v1\n"), kind)
	file = binary.AppendUvarint(file, uint64(count))
	file = binary.AppendUvarint(file, uint64(len(body)))
	return append(append(file, body...), 0, 0, 0)
}

func TestI10FileUsesMemoryInProportionToItsSize(t *testing.T) {
	const size = 1 << 20
	file := newFrame(4, size/2, make([]byte, size)) // pods without content, or without an end
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := saved.Decode(file)
	runtime.ReadMemStats(&after)
	check.ErrorContains(t, err, "a frame of 1048576 bytes claims 524288 objects (pod)")
	took := after.TotalAlloc - before.TotalAlloc
	check.Not(t, took > 32*size, "a file of %d bytes allocates %d bytes", size, took)
}

func TestObjectsWithoutContentCanBeSaved(t *testing.T) {
	o := &saved.Objects{}
	for range 1000 {
		o.Pods, o.Nodes = append(o.Pods, &corev1.Pod{}), append(o.Nodes, &corev1.Node{})
		o.Namespaces, o.Volumes = append(o.Namespaces, &corev1.Namespace{}), append(o.Volumes, &corev1.PersistentVolume{})
		o.Claims, o.PDBs = append(o.Claims, &corev1.PersistentVolumeClaim{}), append(o.PDBs, &policyv1.PodDisruptionBudget{})
		o.StorageClasses, o.CSINodes = append(o.StorageClasses, &storagev1.StorageClass{}), append(o.CSINodes, &storagev1.CSINode{})
		o.CSIDrivers = append(o.CSIDrivers, &storagev1.CSIDriver{})
		o.Attachments = append(o.Attachments, &storagev1.VolumeAttachment{})
		o.DeviceClasses = append(o.DeviceClasses, &resourcev1.DeviceClass{})
		o.PodGroups = append(o.PodGroups, &schedulingv1beta1.PodGroup{})
	}
	reread, err := saved.Decode(writeObjects(t, o, saved.Compact))
	check.Not(t, err != nil || len(reread.Pods) != 1000 || len(reread.DeviceClasses) != 1000 || len(reread.PodGroups) != 1000, "%v", err)
}

func TestWriteErrorIsReturned(t *testing.T) {
	r, w := io.Pipe()
	_ = r.Close()
	for _, format := range []saved.Format{saved.Compact, saved.JSON} {
		if err := placementtest.NewDiverseCluster(2, 3, 20, 1).WriteReduced(w, format); err == nil {
			t.Errorf("format %d: no error", format)
		}
	}
}

func FuzzDecode(f *testing.F) {
	o := &placementtest.NewDiverseCluster(2, 3, 1, 1).Objects
	o.Nodes = o.Nodes[:1]
	f.Add(writeObjects(f, o, saved.Compact))
	f.Add(writeObjects(f, o, saved.JSON))
	f.Add([]byte("slipway.dev/snapshot v1\n\x04\x01\x02\x01\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		o, err := saved.Decode(raw)
		if err != nil {
			return
		}
		if _, err := o.BuildSnapshot(); err != nil {
			return
		}
		hidden, _ := o.HashNames()
		check.Not(t, len(hidden.Pods) != len(o.Pods), "%d pods hashed of %d", len(hidden.Pods), len(o.Pods))
		again, err := saved.Decode(writeObjects(t, o, saved.Compact))
		must.NoError(t, err)
		check.Not(t, len(again.Nodes) != len(o.Nodes), "%d nodes read again of %d", len(again.Nodes), len(o.Nodes))
	})
}
