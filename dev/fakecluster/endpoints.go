package fakecluster

import (
	"hash/fnv"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

var (
	services       = corev1.SchemeGroupVersion.WithResource("services")
	endpointSlices = discoveryv1.SchemeGroupVersion.WithResource("endpointslices")
)

// podAddress returns an address in 10.64.0.0/10 for a pod.
func podAddress(uid types.UID) string {
	sum := fnv.New32a()
	sum.Write([]byte(uid))
	n := sum.Sum(nil)
	return netip.AddrFrom4([4]byte{10, 64 | n[1]&63, n[2], n[3]}).String()
}

// reconcileService keeps one EndpointSlice with all pods that a Service selects.
func (c *Cluster) reconcileService(k objectKey, s *corev1.Service) {
	if len(s.Spec.Selector) == 0 {
		return
	}
	selector, isController := labels.SelectorFromSet(s.Spec.Selector), true
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: k.namespace, Name: k.name + "-endpoints",
			Labels: map[string]string{
				discoveryv1.LabelServiceName: k.name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: k.name, UID: s.UID, Controller: &isController}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	forEachObject(c, pods, func(_ objectKey, p *corev1.Pod) {
		if p.Namespace != k.namespace || p.Status.PodIP == "" || !selector.Matches(labels.Set(p.Labels)) {
			return
		}
		serving, terminating := isPodReady(p), p.DeletionTimestamp != nil
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{p.Status.PodIP}, NodeName: &p.Spec.NodeName,
			Conditions: discoveryv1.EndpointConditions{Ready: new(serving && !terminating), Serving: &serving, Terminating: &terminating},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
		})
	})
	key := objectKey{endpointSlices, slice.Namespace, slice.Name}
	before, ok := c.objects[key].(*discoveryv1.EndpointSlice)
	if !ok {
		_, _ = c.insertObject(endpointSlices, slice)
		return
	}
	if equality.Semantic.DeepEqual(before.Endpoints, slice.Endpoints) {
		return
	}
	after := before.DeepCopy()
	after.Endpoints = slice.Endpoints
	after.Generation++
	c.storeAndNotify(key, after)
}
