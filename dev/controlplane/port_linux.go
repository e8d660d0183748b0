package controlplane

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
)

// reserved holds what keeps this process's ports: as garbage it would be closed.
var reserved sync.Map

// reservePort takes a port for this process, unless it or another one of this module has it. What keeps it is a Unix socket
// with the port's number in its name, in the abstract namespace: that belongs to the same network namespace as the port, is
// no file that stays behind, and goes with its process however that ends.
func reservePort(ctx context.Context, port int) (release func(), err error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "unix", "@slipway-dev-port-"+strconv.Itoa(port))
	if err != nil {
		return nil, fmt.Errorf("reserving port %d: %w", port, err)
	}
	reserved.Store(port, l)
	return func() {
		reserved.Delete(port)
		_ = l.Close() // Nothing was sent over it.
	}, nil
}
