package fakecluster

import (
	"cmp"
	"encoding/json"
	"hash/fnv"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/dev/controlplane"
)

const (
	// playInterval is the interval of the emulated kubelets and controllers, and so their maximum delay.
	playInterval = 100 * time.Millisecond
	// orphanedPodLifetime is how long the pods of a deleted Node stay until the pod garbage collector deletes them.
	orphanedPodLifetime = 20 * time.Second
)

var (
	nodes        = corev1.SchemeGroupVersion.WithResource("nodes")
	pods         = corev1.SchemeGroupVersion.WithResource("pods")
	leases       = coordinationv1.SchemeGroupVersion.WithResource("leases")
	statefulSets = appsv1.SchemeGroupVersion.WithResource("statefulsets")
	deployments  = appsv1.SchemeGroupVersion.WithResource("deployments")
	replicaSets  = appsv1.SchemeGroupVersion.WithResource("replicasets")
	pdbs         = policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets")
)

// runControllers runs the emulated kubelets, scheduler and controllers periodically, until the cluster is closed.
func (c *Cluster) runControllers() {
	tick := time.NewTicker(playInterval)
	defer tick.Stop()
	orphans := map[types.UID]time.Time{}
	last := int64(0)
	for {
		select {
		case <-c.closed:
			return
		case now := <-tick.C:
			c.mu.Lock()
			if before := c.version; before != last || len(c.stopTimes) > 0 || len(c.startTimes) > 0 || len(orphans) > 0 {
				last = before
				forEachObject(c, services, c.reconcileService) // a tick after the kubelets, as a controller that lags
				c.runKubeletsAndScheduler(now, orphans)
				forEachObject(c, autoscalers, c.reconcileAutoscaler)
				forEachObject(c, deployments, c.reconcileDeployment)
				forEachObject(c, replicaSets, c.reconcileReplicaSet)
				forEachObject(c, statefulSets, c.reconcileStatefulSet)
				forEachObject(c, pdbs, c.reconcilePDB)
			}
			c.mu.Unlock()
		}
	}
}

// forEachObject calls do with a copy of each object of a resource, in the order of their names.
func forEachObject[T client.Object](c *Cluster, resource schema.GroupVersionResource, do func(objectKey, T)) {
	var all []objectKey
	for k := range c.objects {
		if k.resource == resource {
			all = append(all, k)
		}
	}
	slices.SortFunc(all, func(a, b objectKey) int { return strings.Compare(a.namespace+"/"+a.name, b.namespace+"/"+b.name) })
	for _, k := range all {
		if o := c.objects[k]; o != nil {
			do(k, o.DeepCopyObject().(T))
		}
	}
}

// runKubeletsAndScheduler renews the Leases of nodes, schedules pods, and starts and stops their containers.
func (c *Cluster) runKubeletsAndScheduler(now time.Time, orphans map[types.UID]time.Time) {
	forEachObject(c, nodes, func(k objectKey, n *corev1.Node) {
		lease := objectKey{leases, corev1.NamespaceNodeLease, k.name}
		switch {
		case controlplane.IsPoweredOff(n):
			c.leaseRenewals[k.name] = 2 // the first renewal may fall into the moment of power-on
			return
		case c.leaseRenewals[k.name] > 0:
			c.leaseRenewals[k.name]--
		case c.objects[lease] != nil:
			return
		}
		renewed := metav1.NowMicro()
		delete(c.objects, lease)
		_, _ = c.insertObject(leases, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: lease.namespace, Name: k.name}, Spec: coordinationv1.LeaseSpec{RenewTime: &renewed},
		})
	})
	forEachObject(c, pods, func(k objectKey, p *corev1.Pod) {
		node, _ := c.objects[objectKey{resource: nodes, name: p.Spec.NodeName}].(*corev1.Node)
		switch {
		case p.Spec.NodeName == "":
			c.schedulePod(k, p)
		case node == nil:
			if orphans[p.UID].IsZero() {
				orphans[p.UID] = now
			} else if now.Sub(orphans[p.UID]) > orphanedPodLifetime {
				delete(orphans, p.UID)
				noGrace := int64(0)
				_, _ = c.deleteOrStartDeletion(k, metav1.DeleteOptions{GracePeriodSeconds: &noGrace})
			}
		case slices.ContainsFunc(node.Spec.Taints, isOutOfServiceTaint) && !isReady(node.Status.Conditions):
			noGrace := int64(0) // the pod garbage collector deletes without grace
			_, _ = c.deleteOrStartDeletion(k, metav1.DeleteOptions{GracePeriodSeconds: &noGrace})
		case controlplane.IsPoweredOff(node):
		case p.DeletionTimestamp != nil && !now.Before(c.stopTimes[p.UID]):
			endContainers(p, c.stopTimes[p.UID], now)
			c.storeAndNotify(k, p)
		case p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodPending && c.hasStarted(p, now):
			markPodReady(p)
			c.storeAndNotify(k, p)
		}
	})
	for uid, at := range c.startTimes {
		if now.After(at) { // its pod is Ready, or gone
			delete(c.startTimes, uid)
		}
	}
}

