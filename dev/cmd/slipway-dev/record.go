package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/dev/demo"
	"github.com/slipway-dev/slipway/dev/recording"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// The size of the recorded terminal in cells.
const recordingWidth, recordingHeight = 120, 34

func newRecordCommand() *cobra.Command {
	var version, to string
	cmd := &cobra.Command{
		Use:   "record",
		Short: "Record slipway top during the Spot notice of the demo, as asciinema cast and as SVG",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			program, err := testbed.EnsureBinary("slipway")
			if err != nil {
				return err
			}
			return demo.RecordSpotNotice(cmd.Context(), demo.Options{Out: cmd.OutOrStdout(), Version: version},
				func(ctx context.Context, kubeconfig, node string, runStep func() error) error {
					var failed error
					cast, err := recordTop(ctx, program, kubeconfig, node, func() error {
						failed = runStep()
						return nil
					})
					if err != nil {
						return errors.Join(failed, err)
					}
					if err := writeRecording(cast, to); err != nil || failed == nil {
						return err
					}
					return fmt.Errorf("%s is recorded, but the step failed, so record it again: %w", to, failed)
				})
		},
	}
	cmd.Flags().StringVar(&to, "to", filepath.Join("docs", "top"), "path of the files, without .cast and .svg")
	addVersionFlag(cmd, &version)
	return cmd
}

// recordTop records slipway top, which shows the pods of a node while runStep runs.
func recordTop(ctx context.Context, program, kubeconfig, node string, runStep func() error) (*recording.Cast, error) {
	ctx, stop := context.WithTimeout(ctx, 3*time.Minute)
	defer stop()
	s, err := recording.Start(ctx, recordingWidth, recordingHeight, "slipway top during a Spot notice",
		[]string{"TERM=xterm-256color", "LC_ALL=C.UTF-8", "NO_COLOR=", "COLORTERM="}, program, "top", "--kubeconfig", kubeconfig)
	if err != nil {
		return nil, err
	}
	for _, action := range []func() error{
		func() error { return s.AwaitText(ctx, "<?> help") },
		func() error { return s.Press("/spot\r") },
		func() error { return s.AwaitText(ctx, "Pods of "+node) },
		func() error { time.Sleep(3 * time.Second); return nil },
		runStep,
		func() error { time.Sleep(3 * time.Second); return s.Press("e") },
		func() error { return s.AwaitText(ctx, "Drained") },
		func() error { time.Sleep(4 * time.Second); return s.Press("q") },
	} {
		if err := action(); err != nil {
			return nil, err
		}
	}
	return s.Finish()
}

// writeRecording writes the cast and the SVG.
func writeRecording(cast *recording.Cast, to string) error {
	raw, err := cast.Encode()
	if err != nil {
		return err
	}
	if err := os.WriteFile(to+".cast", raw, 0o600); err != nil {
		return err
	}
	svg := recording.RenderSVG(cast)
	if err := os.WriteFile(to+".svg", []byte(svg), 0o600); err != nil {
		return err
	}
	fmt.Printf("%s.cast: %d bytes; %s.svg: %d bytes\n", to, len(raw), to, len(svg))
	return nil
}
