package saved

import corev1 "k8s.io/api/core/v1"

func newSet(names ...string) map[string]bool {
	m := make(map[string]bool, len(names))
	for _, name := range names {
		m[name] = true
	}
	return m
}

// knownKeys are keys of labels and taints that do not reveal the owner of a cluster.
var knownKeys = newSet(
	"", corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaZone,
	corev1.LabelFailureDomainBetaRegion, corev1.LabelInstanceType, corev1.LabelInstanceTypeStable, corev1.LabelOSStable,
	corev1.LabelArchStable, corev1.LabelWindowsBuild, corev1.LabelMetadataName,
	"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master",
	"kubernetes.azure.com/agentpool", "eks.amazonaws.com/nodegroup", "eks.amazonaws.com/compute-type", "cloud.google.com/gke-nodepool", "karpenter.sh/nodepool",
	"app", "component", "tier", "k8s-app", "pod-template-hash", "controller-revision-hash", "pod-template-generation",
	"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component", "app.kubernetes.io/part-of",
	"app.kubernetes.io/version", "app.kubernetes.io/managed-by",
	"statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index", "job-name", "controller-uid",
	"leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-index", "leaderworkerset.sigs.k8s.io/group-key",
	"jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/replicatedjob-name", "jobset.sigs.k8s.io/job-index",
	"batch.kubernetes.io/job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-completion-index",
	corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeUnschedulable, corev1.TaintNodeMemoryPressure,
	corev1.TaintNodeDiskPressure, corev1.TaintNodeNetworkUnavailable, corev1.TaintNodePIDPressure,
	corev1.TaintNodeOutOfService, "node.cloudprovider.kubernetes.io/uninitialized", "node.cloudprovider.kubernetes.io/shutdown",
	"DeletionCandidateOfClusterAutoscaler", "type", "kubernetes.azure.com/scalesetpriority", "nvidia.com/gpu",
	"CriticalAddonsOnly",
)

// knownValues are values of labels and taints that do not reveal the owner of a cluster.
var knownValues = newSet("", "true", "false", "linux", "windows", "amd64", "arm64", "kube-apiserver", "virtual-kubelet", "fargate")

// knownDrivers are the CSI drivers that replaced volume plugins of Kubernetes.
var knownDrivers = newSet(
	"ebs.csi.aws.com", "pd.csi.storage.gke.io", "disk.csi.azure.com", "file.csi.azure.com", "cinder.csi.openstack.org",
	"pxd.portworx.com",
)

// knownOwners are the kinds of controllers that every cluster has.
var knownOwners = newSet(
	"", "DaemonSet", "Node", "ReplicaSet", "StatefulSet", "Deployment", "Job", "CronJob", "ReplicationController", "Pod",
)

// knownAddresses are addresses that every host has.
var knownAddresses = newSet("", "0.0.0.0", "127.0.0.1", "::", "::1")
