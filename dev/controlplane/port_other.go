//go:build !linux

package controlplane

import (
	"context"
	"fmt"
	"sync"
)

// reservedPorts holds the ports that this process has reserved.
var reservedPorts sync.Map

// reservePort reserves a port against other calls in this process only. Another process may take the same port, but
// this is rare. Only Linux has sockets without files, which prevent it.
func reservePort(_ context.Context, port int) (release func(), err error) {
	if _, taken := reservedPorts.LoadOrStore(port, true); taken {
		return nil, fmt.Errorf("reserving port %d: it is already reserved", port)
	}
	return func() { reservedPorts.Delete(port) }, nil
}
