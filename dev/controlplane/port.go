package controlplane

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
)

// The range of ports for this module's servers. It is below the range that Linux uses for outgoing connections
// (ip_local_port_range, 32768 to 60999). Otherwise an outgoing connection could take a port before its server
// listens, or while the server restarts.
const (
	firstPort       = 12000
	lastPort        = 32000
	maxPortAttempts = 1000
)

// ReserveFreePort returns a free port of the loopback interface, and reserves it until this process ends. Later
// calls in this process return other ports. On Linux, other processes of this module also get other ports, even
// while no server listens on this one.
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

// ReserveFreeAddress returns a loopback address with a port that [ReserveFreePort] has reserved.
func ReserveFreeAddress(ctx context.Context) (string, error) {
	port, err := ReserveFreePort(ctx)
	return loopbackAddress(port), err
}
