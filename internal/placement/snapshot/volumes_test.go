package snapshot_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/placementtest"
	"github.com/slipway-dev/slipway/internal/placement/planner"
	"github.com/slipway-dev/slipway/internal/placement/snapshot"
	"github.com/slipway-dev/slipway/internal/testing/check"
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

// TestExistingVolumesMatterOnlyWhereNoneIsProvisioned has a class with a volume of another claim, as the second replica of a
// StatefulSet finds it.
func TestExistingVolumesMatterOnlyWhereNoneIsProvisioned(t *testing.T) {
	inZones := func(zones ...string) []corev1.TopologySelectorTerm {
		return []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: corev1.LabelTopologyZone, Values: zones}}}}
	}
	for name, tc := range map[string]struct {
		provisioner string
		topologies  []corev1.TopologySelectorTerm
		isEmpty     bool // the class has no volume
		want        string
	}{
		"provisioned for every node":            {provisioner: "csi.example.com", want: "fits"},
		"provisioned for this zone":             {provisioner: "csi.example.com", topologies: inZones("zone-b", "zone-a"), want: "fits"},
		"provisioned for this zone by one term": {provisioner: "csi.example.com", topologies: append(inZones("zone-b"), inZones("zone-a")...), want: "fits"},
		"provisioned for another zone": {
			provisioner: "csi.example.com", topologies: inZones("zone-b"),
			want: "undecidable: unbound claim data of storage class disk: an existing volume may be bound to it",
		},
		"provisioned for another zone, without volumes": {provisioner: "csi.example.com", topologies: inZones("zone-b"), isEmpty: true, want: "blocked: no volume for an unbound claim"},
		"provisioned for no node, by an empty term":     {provisioner: "csi.example.com", topologies: []corev1.TopologySelectorTerm{{}}, isEmpty: true, want: "blocked: no volume for an unbound claim"},
		"not provisioned": {
			provisioner: "kubernetes.io/no-provisioner",
			want:        "undecidable: unbound claim data of storage class disk: an existing volume may be bound to it",
		},
		"not provisioned, without volumes": {provisioner: "kubernetes.io/no-provisioner", isEmpty: true, want: "blocked: no volume for an unbound claim"},
	} {
		t.Run(name, func(t *testing.T) {
			c, p := newClusterWithClaim("")
			c.StorageClasses[0].Provisioner, c.StorageClasses[0].AllowedTopologies = tc.provisioner, tc.topologies
			if !tc.isEmpty {
				v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "volume"}}
				v.Spec.StorageClassName, v.Spec.ClaimRef = "disk", &corev1.ObjectReference{Namespace: "default", Name: "other"}
				c.Volumes = append(c.Volumes, v)
			}
			checkVerdict(t, c, p, tc.want)
		})
	}
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
			check.Not(t, err != nil || !strings.HasPrefix(v.String(), c.want), "%s, %v; want %s", v, err, c.want)
		})
	}
}

// newNominatedPod returns a pending pod that the scheduler has nominated to a node.
func newNominatedPod(node string, priority int32, cpu int64) *corev1.Pod {
	p := placementtest.NewPod("urgent", 0, "", cpu, 128)
	p.Spec.Priority, p.Status.NominatedNodeName = &priority, node
	return p
}

func TestNominatedPodsReserveRoom(t *testing.T) {
	priority := int32(5)
	cases := map[string]struct {
		nominated *corev1.Pod
		want      string
	}{
		"higher priority":             {newNominatedPod("second", 6, 3500), "blocked: insufficient cpu beside nominated pods"},
		"same priority":               {newNominatedPod("second", 5, 3500), "blocked: insufficient cpu beside nominated pods"},
		"lower priority":              {newNominatedPod("second", 4, 3500), "fits"},
		"leaves enough room":          {newNominatedPod("second", 6, 3000), "fits"},
		"nominated to another node":   {newNominatedPod("first", 6, 3500), "fits"},
		"nominated to a deleted node": {newNominatedPod("third", 6, 3500), "fits"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			cluster := placementtest.NewTwoNodeCluster()
			cluster.Pods = append(cluster.Pods, c.nominated)
			s, err := cluster.BuildSnapshot()
			must.NoError(t, err)
			p := placementtest.NewPod("new", 0, "", 1000, 128)
			p.Spec.Priority = &priority
			if v, err := s.JudgeNewPod(p, "second"); err != nil || v.String() != c.want {
				t.Errorf("%s, %v; want %s", v, err, c.want)
			}
			if v, err := s.JudgeRecreatedPod(placement.PodKey{Namespace: "default", Name: "urgent-0"}, "second"); err != nil || v.Outcome != placement.Fits {
				t.Errorf("the nominated pod is counted against itself: %s, %v", v, err)
			}
			bound := c.nominated.DeepCopy()
			bound.Spec.NodeName = "first"
			must.NoError(t, s.SetPod(bound))
			if v, err := s.JudgeNewPod(p, "second"); err != nil || v.Outcome != placement.Fits {
				t.Errorf("a pod bound to another node still counts: %s, %v", v, err)
			}
		})
	}
}

