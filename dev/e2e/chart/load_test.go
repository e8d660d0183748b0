package chart_test

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
)

// crew contains the pods of the load. An instance of 16 cores has room for 15 of them beside its agent.
var crew = workload.App{
	Namespace: crowd.Name, Name: "crew", Replicas: 20, CPU: resource.MustParse("1"), StopSeconds: "0.1",
	NodeSelector: map[string]string{"kubernetes.azure.com/agentpool": crowd.Name},
}

// crewMachines is the number of instances that the pods need, and mostMachines is one more. The manager can request the
// first instance before all pods exist.
const (
	crewMachines = 2
	mostMachines = crewMachines + 1
)

// load is the third chapter. Unschedulable pods arrive, and the manager requests instances from Azure for them. Then
// the pods end, and a retirement removes each instance.
func (s *story) load() {
	crewed, others := s.machines()
	if len(crewed) > 0 {
		s.t.Fatalf("%d machines are there before any pod wants one", len(crewed))
	}
	s.check(workload.CreateAndAwait(s.ctx, s.Client(), workload.NewNamespace(crew.Namespace), crew.Deployment()))
	crewed, _ = s.machines()
	if n := len(crewed); n < crewMachines || n > mostMachines {
		s.t.Errorf("%d machines of 16 cores run %d pods of one core each, want %d", n, crew.Replicas, crewMachines)
	}
	for _, vm := range crewed {
		if want := crowd.Node(0).Labels[corev1.LabelInstanceTypeStable]; vm.Size != want {
			s.t.Errorf("machine %s is a %s, want %s", vm.Resource, vm.Size, want)
		}
	}
	s.told(crew, "LaunchRequested")
	nodes := s.crewedNodes()
	s.check(s.Client().AppsV1().Deployments(crew.Namespace).Delete(s.ctx, crew.Name, metav1.DeleteOptions{}))
	for _, node := range nodes {
		if rt := s.retired(node); rt.Spec.Reason != v1alpha1.Underutilized {
			s.t.Errorf("%s was retired for %s, want Underutilized", node, rt.Spec.Reason)
		}
	}
	s.check(testbed.PollUntil(s.ctx, "no machine is left, and none is meant to be there", func() bool {
		left, _ := s.machines()
		return len(left) == 0 && s.ARM.Capacity(crowd.ScaleSetName()) == 0
	}))
	if _, stayed := s.machines(); !slices.Equal(others, stayed) {
		s.t.Errorf("the machines of other pools were %q, and are %q", others, stayed)
	}
}

// machines returns the instances of pool crowd, and the names of instances in other pools. Its source is the emulated
// Azure.
func (s *story) machines() (crewed []azure.VM, others []string) {
	for _, vm := range s.ARM.VMs() {
		if strings.EqualFold(vm.ScaleSet, crowd.ScaleSetName()) {
			crewed = append(crewed, vm)
		} else {
			others = append(others, vm.Resource)
		}
	}
	return crewed, others
}

// crewedNodes returns the nodes with pods of the crew.
func (s *story) crewedNodes() (nodes []string) {
	s.t.Helper()
	pods, err := s.Client().CoreV1().Pods(crew.Namespace).List(s.ctx, metav1.ListOptions{})
	s.check(err)
	for _, pod := range pods.Items {
		if !slices.Contains(nodes, pod.Spec.NodeName) {
			nodes = append(nodes, pod.Spec.NodeName)
		}
	}
	return nodes
}

// told waits until a pod of an app has an Event with this reason.
func (s *story) told(app workload.App, reason string) {
	s.t.Helper()
	s.check(testbed.PollUntil(s.ctx, fmt.Sprintf("a pod of %s is told %s", app.Name, reason), func() bool {
		list, err := s.Client().EventsV1().Events(app.Namespace).List(s.ctx, metav1.ListOptions{FieldSelector: "regarding.kind=Pod,reason=" + reason})
		s.check(err)
		return len(list.Items) > 0
	}))
}
