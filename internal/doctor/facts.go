package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// Reading names one kind of data that the doctor reads from the cluster.
type Reading string

const (
	nodesReading          Reading = "nodes"
	podsReading           Reading = "pods"
	pdbsReading           Reading = "disruption budgets"
	deploymentsReading    Reading = "deployments"
	statefulSetsReading   Reading = "stateful sets"
	daemonSetsReading     Reading = "daemon sets"
	nodeLeasesReading     Reading = "leases of nodes"
	leaderLeasesReading   Reading = "leases of managers"
	toolConfigMapsReading Reading = "config maps of other tools"
	apiGroupsReading      Reading = "API groups"
	crdsReading           Reading = "custom resource definitions"
	nodeGroupsReading     Reading = "node groups"
	partAccessReading     Reading = "rights of service accounts"
	callerAccessReading   Reading = "rights of the caller"
	metricsReading        Reading = "metrics of agents"
	clockReading          Reading = "clock of the API server"
)

// Facts holds everything that the doctor has read from a cluster. The objects must not be changed.
type Facts struct {
	// Server is the version of the API server.
	Server string
	// Clock compares the API server's clock with the local clock.
	Clock Clock

	Nodes        []*corev1.Node
	Pods         []*corev1.Pod
	PDBs         []*policyv1.PodDisruptionBudget
	Deployments  []*appsv1.Deployment
	StatefulSets []*appsv1.StatefulSet
	DaemonSets   []*appsv1.DaemonSet
	// NodeLeases are the Leases of kubelets, by node name.
	NodeLeases map[string]*coordinationv1.Lease
	// LeaderLeases are the existing Leases of managers.
	LeaderLeases map[Key]*coordinationv1.Lease
	// ToolConfigMaps are the existing ConfigMaps that identify other tools.
	ToolConfigMaps map[Key]bool
	// APIGroups are the names of the served API groups.
	APIGroups []string
	// CRDs are the existing CRDs of Slipway, by name.
	CRDs map[string]*unstructured.Unstructured
	// NodeGroups is nil if the API server does not serve them.
	NodeGroups []v1alpha1.NodeGroup
	// PartAccess says which permissions the accounts of the parts have.
	PartAccess []PermissionCheck
	// CallerAccess says which permissions the caller has, beyond those needed here.
	CallerAccess []PermissionCheck
	// LastReads says when the agents in these pods last read the notices, if they were queried.
	LastReads map[Key]LastRead

	// ReadErrors holds the errors of failed readings.
	ReadErrors map[Reading]error

	parts []Part // cache of Parts
}

// Key is the namespace and name of an object.
type Key struct{ Namespace, Name string }

// Clock holds the times of the API server's clock and the local clock at one moment.
type Clock struct {
	Server, Local time.Time
	// MaxError is the largest error of the difference, in both directions.
	MaxError time.Duration
}

// PermissionCheck is the result of checking whether an account has a permission.
type PermissionCheck struct {
	Part       Part
	Permission Permission
	Allowed    bool
}

// LastRead is the time when an agent last read its notices.
type LastRead struct {
	Source string    // the source of notices; empty if the agent names none
	At     time.Time // zero means never
	Err    error     // the agent could not be queried
}

// ofSource returns the source for a message, or "".
func (l LastRead) ofSource() string {
	if l.Source == "" {
		return ""
	}
	return " of " + l.Source
}

// listFailedReadings returns the names of those readings in needs that failed.
func (f *Facts) listFailedReadings(needs []Reading) []string {
	var names []string
	for _, n := range needs {
		if err := f.ReadErrors[n]; err != nil {
			names = append(names, string(n))
		}
	}
	return names
}

// findConnectionError returns an error if every request failed without an answer or with rejected credentials. It
// returns nil if any request got another answer.
func (f *Facts) findConnectionError() error {
	for _, reading := range []Reading{
		nodesReading, podsReading, pdbsReading, deploymentsReading, statefulSetsReading, daemonSetsReading, nodeLeasesReading, apiGroupsReading, nodeGroupsReading,
		crdsReading,
	} {
		var silent *url.Error
		if err := f.ReadErrors[reading]; !errors.As(err, &silent) && !apierrors.IsUnauthorized(err) {
			return nil
		}
	}
	return f.ReadErrors[nodesReading]
}

// serverTime returns the API server's time. It returns the local time if the API server's time is unknown.
func (f *Facts) serverTime() time.Time {
	if f.Clock.Server.IsZero() {
		return f.Clock.Local
	}
	return f.Clock.Server
}

// checkFailedReadings finds readings that failed. It ignores readings that failed because of a missing permission.
func checkFailedReadings(f *Facts) []Finding {
	var found []Finding
	for reading, err := range f.ReadErrors {
		if err == nil || apierrors.IsForbidden(err) || reading == metricsReading {
			continue
		}
		found = append(found, Finding{
			Severity: Problem, Message: fmt.Sprintf("the %s could not be read: %v", reading, err),
			Remedy: "try again; if it fails again, check the API server: kubectl get --raw '/readyz?verbose'",
		})
	}
	slices.SortFunc(found, func(a, b Finding) int { return cmp.Compare(a.Message, b.Message) })
	return found
}
