//go:build !linux

package controlplane

import (
	"context"
	"fmt"
	"sync"
)

// reservedPorts holds the ports that this process has found.
var reservedPorts sync.Map

// reservePort reserves a port within this process. Another process may find the same port, with a chance of one in
// thousands, because only Linux has sockets without files.
func reservePort(_ context.Context, port int) (release func(), err error) {
	if _, taken := reservedPorts.LoadOrStore(port, true); taken {
		return nil, fmt.Errorf("reserving port %d: it is already reserved", port)
	}
	return func() { reservedPorts.Delete(port) }, nil
}
