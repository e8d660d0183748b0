//go:build unix

package start

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"
)

// TestSecondSignalEndsProcess runs the test binary as a process that ignores the end of its context. Signals that come
// together count as one.
func TestSecondSignalEndsProcess(t *testing.T) {
	if os.Getenv("SLIPWAY_TEST_STUBBORN") != "" {
		ctx, stop := NewSignalContext()
		defer stop()
		fmt.Println("up")
		<-ctx.Done()
		fmt.Println("stopping")
		time.Sleep(10 * time.Second)
		return
	}
	const tries = 5 // a busy machine may deliver the first two signals too far apart
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		for try := 1; ; try++ {
			took, err := signalTwice(t, s)
			if took < sameSignalWindow && try < tries {
				continue
			}
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 || took < sameSignalWindow {
				t.Errorf("after the second %s: %v after %s, want exit code 1 after the last signal", s, err, took)
			}
			break
		}
	}
}

// signalTwice sends two signals at once and a third one after sameSignalWindow. It returns the time from the first signals
// to the end of the process, and its error.
func signalTwice(t *testing.T, s syscall.Signal) (took time.Duration, ended error) {
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
	for _, want := range []string{"up", "stopping"} {
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("printed %q, want %q", lines.Text(), want)
		}
		if err := stubborn.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	again := time.AfterFunc(sameSignalWindow+sameSignalWindow/2, func() { _ = stubborn.Process.Signal(s) })
	defer again.Stop()
	began := time.Now()
	ended = stubborn.Wait()
	return time.Since(began), ended
}

// TestClosedOutputAndHangupEndContext runs the test binary as a process with a closed standard output. It must survive its
// write, as in "slipway drain | tee" after Ctrl-C.
func TestClosedOutputAndHangupEndContext(t *testing.T) {
	const survived = 7
	if os.Getenv("SLIPWAY_TEST_PIPED") != "" {
		ctx, stop := NewSignalContext()
		defer stop()
		fmt.Println("up")
		<-ctx.Done()
		if _, err := fmt.Println("restoring"); errors.Is(err, syscall.EPIPE) {
			os.Exit(survived)
		}
		return
	}
	// If the tests run under nohup, they ignore SIGHUP. The process inherits this, unless a channel receives the signal.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	piped := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	piped.Env = append(os.Environ(), "SLIPWAY_TEST_PIPED=yes")
	out, err := piped.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := piped.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "up\n" {
		t.Fatalf("printed %q: %v", line, err)
	}
	if err := errors.Join(out.Close(), piped.Process.Signal(syscall.SIGHUP)); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := piped.Wait(); !errors.As(err, &exit) || exit.ExitCode() != survived {
		t.Errorf("the process ended with %v, want exit code %d", err, survived)
	}
}
