package start

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// oneAsk is how long signals count as one: timeout(1), for one, sends its own to the process and to its group.
const oneAsk = 500 * time.Millisecond

// Signals gives a context that ends when the process is asked to end. Asked again, the process ends at once with 1, and
// what it was about is left as it is.
func Signals() (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(context.Background())
	asked := make(chan os.Signal, 2)
	signal.Notify(asked, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-asked
		stop()
		first := time.Now()
		for again := range asked {
			if time.Since(first) >= oneAsk {
				// Not left to the signal itself, which does nothing to the first process of a container.
				fmt.Fprintf(os.Stderr, "error: %s for the second time: ending at once\n", again)
				os.Exit(1)
			}
		}
	}()
	return ctx, stop
}