// hasStarted reports whether the containers of a bound pod have started. Without controlplane.StartSecondsAnnotation
// they start at once.
func (c *Cluster) hasStarted(p *corev1.Pod, now time.Time) bool {
	text := p.Annotations[controlplane.StartSecondsAnnotation]
	if text == "" {
		return true
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil { // controlplane.Never
		return false
	}
	if _, ok := c.startTimes[p.UID]; !ok {
		c.startTimes[p.UID] = now.Add(time.Duration(seconds * float64(time.Second)))
	}
	return !now.Before(c.startTimes[p.UID])
}

// setPodDefaults sets the fields that an API server sets in a new pod.
func setPodDefaults(p *corev1.Pod) {
	p.Status = corev1.PodStatus{Phase: corev1.PodPending}
	if p.Spec.TerminationGracePeriodSeconds == nil {
		p.Spec.TerminationGracePeriodSeconds = new(int64)
		*p.Spec.TerminationGracePeriodSeconds = corev1.DefaultTerminationGracePeriodSeconds
	}
}

// markPodReady sets the status of a bound pod to running and Ready.
func markPodReady(p *corev1.Pod) {
	p.Status.Phase, p.Status.StartTime = corev1.PodRunning, new(metav1.Now())
	p.Status.PodIP = podAddress(p.UID)
	p.Status.PodIPs = []corev1.PodIP{{IP: p.Status.PodIP}}
	p.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()},
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()},
	}
	for _, container := range p.Spec.Containers {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		})
	}
}

// endContainers sets the status of a pod's containers to terminated. The exit code tells whether they finished or
// were killed at the end of the grace period.
func endContainers(p *corev1.Pod, stopTime, now time.Time) {
	code := int32(0)
	if !stopTime.Before(p.DeletionTimestamp.Time) || now.Sub(stopTime) > 2*playInterval {
		code = killedExitCode
	}
	for i := range p.Status.ContainerStatuses {
		p.Status.ContainerStatuses[i].Ready = false
		p.Status.ContainerStatuses[i].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: code, FinishedAt: metav1.NewTime(now),
		}}
	}
}

const killedExitCode = 137

// startOrShortenTermination starts the termination of a pod. If the pod is terminating already, it only shortens the
// time that is left.
func (c *Cluster) startOrShortenTermination(p *corev1.Pod, grace *int64) {
	if grace == nil {
		grace = p.Spec.TerminationGracePeriodSeconds
	}
	stopTime := time.Now().Add(time.Duration(*grace) * time.Second)
	if seconds, err := strconv.ParseFloat(cmp.Or(p.Annotations[controlplane.StopSecondsAnnotation], "1"), 64); err == nil {
		if stops := time.Now().Add(time.Duration(seconds * float64(time.Second))); stops.Before(stopTime) {
			stopTime = stops
		}
	}
	if old, ok := c.stopTimes[p.UID]; !ok || stopTime.Before(old) {
		at := metav1.NewTime(time.Now().Add(time.Duration(*grace) * time.Second))
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, grace
		c.stopTimes[p.UID] = stopTime
	}
}

