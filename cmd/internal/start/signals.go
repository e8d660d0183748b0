package start

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Signals gives a context that ends when the process is asked to end. Asked again, the process ends at once with 1, and
// what it was about is left as it is.
func Signals() (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(context.Background())
	asked := make(chan os.Signal, 2)
	signal.Notify(asked, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-asked
		stop()
		// Not left to the signal itself, which does nothing to the first process of a container.
		fmt.Fprintf(os.Stderr, "error: %s for the second time: ending at once\n", <-asked)
		os.Exit(1)
	}()
	return ctx, stop
}