func TestPlansReserveRoomForNominatedPods(t *testing.T) {
	s, err := placementtest.NewTwoNodeCluster().BuildSnapshot() // its only pod can move from first to second
	must.NoError(t, err)
	for _, want := range []bool{true, false} {
		e, err := planner.PlanEvacuation(s, "first", planner.LeastDisruption, planner.Options{})
		if err != nil || e.IsFeasible() != want {
			t.Fatalf("moves %v, refusals %v, %v; want feasible %t", e.Moves, e.Refusals, err, want)
		}
		if !want && !strings.Contains(e.Refusals[0].Nodes.String(), "beside nominated pods") {
			t.Errorf("refusals %v", e.Refusals)
		}
		must.NoError(t, s.SetPod(newNominatedPod("second", 1, 3800)))
	}
}

func TestNominatedPodsArePlacedOnNominatedNode(t *testing.T) {
	cluster := placementtest.NewTwoNodeCluster()
	cluster.Pods = append(cluster.Pods, newNominatedPod("second", 1, 1000))
	s, err := cluster.BuildSnapshot()
	must.NoError(t, err)
	packing, err := planner.PackPods(s, nil, nil, planner.LeastWaste)
	check.Not(t, err != nil || len(packing.Moves) != 1 || packing.Moves[0].To != "second", "%+v, %v", packing, err)
}

func TestRemovedPodsHaveNoNomination(t *testing.T) {
	cluster := placementtest.NewTwoNodeCluster()
	cluster.Pods = append(cluster.Pods, newNominatedPod("second", 1, 3500))
	s, err := cluster.BuildSnapshot()
	must.NoError(t, err)
	fork := s.Fork()
	defer fork.Rollback()
	urgent := placement.PodKey{Namespace: "default", Name: "urgent-0"}
	must.NoError(t, fork.MovePod(urgent, "first"))
	fork.RemovePod(s.Pod(urgent))
	if v, err := s.JudgeNewPod(placementtest.NewPod("new", 0, "", 1000, 128), "second"); err != nil || v.Outcome != placement.Fits {
		t.Errorf("%s, %v; want fits", v, err)
	}
}

// TestResizedPodOfUnknownNodeIsRecreated has a pod that uses 3 CPUs in place and requests half a CPU.
func TestResizedPodOfUnknownNodeIsRecreated(t *testing.T) {
	c := placementtest.NewTwoNodeCluster()
	p := placementtest.NewPod("resized", 0, "third", 500, 128)
	more := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3"), corev1.ResourceMemory: resource.MustParse("128Mi")}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "main", Resources: &corev1.ResourceRequirements{Requests: more}, AllocatedResources: more,
	}}
	c.Pods = append(c.Pods, p)
	s, err := c.BuildSnapshot()
	must.NoError(t, err)
	judge := func(when, node string, want placement.Outcome) {
		t.Helper()
		v, err := s.JudgeNewPod(placementtest.NewPod("new", 0, "", 3000, 128), node)
		check.Not(t, err != nil || v.Outcome != want, "%s: %s, %v; want %s", when, v, err, want)
	}
	fork := s.Fork()
	must.NoError(t, fork.MovePod(placement.PodKey{Namespace: "default", Name: "resized-0"}, "second"))
	judge("where a plan has moved it", "second", placement.Fits)
	fork.Rollback()
	must.NoError(t, s.SetNode(placementtest.NewNode("third", "zone-a", 4, 16, 10)))
	judge("where it is", "third", placement.Blocked)
}
