package surge

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/drainability/fromkubeapi"
	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// revisionAnnotation numbers the rollouts of a Deployment. The Deployment and its current ReplicaSet have the same
	// value.
	revisionAnnotation = "deployment.kubernetes.io/revision"
	// rolloutHashLabel is on each ReplicaSet of a Rollout.
	rolloutHashLabel = "rollouts-pod-template-hash"
	// openShiftGroup is the API group of a DeploymentConfig.
	openShiftGroup = "apps.openshift.io"
	// settleTries and settlePause limit how long a read waits until a controller has observed the owner's newest
	// generation.
	settleTries = 4
	settlePause = 500 * time.Millisecond
)

// owners are the controller of a pod and the object that sets the controller's size: a Deployment, a Rollout, or the controller
// itself.
type owners struct {
	// replicaSet is the controller: a ReplicaSet, or a ReplicationController or CloneSet, which choose the pod to delete in the same
	// order.
	replicaSet    *kubeapi.Workload
	replicaSetRef kubeapi.ObjectRef
	top           *kubeapi.Workload
	ref           kubeapi.ObjectRef // of top
}

// podControllers are the kinds of a pod's controller that delete the pod with the lowest deletion cost first, among those that are
// available:
//   - ReplicaSet and ReplicationController: ActivePodsWithRanks.Less of pkg/controller/controller_utils.go. The replication controller is
//     the ReplicaSet controller behind an adapter (pkg/controller/replication).
//   - CloneSet: ActivePodsWithRanks.Less of pkg/controller/cloneset/utils/pod_sorter.go.
var podControllers = []string{"ReplicaSet", "ReplicationController", "CloneSet"}

// isPodController reports whether the controller of a pod is of a kind in podControllers.
func isPodController(c *kubeapi.OwnerReference) bool {
	return slices.Contains(podControllers, c.Kind) && isSized(cmp.Or(c.APIVersion, "apps/v1"), c.Kind)
}

// refusal is the reason why a surge cannot start. It is an error, so that it can be returned from each step.
type refusal struct{ reason, detail string }

func (r *refusal) Error() string { return r.reason + ": " + r.detail }

func refuse(reason, format string, args ...any) error {
	return &refusal{reason: reason, detail: fmt.Sprintf(format, args...)}
}

