package controlplane

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
)

// reservedPorts keeps this process's reservations from garbage collection, which would close them.
var reservedPorts sync.Map

// reservePort reserves a port, unless a process of this module has reserved it. The reservation is a Unix socket in the
// abstract namespace, named after the port. It belongs to the port's network namespace, leaves no file, and ends with
// its process.
func reservePort(ctx context.Context, port int) (release func(), err error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "unix", "@slipway-dev-port-"+strconv.Itoa(port))
	if err != nil {
		return nil, fmt.Errorf("reserving port %d: %w", port, err)
	}
	reservedPorts.Store(port, l)
	return func() {
		reservedPorts.Delete(port)
		_ = l.Close() // nothing was sent
	}, nil
}