// hasStopped reports whether a deleted object may be removed. A pod must have no running container, unless its grace
// period is 0. Other objects may always be removed.
func (c *Cluster) hasStopped(o client.Object) bool {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return true
	}
	runs := func(s corev1.ContainerStatus) bool { return s.State.Terminated == nil }
	if p.Spec.NodeName != "" && *p.DeletionGracePeriodSeconds > 0 &&
		(time.Now().Before(c.stopTimes[p.UID]) || slices.ContainsFunc(p.Status.ContainerStatuses, runs)) {
		return false
	}
	delete(c.stopTimes, p.UID)
	return true
}

// schedulePod binds a pod to a node that is Ready and schedulable, and that the pod's node selector matches.
func (c *Cluster) schedulePod(k objectKey, p *corev1.Pod) {
	selector := labels.SelectorFromSet(p.Spec.NodeSelector)
	forEachObject(c, nodes, func(_ objectKey, node *corev1.Node) {
		takes := p.Spec.NodeName == "" && !node.Spec.Unschedulable && !slices.ContainsFunc(node.Spec.Taints, blocksScheduling) && isReady(node.Status.Conditions)
		if takes && selector.Matches(labels.Set(node.Labels)) {
			p.Spec.NodeName = node.Name
		}
	})
	if p.Spec.NodeName == "" {
		if len(p.Status.Conditions) > 0 {
			return
		}
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
		}}
	}
	c.storeAndNotify(k, p)
}

func blocksScheduling(t corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }

func isOutOfServiceTaint(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService }

func isReady(conditions []corev1.NodeCondition) bool {
	return slices.ContainsFunc(conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// countSelectedPods returns the number of pods that a selector matches, and how many of them are Ready. It ignores
// terminating pods.
func (c *Cluster) countSelectedPods(namespace string, labelSelector *metav1.LabelSelector) (all, healthy int32) {
	selector, err := metav1.LabelSelectorAsSelector(labelSelector)
	if err != nil {
		return 0, 0
	}
	for k, o := range c.objects {
		p, ok := o.(*corev1.Pod)
		if !ok || k.namespace != namespace || p.DeletionTimestamp != nil || !selector.Matches(labels.Set(p.Labels)) {
			continue
		}
		all++
		if p.Status.Phase == corev1.PodRunning {
			healthy++
		}
	}
	return all, healthy
}

// reconcileDeployment keeps one ReplicaSet of a Deployment's template at the size of the Deployment, and updates the
// Deployment's status. It sets the ReplicaSets of earlier templates to 0 at once.
func (c *Cluster) reconcileDeployment(k objectKey, d *appsv1.Deployment) {
	current, revisions := c.newReplicaSet(d), 0
	found := false
	forEachObject(c, replicaSets, func(key objectKey, rs *appsv1.ReplicaSet) {
		if !metav1.IsControlledBy(rs, d) {
			return
		}
		revisions++
		size := int32(0)
		if rs.Name == current.Name {
			found, size, current = true, *d.Spec.Replicas, rs
		}
		if *rs.Spec.Replicas != size {
			c.resize(key, rs, size)
		}
	})
	if !found {
		current.Annotations = map[string]string{revisionAnnotation: strconv.Itoa(revisions + 1)}
		_, _ = c.insertObject(replicaSets, current)
	}
	all, healthy := c.countSelectedPods(k.namespace, d.Spec.Selector)
	status := appsv1.DeploymentStatus{
		ObservedGeneration: d.Generation, Replicas: all, UpdatedReplicas: all, ReadyReplicas: healthy, AvailableReplicas: healthy,
		UnavailableReplicas: max(0, *d.Spec.Replicas-healthy),
	}
	if revision := current.Annotations[revisionAnnotation]; d.Annotations[revisionAnnotation] != revision || !equality.Semantic.DeepEqual(d.Status, status) {
		d.Annotations = maps.Clone(d.Annotations)
		metav1.SetMetaDataAnnotation(&d.ObjectMeta, revisionAnnotation, revision)
		d.Status = status
		c.storeAndNotify(k, d)
	}
}

// revisionAnnotation numbers the templates of a Deployment.
const revisionAnnotation = "deployment.kubernetes.io/revision"

// newReplicaSet returns the ReplicaSet of a Deployment's template. Its name depends only on the template.
func (c *Cluster) newReplicaSet(d *appsv1.Deployment) *appsv1.ReplicaSet {
	hash := hashTemplate(&d.Spec.Template)
	template, selector, replicas, isController := *d.Spec.Template.DeepCopy(), d.Spec.Selector.DeepCopy(), *d.Spec.Replicas, true
	template.Labels = withLabel(template.Labels, appsv1.DefaultDeploymentUniqueLabelKey, hash)
	selector.MatchLabels = withLabel(selector.MatchLabels, appsv1.DefaultDeploymentUniqueLabelKey, hash)
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: d.Namespace, Name: d.Name + "-" + hash, Labels: template.Labels,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: d.Name, UID: d.UID, Controller: &isController}},
		},
		Spec: appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: selector, Template: template},
	}
}

