package controlplane

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
)

// The ports that servers of this module get. They lie below those that Linux gives to outgoing connections
// (ip_local_port_range, 32768 to 60999), one of which would otherwise come to sit on a port between its being found free
// and being listened on, or while its server is restarted.
const (
	firstPort = 12000
	lastPort  = 32000
	portTries = 1000
)

// FreePort finds a port of the loopback interface that nobody listens on at the moment, and keeps it until this process
// ends: neither it nor, on Linux, another process of this module finds the same one meanwhile, although its server is not
// started yet, or is being restarted.
func FreePort(ctx context.Context) (int, error) {
	var config net.ListenConfig
	var last error
	for range portTries {
		port := firstPort + rand.IntN(lastPort-firstPort)
		release, err := reservePort(ctx, port)
		if err != nil {
			last = err
			continue
		}
		l, err := config.Listen(ctx, "tcp", loopback(port))
		if err != nil {
			release()
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