// toRefusal turns the answer "forbidden" into a refusal that names what could not be done.
func toRefusal(what string, err error) error {
	if kubeapi.IsForbidden(err) {
		return refuse(ReasonNoRights, "cannot %s: %v", what, err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func controllerOf(m *kubeapi.ObjectMeta) *kubeapi.OwnerReference {
	return fromkubeapi.FindController(&kubeapi.Pod{ObjectMeta: *m})
}

// groupOf returns the API group of an apiVersion. The core group is empty.
func groupOf(apiVersion string) string {
	group, _, hasGroup := strings.Cut(apiVersion, "/")
	if !hasGroup {
		return ""
	}
	return group
}

// readOwners reads the pod's controller and the object that sets its size.
func (s *Surger) readOwners(ctx context.Context, pod *kubeapi.Pod) (owners, error) {
	c := fromkubeapi.FindController(pod)
	switch {
	case c == nil:
		return owners{}, refuse(ReasonOwnerKind, "the pod has no controller")
	case !isPodController(c):
		return owners{}, refuse(ReasonOwnerKind, "its owner is the %s %s: want a Deployment, ReplicaSet, ReplicationController, Rollout or CloneSet",
			c.Kind, c.Name)
	}
	ref := kubeapi.ObjectRef{APIVersion: c.APIVersion, Kind: c.Kind, Namespace: pod.Namespace, Name: c.Name}
	if c.Kind == "ReplicaSet" {
		ref.APIVersion = "apps/v1"
	}
	rs, err := s.readWorkload(ctx, ref, c.UID)
	if err != nil {
		return owners{}, err
	}
	o := owners{replicaSet: rs, replicaSetRef: ref, top: rs, ref: ref}
	above := controllerOf(&rs.ObjectMeta)
	if above == nil {
		return o, nil
	}
	if err := checkOwnerAbove(c.Kind, above); err != nil {
		return owners{}, err
	}
	o.ref = kubeapi.ObjectRef{APIVersion: above.APIVersion, Kind: above.Kind, Namespace: pod.Namespace, Name: above.Name}
	o.top, err = s.readWorkload(ctx, o.ref, above.UID)
	if err != nil {
		return owners{}, err
	}
	return o, nil
}

// checkOwnerAbove returns a refusal if a surge cannot raise the size of the owner above a pod's controller of this kind.
func checkOwnerAbove(kind string, above *kubeapi.OwnerReference) error {
	switch {
	case kind == "ReplicaSet" && (above.Kind == "Deployment" || above.Kind == "Rollout") && isSized(above.APIVersion, above.Kind):
		return nil
	case above.Kind == "DeploymentConfig" && groupOf(above.APIVersion) == openShiftGroup:
		return refuse(ReasonOwnerKind, "its %s belongs to the DeploymentConfig %s. Its scale subresource ignores resourceVersion and "+
			"records no field manager, so a surge could overwrite the size of another client", kind, above.Name)
	}
	return refuse(ReasonOwnerKind, "its %s belongs to the %s %s: want a ReplicaSet of a Deployment or Rollout, or no owner", kind, above.Kind, above.Name)
}

// readWorkload reads a workload that has the given UID.
func (s *Surger) readWorkload(ctx context.Context, ref kubeapi.ObjectRef, uid string) (*kubeapi.Workload, error) {
	w, err := call(ctx, func(ctx context.Context) (*kubeapi.Workload, error) { return s.api.GetWorkload(ctx, ref) })
	switch {
	case kubeapi.IsNotFound(err), err == nil && w.UID != uid:
		return nil, refuse(ReasonDeleting, "the %s %s of the pod no longer exists", ref.Kind, ref.Name)
	case err != nil:
		return nil, toRefusal(fmt.Sprintf("read %s %s/%s", ref.Kind, ref.Namespace, ref.Name), err)
	}
	return w, nil
}

// readSettledOwners reads the owners until their controller has observed the newest generation, for two seconds at
// most.
func (s *Surger) readSettledOwners(ctx context.Context, pod *kubeapi.Pod) (o owners, err error) {
	for range settleTries {
		if o, err = s.readOwners(ctx, pod); err != nil || o.isObserved() {
			return o, err
		}
		if !elapsed.Sleep(ctx, settlePause) {
			break
		}
	}
	return o, err
}

// isObserved reports whether the status of the object that sets the size is about its newest generation.
func (o owners) isObserved() bool {
	observed, err := strconv.ParseInt(strings.Trim(string(o.top.Status.ObservedGeneration), `"`), 10, 64)
	if err != nil && o.ref.Kind == "Rollout" {
		return true // old versions of Argo Rollouts store a hash
	}
	return err == nil && observed >= o.top.Generation
}

func (o owners) toOwner() Owner {
	return Owner{APIVersion: o.ref.APIVersion, Kind: o.ref.Kind, Namespace: o.ref.Namespace, Name: o.ref.Name, UID: o.top.UID}
}

// revision identifies the pod template that a workload rolls out. It changes when a rollout starts.
func revision(w *kubeapi.Workload) string {
	return w.Annotations[revisionAnnotation] + w.Status.CurrentPodHash + w.Status.UpdateRevision
}

// checkSteady returns a refusal if the owner is being deleted, is paused, is in the middle of a rollout, or removes pods in a way of its
// own.
func (o owners) checkSteady() error {
	top, name := o.top, o.ref.Kind+" "+o.ref.Name
	inRollout := refuse(ReasonRollout, "%s is in the middle of a rollout", name)
	switch {
	case top.DeletionTimestamp != nil || o.replicaSet.DeletionTimestamp != nil:
		return refuse(ReasonDeleting, "%s is being deleted", name)
	case top.Spec.Paused:
		return refuse(ReasonPaused, "%s is paused", name)
	case !o.isObserved():
		return inRollout
	}
	switch o.ref.Kind {
	case "Deployment":
		if o.replicaSet.Annotations[revisionAnnotation] != top.Annotations[revisionAnnotation] ||
			top.Status.UpdatedReplicas < top.Status.Replicas {
			return inRollout
		}
	case "Rollout":
		hash := top.Status.CurrentPodHash
		if top.Status.Abort || hash == "" || hash != top.Status.StableRS || hash != o.replicaSet.Labels[rolloutHashLabel] {
			return inRollout
		}
	case "CloneSet":
		// A CloneSet with pods of two revisions first chooses the revision of the pod that it deletes, by updateStrategy.partition.
		status := top.Status
		if status.UpdateRevision == "" || status.CurrentRevision != status.UpdateRevision || status.UpdatedReplicas < status.Replicas {
			return inRollout
		}
		if field, effect := findOwnRemoval(&top.Spec); field != "" {
			return refuse(ReasonOwnRemoval, "spec.%s of %s is set: %s", field, name, effect)
		}
	}
	return nil
}

// findOwnRemoval returns a field of a CloneSet with which a lower size does not simply delete the pod with the lowest deletion cost, and
// what happens instead. The field is empty if there is none.
func findOwnRemoval(s *kubeapi.WorkloadSpec) (field, effect string) {
	switch {
	case s.Lifecycle.PreDelete != nil:
		return "lifecycle.preDelete", "the hook decides when a pod is deleted"
	case len(s.VolumeClaimTemplates) > 0:
		return "volumeClaimTemplates", "a lower size also deletes the PersistentVolumeClaims of the pod"
	case len(s.ScaleStrategy.PodsToDelete) > 0:
		return "scaleStrategy.podsToDelete", "the CloneSet first deletes these pods"
	}
	for _, c := range s.Template.Spec.TopologySpreadConstraints {
		// If the surge fails with a successor that is Ready, only this order decides which of the two pods is deleted. All nodes have a
		// host name.
		if c.WhenUnsatisfiable != "DoNotSchedule" && c.TopologyKey != "kubernetes.io/hostname" {
			return "template.spec.topologySpreadConstraints", fmt.Sprintf("the CloneSet first deletes pods on nodes with the label %s, and with %s "+
				"the successor may be on a node without it", c.TopologyKey, c.WhenUnsatisfiable)
		}
	}
	return "", ""
}

// podState holds what is known of one pod of an owner.
type podState struct {
	uid, namespace, name, node string
	phase                      string
	created, readySince        time.Time
	// scheduled is when the pod was assigned to a node, or else when it was created. started is when its last start began:
	// scheduled, or the last restart of a container before the pod became Ready.
	scheduled, started time.Time
	ready, terminating bool
	// unschedulable is the scheduler's message if it found no node; empty otherwise.
	unschedulable string
	cost          int32
}

func (p podState) isActive() bool {
	return !p.terminating && p.phase != "Succeeded" && p.phase != "Failed"
}

// maxStartup is the longest plausible start. A pod that becomes Ready later was Ready before: its readiness probe failed for a
// while, or its node was unreachable.
const maxStartup = 30 * time.Minute

// startup returns how long the pod took to become Ready on its node. It returns false if that is unknown. The launch of an
// instance before does not count, because the next successor may find room at once.
func (p podState) startup() (took time.Duration, known bool) {
	took = p.readySince.Sub(p.started)
	return took, p.ready && !p.started.IsZero() && took >= 0 && took <= maxStartup
}

func toPodState(p *kubeapi.Pod) podState {
	since, ready := p.ReadyTime()
	out := podState{
		uid: p.UID, namespace: p.Namespace, name: p.Name, node: p.Spec.NodeName, phase: p.Status.Phase,
		created: p.CreationTimestamp, scheduled: p.CreationTimestamp, readySince: since, ready: ready, terminating: p.DeletionTimestamp != nil,
	}
	for _, c := range p.Status.Conditions {
		switch {
		case c.Type != "PodScheduled":
		case c.Status == "True" && !c.LastTransitionTime.IsZero():
			out.scheduled = c.LastTransitionTime
		case c.Status == "False" && c.Reason == "Unschedulable":
			out.unschedulable = cmp.Or(c.Message, "no message")
		}
	}
	out.started = out.scheduled
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		// A restart after that did not end the readiness of the pod.
		if r := c.State.Running; r != nil && c.RestartCount > 0 && r.StartedAt.After(out.started) && !r.StartedAt.After(since) {
			out.started = r.StartedAt
		}
	}
	// The controller takes a value that is not an int32 for 0.
	if cost, err := strconv.ParseInt(p.Annotations[DeletionCostAnnotation], 10, 32); err == nil {
		out.cost = int32(cost)
	}
	return out
}

// volatileLabels differ between the pods of one owner.
var volatileLabels = []string{
	"statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index", "batch.kubernetes.io/job-completion-index",
	"apps.kruise.io/cloneset-instance-id",
	"topology.kubernetes.io/zone", "topology.kubernetes.io/region", // of the pod's node, since Kubernetes 1.35
}

// siblingSelector selects the pods of the pod's owner, and perhaps others.
func siblingSelector(pod *kubeapi.Pod, rs *kubeapi.Workload) (string, error) {
	if rs != nil {
		selector, err := rs.Spec.Selector.ToSelector()
		if err != nil {
			return "", fmt.Errorf("controller %s/%s: spec.selector: %w", rs.Namespace, rs.Name, err)
		}
		return selector.String(), nil
	}
	var parts []string
	for k, v := range pod.Labels {
		if !slices.Contains(volatileLabels, k) {
			parts = append(parts, k+"="+v)
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, ","), nil
}

// listSiblings lists the pods that have the same controller as the pod, with the pod itself. rs is its controller, or
// nil if the kind of its controller is not in podControllers.
func (s *Surger) listSiblings(ctx context.Context, pod *kubeapi.Pod, rs *kubeapi.Workload) ([]podState, error) {
	c := fromkubeapi.FindController(pod)
	selector, err := siblingSelector(pod, rs)
	if err != nil || c == nil {
		return nil, err
	}
	pods, err := call(ctx, func(ctx context.Context) ([]kubeapi.Pod, error) { return s.api.ListPods(ctx, pod.Namespace, selector) })
	if err != nil {
		return nil, toRefusal(fmt.Sprintf("list the pods of %s %s/%s", c.Kind, pod.Namespace, c.Name), err)
	}
	var out []podState
	for i := range pods {
		if other := fromkubeapi.FindController(&pods[i]); other != nil && other.UID == c.UID {
			out = append(out, toPodState(&pods[i]))
		}
	}
	return out, nil
}

// countReadyBeside counts the ready pods except for the one with the given UID.
func countReadyBeside(pods []podState, uid string) int {
	n := 0
	for _, p := range pods {
		if p.isActive() && p.ready && p.uid != uid {
			n++
		}
	}
	return n
}

// countOnNode counts the pods on a node that do not leave yet.
func countOnNode(pods []podState, node string) int {
	n := 0
	for _, p := range pods {
		if p.isActive() && p.node == node {
			n++
		}
	}
	return n
}

// maxNodeReads limits how many nodes are read to find a pod that stays. An owner may have a pod on each node.
const maxNodeReads = 16

// findStayingPods returns one or two ready pods on other nodes that are not being drained, or none. A pod on a node that is being drained
// may leave at the same time as this one. leavingNodes are nodes with ready pods that may leave.
func (s *Surger) findStayingPods(ctx context.Context, pods []podState, node string) (staying []podState, leavingNodes []string, err error) {
	byNode := map[string][]podState{}
	for _, p := range pods {
		if p.isActive() && p.ready && p.node != node {
			byNode[p.node] = append(byNode[p.node], p)
		}
	}
	nodes := slices.Collect(maps.Keys(byNode))
	rand.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] }) // the drained nodes are perhaps neighbours
	for _, name := range nodes[:min(len(nodes), maxNodeReads)] {
		n, err := call(ctx, func(ctx context.Context) (*kubeapi.Node, error) { return s.api.GetNode(ctx, name) })
		switch {
		case err == nil && !isNodeLeaving(n):
			if staying = append(staying, byNode[name]...); len(staying) > 1 {
				return staying[:2], nil, nil
			}
			continue
		case err != nil && !kubeapi.IsNotFound(err):
			return nil, nil, toRefusal("read node "+name, err)
		}
		leavingNodes = append(leavingNodes, name)
	}
	slices.Sort(leavingNodes)
	return staying, leavingNodes, nil
}

// isNodeLeaving reports whether the pods of a node may leave now: a person or a tool has cordoned it or is removing it.
func isNodeLeaving(n *kubeapi.Node) bool {
	claims, _ := cordon.ListRecords(n)
	return n.DeletionTimestamp != nil || n.Spec.Unschedulable || len(claims) > 0 || len(cordon.RemovingTools(n)) > 0
}
