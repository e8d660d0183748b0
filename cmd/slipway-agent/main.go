// Command slipway-agent is `slipway agent` as a separate program. It uses less memory on every node than slipway,
// which links much larger libraries for its other commands (docs/adr/0001-small-agent.md).
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/slipway-dev/slipway/cmd/internal/start"
	"github.com/slipway-dev/slipway/internal/config"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	var c config.Agent
	flags := pflag.NewFlagSet("slipway-agent", pflag.ContinueOnError)
	flags.SortFlags = false
	c.RegisterFlags(flags)
	version := flags.Bool("version", false, "print the version and exit")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return nil
		}
		return err
	}
	if *version {
		fmt.Println("slipway-agent version", start.Version())
		return nil
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("argument %q: want flags only", flags.Arg(0))
	}
	if err := c.LoadFile(flags); err != nil {
		return err
	}
	ctx, stop := start.NewSignalContext()
	defer stop()
	return start.RunAgent(ctx, c, os.Stderr)
}
