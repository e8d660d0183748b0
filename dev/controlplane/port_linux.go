package controlplane

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
)

// reservedPorts refers to the sockets of this process's reservations. Without a reference, the garbage collector
// would close the sockets and end the reservations.
var reservedPorts sync.Map

// reservePort reserves a port. It returns an error if a process of this module has already reserved the port. A
// reservation is a Unix socket in the abstract namespace, named after the port. The socket exists only in this
// network namespace, leaves no file, and ends with this process.
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
