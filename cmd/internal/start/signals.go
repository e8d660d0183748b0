package start

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// sameSignalWindow is how long repeated signals count as one signal. The command timeout, for example, signals the
// process and its process group.
const sameSignalWindow = 500 * time.Millisecond

// NewSignalContext returns a context that ends with the first SIGINT, SIGTERM or SIGHUP. A second signal exits the
// process at once with code 1. After it, a write to a closed pipe is an error and does not end the process: in
// "slipway drain | tee", Ctrl-C ends tee too, while the node still has to be restored.
func NewSignalContext() (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // nohup ignores it
		signal.Notify(signals, syscall.SIGHUP)
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // children, unlike after signal.Ignore, keep the default action
	go func() {
		<-signals
		stop()
		first := time.Now()
		for second := range signals {
			if time.Since(first) >= sameSignalWindow {
				// Restoring the signal's default action would not end PID 1 of a container.
				fmt.Fprintf(os.Stderr, "error: second %s: exiting at once\n", second)
				os.Exit(1)
			}
		}
	}()
	return ctx, stop
}
