package filter

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/slipway-dev/slipway/internal/placement"
)

var reasonPorts = placement.Reason{Predicate: "NodePorts", Message: "host port is in use", Scheduler: "node(s) didn't have free ports for the requested pod ports"}

type hostPort struct {
	ip       string
	protocol corev1.Protocol
	port     int32
}

const anyIP = "0.0.0.0"

// listHostPorts lists the host ports of a pod's containers and of its sidecar (restartable init) containers.
func listHostPorts(spec *corev1.PodSpec) []hostPort {
	var ports []hostPort
	for i := range spec.InitContainers {
		if c := &spec.InitContainers[i]; ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways {
			ports = appendHostPorts(ports, c.Ports)
		}
	}
	for i := range spec.Containers {
		ports = appendHostPorts(ports, spec.Containers[i].Ports)
	}
	return ports
}

func appendHostPorts(ports []hostPort, list []corev1.ContainerPort) []hostPort {
	for i := range list {
		if p := &list[i]; p.HostPort > 0 {
			ports = append(ports, hostPort{cmp.Or(p.HostIP, anyIP), cmp.Or(p.Protocol, corev1.ProtocolTCP), p.HostPort})
		}
	}
	return ports
}

// areHostPortsFree implements the plugin NodePorts. A port is taken if protocol and number are in use on the same
// address. If one side binds all addresses, any address counts.
func (c *PodClass) areHostPortsFree(n *Node) bool {
	for _, want := range c.ports {
		if want.ip != anyIP {
			if n.ports[want] > 0 || n.ports[hostPort{anyIP, want.protocol, want.port}] > 0 {
				return false
			}
			continue
		}
		for used := range n.ports {
			if used.protocol == want.protocol && used.port == want.port {
				return false
			}
		}
	}
	return true
}
