package controlplane

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"github.com/slipway-dev/slipway/internal/testing/must"
)

// reserveVariable makes the test binary reserve this port.
const reserveVariable = "SLIPWAY_TEST_RESERVE_PORT"

func TestFoundPortIsReservedFromOtherProcesses(t *testing.T) {
	if asked := os.Getenv(reserveVariable); asked != "" {
		port, err := strconv.Atoi(asked)
		must.NoError(t, err)
		if _, err := reservePort(t.Context(), port); err != nil {
			t.Fatal(err)
		}
		return
	}
	port, err := ReserveFreePort(t.Context())
	must.NoError(t, err)
	// The port is reserved although no server listens yet.
	if _, err := reservePort(t.Context(), port); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("reserving port %d again: %v, want address in use", port, err)
	}
	if out, err := reservePortElsewhere(t, port); err == nil {
		t.Errorf("another process reserved port %d as well: %s", port, out)
	}
	free, err := ReserveFreePort(t.Context())
	if err != nil || free == port {
		t.Fatalf("the next port is %d: %v, want a port other than %d", free, err, port)
	}
	kept, _ := reservedPorts.Load(free)
	must.NoError(t, kept.(interface{ Close() error }).Close())
	if out, err := reservePortElsewhere(t, free); err != nil {
		t.Errorf("another process cannot reserve port %d, which is free: %v: %s", free, err, out)
	}
}

// reservePortElsewhere reserves a port in another process.
func reservePortElsewhere(t *testing.T, port int) (output []byte, err error) {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	command.Env = append(os.Environ(), reserveVariable+"="+strconv.Itoa(port))
	return command.CombinedOutput()
}
