package filter

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

const gatesPredicate = "SchedulingGates"

// compileSchedulingGates implements the plugin SchedulingGates: no node is considered while the pod has gates.
func (c *PodClass) compileSchedulingGates(gates []corev1.PodSchedulingGate) {
	if len(gates) == 0 {
		return
	}
	names := make([]string, len(gates))
	for i, g := range gates {
		names[i] = g.Name
	}
	text := fmt.Sprintf("waiting for scheduling gates: %v", names)
	c.setRefusal(gatesPredicate, text, text)
}