func hashTemplate(t *corev1.PodTemplateSpec) string {
	raw, err := json.Marshal(t)
	if err != nil {
		panic(err)
	}
	sum := fnv.New32a()
	sum.Write(raw)
	return strconv.FormatUint(uint64(sum.Sum32()), 36)
}

func withLabel(labels map[string]string, key, value string) map[string]string {
	out := map[string]string{key: value}
	maps.Copy(out, labels)
	return out
}

// reconcileReplicaSet creates the missing pods of a ReplicaSet, and deletes the pods that are too many in the order of the
// real controller.
func (c *Cluster) reconcileReplicaSet(k objectKey, rs *appsv1.ReplicaSet) {
	if owner := metav1.GetControllerOf(rs); owner != nil && c.objects[objectKey{deployments, k.namespace, owner.Name}] == nil {
		_, _ = c.deleteOrStartDeletion(k, metav1.DeleteOptions{})
		return
	}
	var active []*corev1.Pod
	ready := int32(0)
	forEachObject(c, pods, func(_ objectKey, p *corev1.Pod) {
		if metav1.IsControlledBy(p, rs) && p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			active = append(active, p)
			if isPodReady(p) {
				ready++
			}
		}
	})
	slices.SortFunc(active, compareForDeletion)
	for range int(*rs.Spec.Replicas) - len(active) {
		c.createReplicaPod(k, rs, "ReplicaSet", uuid.NewString()[:5], &rs.Spec.Template)
	}
	for _, p := range active[:max(0, len(active)-int(*rs.Spec.Replicas))] {
		_, _ = c.deleteOrStartDeletion(objectKey{pods, p.Namespace, p.Name}, metav1.DeleteOptions{})
	}
	status := appsv1.ReplicaSetStatus{
		Replicas: min(*rs.Spec.Replicas, int32(len(active))), FullyLabeledReplicas: min(*rs.Spec.Replicas, int32(len(active))),
		ReadyReplicas: ready, AvailableReplicas: ready, ObservedGeneration: rs.Generation,
	}
	if now := c.objects[k].DeepCopyObject().(*appsv1.ReplicaSet); !equality.Semantic.DeepEqual(now.Status, status) {
		now.Status = status
		c.storeAndNotify(k, now)
	}
}

// compareForDeletion orders the pods of a ReplicaSet: the first is deleted first
// (https://github.com/kubernetes/kubernetes/blob/v1.37.2/pkg/controller/controller_utils.go, ActivePodsWithRanks).
func compareForDeletion(a, b *corev1.Pod) int {
	rank := func(is bool) int {
		if is {
			return 1
		}
		return 0
	}
	cost := func(p *corev1.Pod) int {
		n, _ := strconv.Atoi(p.Annotations[corev1.PodDeletionCost])
		return n
	}
	return cmp.Or(
		rank(a.Spec.NodeName != "")-rank(b.Spec.NodeName != ""),
		rank(a.Status.Phase == corev1.PodRunning)-rank(b.Status.Phase == corev1.PodRunning),
		rank(isPodReady(a))-rank(isPodReady(b)),
		cmp.Compare(cost(a), cost(b)),
		b.CreationTimestamp.Compare(a.CreationTimestamp.Time),
		strings.Compare(a.Name, b.Name),
	)
}

func isPodReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// createReplicaPod creates a pod that belongs to the given owner.
func (c *Cluster) createReplicaPod(k objectKey, owner client.Object, kind, suffix string, template *corev1.PodTemplateSpec) {
	p := &corev1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
	p.Namespace, p.Name = k.namespace, k.name+"-"+suffix
	isController := true
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: k.name, UID: owner.GetUID(), Controller: &isController}}
	_, _ = c.insertObject(pods, p)
}

// reconcileStatefulSet creates the missing pods of a StatefulSet. It creates a pod only after the earlier pod of the
// same name was removed.
func (c *Cluster) reconcileStatefulSet(k objectKey, s *appsv1.StatefulSet) {
	for i := range *s.Spec.Replicas {
		if suffix := strconv.Itoa(int(i)); c.objects[objectKey{pods, k.namespace, k.name + "-" + suffix}] == nil {
			c.createReplicaPod(k, s, "StatefulSet", suffix, &s.Spec.Template)
		}
	}
	all, healthy := c.countSelectedPods(k.namespace, s.Spec.Selector)
	if now := s.Status; now.Replicas != all || now.ReadyReplicas != healthy || now.ObservedGeneration != s.Generation {
		s.Status = appsv1.StatefulSetStatus{ObservedGeneration: s.Generation, Replicas: all, ReadyReplicas: healthy}
		c.storeAndNotify(k, s)
	}
}

// reconcilePDB updates the status of a PodDisruptionBudget, such as the number of allowed disruptions.
func (c *Cluster) reconcilePDB(k objectKey, b *policyv1.PodDisruptionBudget) {
	status := c.computePDBStatus(k.namespace, b)
	if now := b.Status; now.CurrentHealthy != status.CurrentHealthy || now.ExpectedPods != status.ExpectedPods ||
		now.ObservedGeneration != status.ObservedGeneration || now.DisruptionsAllowed != status.DisruptionsAllowed {
		b.Status = status
		c.storeAndNotify(k, b)
	}
}

func (c *Cluster) computePDBStatus(namespace string, b *policyv1.PodDisruptionBudget) policyv1.PodDisruptionBudgetStatus {
	all, healthy := c.countSelectedPods(namespace, b.Spec.Selector)
	minAvailable := int32(0)
	if b.Spec.MinAvailable != nil {
		n, _ := intstr.GetScaledValueFromIntOrPercent(b.Spec.MinAvailable, int(all), true)
		minAvailable = int32(n)
	} else if b.Spec.MaxUnavailable != nil {
		n, _ := intstr.GetScaledValueFromIntOrPercent(b.Spec.MaxUnavailable, int(all), true)
		minAvailable = all - int32(n)
	}
	return policyv1.PodDisruptionBudgetStatus{
		ObservedGeneration: b.Generation, ExpectedPods: all, CurrentHealthy: healthy, DesiredHealthy: minAvailable,
		DisruptionsAllowed: max(0, healthy-minAvailable),
	}
}

// evictPodIfAllowed evicts the pod of a request if every PodDisruptionBudget of the pod allows the eviction.
func (c *Cluster) evictPodIfAllowed(r request) (any, error) {
	var eviction policyv1.Eviction
	raw, err := readBody(r)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, &eviction); err != nil {
		return nil, err
	}
	o, err := c.getObject(r.objectKey)
	if err != nil {
		return nil, err
	}
	pod, denied := o.(*corev1.Pod), error(nil)
	forEachObject(c, pdbs, func(k objectKey, b *policyv1.PodDisruptionBudget) {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || k.namespace != r.namespace || !selector.Matches(labels.Set(pod.Labels)) || pod.DeletionTimestamp != nil {
			return
		}
		if c.computePDBStatus(k.namespace, b).DisruptionsAllowed == 0 {
			refused := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
			refused.ErrStatus.Details.Causes = []metav1.StatusCause{{
				Type: policyv1.DisruptionBudgetCause, Message: "The disruption budget " + k.name + " needs more healthy pods",
			}}
			denied = refused
		}
	})
	if denied != nil {
		return nil, denied
	}
	var options metav1.DeleteOptions
	if eviction.DeleteOptions != nil {
		options = *eviction.DeleteOptions
	}
	if _, err := c.deleteOrStartDeletion(r.objectKey, options); err != nil {
		return nil, err
	}
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess, Code: http.StatusCreated,
	}, nil
}
