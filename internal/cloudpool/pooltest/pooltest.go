// Package pooltest creates machines of a pool and their Nodes for tests.
package pooltest

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
)

// NewUUID returns the ID of the test machine with number i.
func NewUUID(i int) string { return fmt.Sprintf("00000000-0000-0000-0000-%012d", i) }

// NewMachine returns the test machine with number i: an active, evictable member that was launched an hour ago. If ip
// is empty, the machine has no address.
func NewMachine(i int, state api.MachineState, ip string) api.Machine {
	launched := time.Now().Add(-time.Hour)
	m := api.Machine{
		ID: NewUUID(i), State: state, Membership: &api.MembershipStatus{Active: true, Evictable: true}, LaunchTime: &launched,
		Metadata: fmt.Appendf(nil, `{"name":"n%d"}`, i),
	}
	if ip != "" {
		m.PrivateIPs = []string{ip}
	}
	return m
}

// NewNode returns a Node with this provider ID and internal IP address. If ip is empty, the Node has no address.
func NewNode(name, providerID, ip string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: providerID}}
	if ip != "" {
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}}
	}
	return n
}
