package snapshot_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// TestUndecidableVerdictsGiveTheReason covers what the snapshot cannot know, and the decidable case next to each.
func TestUndecidableVerdictsGiveTheReason(t *testing.T) {
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	class := func(c storagev1.StorageClass) func(*snapshot.Snapshot, *corev1.Pod) error {
		return func(s *snapshot.Snapshot, p *corev1.Pod) error {
			c.Name, c.VolumeBindingMode = "disk", &wait
			p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}}}
			name := "disk"
			claim := &corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"},
				Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: &name},
			}
			if err := s.Storage.SetStorageClass(&c); err != nil {
				return err
			}
			return s.Storage.SetPersistentVolumeClaim(claim)
		}
	}
	device := func(offered string) func(*snapshot.Snapshot, *corev1.Pod) error {
		return func(s *snapshot.Snapshot, p *corev1.Pod) error {
			p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1")
			return s.Storage.SetDeviceClass(&resourcev1.DeviceClass{
				ObjectMeta: metav1.ObjectMeta{Name: "gpus"},
				Spec:       resourcev1.DeviceClassSpec{ExtendedResourceName: &offered},
			})
		}
	}
	cases := map[string]struct {
		change func(*snapshot.Snapshot, *corev1.Pod) error
		want   string
	}{
		"a volume can be made anywhere": {class(storagev1.StorageClass{Provisioner: "csi.example.com"}), "fits"},
		"a volume can be made in some places": {class(storagev1.StorageClass{
			Provisioner:       "csi.example.com",
			AllowedTopologies: []corev1.TopologySelectorTerm{{}},
		}), "undecidable: unbound claim data"},
		"no volume is ever made": {
			class(storagev1.StorageClass{Provisioner: "kubernetes.io/no-provisioner"}),
			"blocked: no volume for an unbound claim",
		},
		"a device class offers the resource":     {device("example.com/gpu"), "undecidable: example.com/gpu is offered by device class gpus"},
		"a device class offers another resource": {device("example.com/fpga"), "blocked: insufficient example.com/gpu"},
		"another scheduler places the pod": {func(_ *snapshot.Snapshot, p *corev1.Pod) error {
			p.Spec.SchedulerName = "volcano"
			return nil
		}, "undecidable: pod is scheduled by volcano"},
		"the pod waits for a gate": {func(_ *snapshot.Snapshot, p *corev1.Pod) error {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "quota"}}
			return nil
		}, "blocked: waiting for scheduling gates: [quota]"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s, err := placementtest.NewTwoNodeCluster().BuildSnapshot()
			must.NoError(t, err)
			p := placementtest.NewPod("new", 0, "", 100, 128)
			must.NoError(t, c.change(s, p))
			v, err := s.JudgeNewPod(p, "second")
			if err != nil || !strings.HasPrefix(v.String(), c.want) {
				t.Errorf("%s, %v; want %s", v, err, c.want)
			}
		})
	}
}
