package controlplane

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
)

// The ports of this module's servers. They are below the range that Linux uses for outgoing connections
// (ip_local_port_range, 32768 to 60999). Such a connection could take a port before its server listens, or while the
// server restarts.
const (
	firstPort       = 12000
	lastPort        = 32000
	maxPortAttempts = 1000
)

// ReserveFreePort finds a free port of the loopback interface and reserves it until this process ends. This process does not
// find it again. On Linux other processes of this module do not find it either, even while its server is down.
func ReserveFreePort(ctx context.Context) (int, error) {
	var config net.ListenConfig
	var lastErr error
	for range maxPortAttempts {
		port := firstPort + rand.IntN(lastPort-firstPort)
		release, err := reservePort(ctx, port)
		if err != nil {
			lastErr = err
			continue
		}
		l, err := config.Listen(ctx, "tcp", loopbackAddress(port))
		if err != nil {
			release()
			lastErr = err
			continue
		}
		return port, l.Close()
	}
	return 0, fmt.Errorf("no port from %d to %d of the loopback interface is free: %w", firstPort, lastPort,
		errors.Join(lastErr, ctx.Err()))
}

// ReserveFreeAddress returns a loopback address with a port of [ReserveFreePort].
func ReserveFreeAddress(ctx context.Context) (string, error) {
	port, err := ReserveFreePort(ctx)
	return loopbackAddress(port), err
}
