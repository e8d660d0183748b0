//go:build unix

package start

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// TestTheSecondSignalEndsAProcessThatDoesNotEnd runs itself as a process that the first signal does not end, nor one that
// comes with it.
func TestTheSecondSignalEndsAProcessThatDoesNotEnd(t *testing.T) {
	if os.Getenv("SLIPWAY_TEST_STUBBORN") != "" {
		ctx, stop := Signals()
		defer stop()
		fmt.Println("up")
		<-ctx.Done()
		fmt.Println("asked")
		time.Sleep(10 * time.Second)
		return
	}
	const tries = 5 // a busy machine may bring what is sent together too late
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		for try := 1; ; try++ {
			took, err := endedBySecond(t, s)
			if took < oneAsk && try < tries {
				continue
			}
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 || took < oneAsk {
				t.Errorf("after the second %s: %v after %s, want an exit with 1 by the last", s, err, took)
			}
			break
		}
	}
}

// endedBySecond sends a process that does not end a signal twice at once, and after a while for the second time. It gives how
// long after the first two the process ended, and how.
func endedBySecond(t *testing.T, s syscall.Signal) (took time.Duration, ended error) {
	t.Helper()
	stubborn := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	stubborn.Env = append(os.Environ(), "SLIPWAY_TEST_STUBBORN=yes")
	out, err := stubborn.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := stubborn.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for _, want := range []string{"up", "asked"} {
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("it says %q, want %q", lines.Text(), want)
		}
		if err := stubborn.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	again := time.AfterFunc(oneAsk+oneAsk/2, func() { _ = stubborn.Process.Signal(s) })
	defer again.Stop()
	began := time.Now()
	ended = stubborn.Wait()
	return time.Since(began), ended
}
