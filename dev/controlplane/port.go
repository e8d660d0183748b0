package controlplane

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// The ports that servers of this module get. They lie below those that Linux gives to outgoing connections
// (ip_local_port_range, 32768 to 60999), one of which would otherwise come to sit on a port between its being found free
// and being listened on, or while its server is restarted.
const (
	firstPort = 12000
	lastPort  = 32000
	portTries = 1000
)

// handedOut holds the ports that this process has found, so that it finds none twice: their servers come and go.
var handedOut sync.Map

// FreePort finds a port of the loopback interface that nobody listens on at the moment. This process never gets the same
// one again; another process may, as long as nobody listens on it, with a chance of one in thousands.
func FreePort(ctx context.Context) (int, error) {
	var config net.ListenConfig
	var last error
	for range portTries {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if _, taken := handedOut.LoadOrStore(port, true); taken {
			continue
		}
		l, err := config.Listen(ctx, "tcp", loopback(port))
		if err != nil {
			handedOut.Delete(port)
			last = err
			continue
		}
		return port, l.Close()
	}
	return 0, fmt.Errorf("no port from %d to %d of the loopback interface is free: %w", firstPort, lastPort,
		errors.Join(last, ctx.Err()))
}

// FreeAddress finds a loopback address as [FreePort] finds a port.
func FreeAddress(ctx context.Context) (string, error) {
	port, err := FreePort(ctx)
	return loopback(port), err
}
