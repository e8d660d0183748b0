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

// Reading is one thing that is read of the cluster.
type Reading string

const (
	readNodes        Reading = "nodes"
	readPods         Reading = "pods"
	readBudgets      Reading = "disruption budgets"
	readDeployments  Reading = "deployments"
	readStatefulSets Reading = "stateful sets"
	readDaemonSets   Reading = "daemon sets"
	readNodeLeases   Reading = "leases of nodes"
	readLeaderLeases Reading = "leases of managers"
	readMarks        Reading = "config maps of other tools"
	readGroups       Reading = "API groups"
	readCRDs         Reading = "custom resource definitions"
	readNodeGroups   Reading = "node groups"
	readAccess       Reading = "rights of service accounts"
	readCaller       Reading = "rights of the caller"
	readMetrics      Reading = "metrics of agents"
	readClock        Reading = "clock of the API server"
)

// Facts is what was read of a cluster. Objects are not changed.
type Facts struct {
	// Server is the API server's version.
	Server string
	// Clock holds the API server's clock against the one here.
	Clock Clock

	Nodes        []*corev1.Node
	Pods         []*corev1.Pod
	Budgets      []*policyv1.PodDisruptionBudget
	Deployments  []*appsv1.Deployment
	StatefulSets []*appsv1.StatefulSet
	DaemonSets   []*appsv1.DaemonSet
	// NodeLeases are those by which kubelets show that they live, by the node's name.
	NodeLeases map[string]*coordinationv1.Lease
	// LeaderLeases are those of managers that are there.
	LeaderLeases map[Key]*coordinationv1.Lease
	// Marks are the ConfigMaps that are there of those by which other tools are known.
	Marks map[Key]bool
	// Groups are the names of the API groups that are served.
	Groups []string
	// CRDs are Slipway's own definitions that are there, by name.
	CRDs map[string]*unstructured.Unstructured
	// NodeGroups are nil where the API server does not serve them.
	NodeGroups []v1alpha1.NodeGroup
	// Access is what the parts' accounts may and may not.
	Access []Access
	// Caller is what the caller may and may not beyond what is read here.
	Caller []Access
	// LastRead is when the agents in these pods last read the notices, as far as they were asked.
	LastRead map[Key]LastRead

	// Unread is why a thing could not be read.
	Unread map[Reading]error

	parts []Part // as found once
}

// Key names an object of a namespace.
type Key struct{ Namespace, Name string }

// Clock is what two clocks showed at one moment.
type Clock struct {
	Server, Here time.Time
	// Error is by how much the difference may be off, either way.
	Error time.Duration
}

// Access is the answer to whether an account has a right.
type Access struct {
	Part    Part
	Right   Right
	Allowed bool
}

// LastRead is what an agent said of its last look at the notices.
type LastRead struct {
	At  time.Time // zero is never
	Err error     // it could not be asked
}

// missing lists which of the readings are not there.
func (f *Facts) missing(needs []Reading) []string {
	var names []string
	for _, n := range needs {
		if err := f.Unread[n]; err != nil {
			names = append(names, string(n))
		}
	}
	return names
}

// unseen is why the cluster was not seen at all: its API server did not answer once, or did not know who asks. Nil where it had
// anything else to say.
func (f *Facts) unseen() error {
	for _, reading := range []Reading{
		readNodes, readPods, readBudgets, readDeployments, readStatefulSets, readDaemonSets, readNodeLeases, readGroups, readNodeGroups,
		readCRDs,
	} {
		var silent *url.Error
		if err := f.Unread[reading]; !errors.As(err, &silent) && !apierrors.IsUnauthorized(err) {
			return nil
		}
	}
	return f.Unread[readNodes]
}

// now is the time by the API server's clock; by the one here where that is not known.
func (f *Facts) now() time.Time {
	if f.Clock.Server.IsZero() {
		return f.Clock.Here
	}
	return f.Clock.Server
}

// unreadable tells of what could not be read for another reason than a right.
func unreadable(f *Facts) []Finding {
	var found []Finding
	for reading, err := range f.Unread {
		if err == nil || apierrors.IsForbidden(err) || reading == readMetrics {
			continue
		}
		found = append(found, Finding{
			Severity: Problem, Message: fmt.Sprintf("the %s could not be read: %v", reading, err),
			Remedy: "try again; if it stays so, see what the API server says about itself: kubectl get --raw '/readyz?verbose'",
		})
	}
	slices.SortFunc(found, func(a, b Finding) int { return cmp.Compare(a.Message, b.Message) })
	return found
}
