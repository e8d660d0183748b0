package controlplane

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
)

// reserved keeps this process's reservations from garbage collection, which would close them.
var reserved sync.Map

// reservePort reserves a port, unless a process of this module has reserved it. The reservation is a Unix socket in the
// abstract namespace, named after the port. It belongs to the port's network namespace, leaves no file, and ends with
// its process.
func reservePort(ctx context.Context, port int) (release func(), err error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "unix", "@slipway-dev-port-"+strconv.Itoa(port))
	if err != nil {
		return nil, fmt.Errorf("reserving port %d: %w", port, err)
	}
	reserved.Store(port, l)
	return func() {
		reserved.Delete(port)
		_ = l.Close() // nothing was sent
	}, nil
}
