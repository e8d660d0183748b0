package snapshot_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// newClusterWithClaim returns a cluster with a claim of class "disk", and a pod that uses it.
func newClusterWithClaim(volume string) (*placementtest.Cluster, *corev1.Pod) {
	c, wait, name := placementtest.NewTwoNodeCluster(), storagev1.VolumeBindingWaitForFirstConsumer, "disk"
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"}}
	claim.Spec.StorageClassName, claim.Spec.VolumeName = &name, volume
	if volume != "" {
		claim.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
	}
	c.Claims = append(c.Claims, claim)
	c.StorageClasses = append(c.StorageClasses, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "csi.example.com", VolumeBindingMode: &wait,
	})
	p := placementtest.NewPod("new", 0, "", 100, 128)
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
	}}}
	return c, p
}

// newCSINode returns the CSINode of the second node. It lists the migrated in-tree plugins.
func newCSINode(migrated string, drivers ...storagev1.CSINodeDriver) *storagev1.CSINode {
	return &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: "second", Annotations: map[string]string{corev1.MigratedPluginsAnnotationKey: migrated}},
		Spec:       storagev1.CSINodeSpec{Drivers: drivers},
	}
}

func checkVerdict(t *testing.T, c *placementtest.Cluster, p *corev1.Pod, want string) {
	t.Helper()
	s, err := c.BuildSnapshot()
	must.NoError(t, err)
	if v, err := s.JudgeNewPod(p, "second"); err != nil || !strings.HasPrefix(v.String(), want) {
		t.Errorf("%s, %v; want %s", v, err, want)
	}
}

// TestMigratedVolumesAreUndecidable has a volume with a node affinity in the terms of its in-tree plugin.
func TestMigratedVolumesAreUndecidable(t *testing.T) {
	c, p := newClusterWithClaim("volume")
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "volume"}}
	v.Spec.AzureDisk = &corev1.AzureDiskVolumeSource{DiskName: "d", DataDiskURI: "/subscriptions/1/d"}
	v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
		{MatchExpressions: []corev1.NodeSelectorRequirement{{
			Key: "failure-domain.beta.kubernetes.io/zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"zone-a"},
		}}},
	}}}
	c.Volumes = append(c.Volumes, v)
	checkVerdict(t, c, p, "blocked: volume is not reachable from the node")
	c.CSINodes = []*storagev1.CSINode{newCSINode("kubernetes.io/aws-ebs")}
	checkVerdict(t, c, p, "blocked: volume is not reachable from the node")
	c.CSINodes = []*storagev1.CSINode{newCSINode("kubernetes.io/aws-ebs,kubernetes.io/azure-disk")}
	checkVerdict(t, c, p, "undecidable: volume of plugin kubernetes.io/azure-disk is migrated on the node")
}

// TestVsphereVolumesCountForNoDriver has a node that is full for a CSI driver with the plugin's name.
func TestVsphereVolumesCountForNoDriver(t *testing.T) {
	none := int32(0)
	for _, plugin := range []string{"kubernetes.io/vsphere-volume", "kubernetes.io/azure-file"} {
		c, p := newClusterWithClaim("")
		full := storagev1.CSINodeDriver{Name: plugin, Allocatable: &storagev1.VolumeNodeResources{Count: &none}}
		c.CSINodes = []*storagev1.CSINode{newCSINode(plugin, full)}
		c.StorageClasses[0].Provisioner = plugin
		checkVerdict(t, c, p, "fits")
	}
}

// TestVolumeLimitReasonIsDeterministic has pods with volumes of two in-tree plugins on the node.
func TestVolumeLimitReasonIsDeterministic(t *testing.T) {
	c, p := newClusterWithClaim("")
	ten := int32(10)
	c.CSINodes = []*storagev1.CSINode{newCSINode("", storagev1.CSINodeDriver{
		Name: "csi.example.com", Allocatable: &storagev1.VolumeNodeResources{Count: &ten},
	})}
	for i, source := range []corev1.VolumeSource{
		{AzureDisk: &corev1.AzureDiskVolumeSource{DiskName: "d", DataDiskURI: "/subscriptions/1/d"}},
		{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}},
	} {
		other := placementtest.NewPod("other", i, "second", 100, 128)
		other.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: source}}
		c.Pods = append(c.Pods, other)
	}
	for range 50 { // the order of the node's pods differs each time
		checkVerdict(t, c, p, "undecidable: volume of plugin kubernetes.io/aws-ebs counts for CSI driver ebs.csi.aws.com")
	}
}

func TestVolumesNeedTheirDriverOnNode(t *testing.T) {
	c, p := newClusterWithClaim("")
	required := true
	checkVerdict(t, c, p, "fits")
	c.CSIDrivers = []*storagev1.CSIDriver{{
		ObjectMeta: metav1.ObjectMeta{Name: "csi.example.com"},
		Spec:       storagev1.CSIDriverSpec{PreventPodSchedulingIfMissing: &required},
	}}
	checkVerdict(t, c, p, "blocked: CSI driver csi.example.com is not on the node")
	c.CSINodes = []*storagev1.CSINode{newCSINode("", storagev1.CSINodeDriver{Name: "other.example.com"})}
	checkVerdict(t, c, p, "blocked: CSI driver csi.example.com is not on the node")
	c.CSINodes = []*storagev1.CSINode{newCSINode("", storagev1.CSINodeDriver{Name: "csi.example.com"})}
	checkVerdict(t, c, p, "fits")
}

// TestDeletedDeviceClassKeepsTheOther has two device classes that offer the same resource.
func TestDeletedDeviceClassKeepsTheOther(t *testing.T) {
	c := placementtest.NewTwoNodeCluster()
	gpu := "example.com/gpu"
	for _, name := range []string{"large", "small"} {
		c.DeviceClasses = append(c.DeviceClasses, &resourcev1.DeviceClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: &gpu},
		})
	}
	s, err := c.BuildSnapshot()
	must.NoError(t, err)
	p := placementtest.NewPod("new", 0, "", 100, 128)
	p.Spec.Containers[0].Resources.Requests[corev1.ResourceName(gpu)] = p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU]
	for _, step := range []struct{ drop, want string }{
		{"", "undecidable: example.com/gpu is offered by device class large"},
		{"large", "undecidable: example.com/gpu is offered by device class small"},
		{"small", "blocked: insufficient example.com/gpu"},
	} {
		must.NoError(t, s.Storage.DeleteDeviceClass(step.drop))
		if v, err := s.JudgeNewPod(p, "second"); err != nil || v.String() != step.want {
			t.Errorf("%s, %v; want %s", v, err, step.want)
		}
	}
}
