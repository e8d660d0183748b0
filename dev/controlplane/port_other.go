//go:build !linux

package controlplane

import (
	"context"
	"fmt"
	"sync"
)

// reserved holds the ports that this process has found.
var reserved sync.Map

// reservePort takes a port for this process, so that it finds none twice. Another process may, with a chance of one in
// thousands: only Linux has names for sockets that are no files.
func reservePort(_ context.Context, port int) (release func(), err error) {
	if _, taken := reserved.LoadOrStore(port, true); taken {
		return nil, fmt.Errorf("reserving port %d: it was found before", port)
	}
	return func() { reserved.Delete(port) }, nil
}
