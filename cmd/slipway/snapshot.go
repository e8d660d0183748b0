package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

func snapshotCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Save what plan and why read of a cluster",
	}
	cmd.AddCommand(snapshotSaveCommand())
	return cmd
}

func snapshotSaveCommand() *cobra.Command {
	kube := newKubeFlags("snapshot")
	cmd := &cobra.Command{
		Use:   "save FILE",
		Short: "Save a cluster for slipway plan --snapshot and slipway why --snapshot",
		Long: `Save reads the cluster once and writes what plan and why need of it into a file, or to standard output for "-".
Containers' environment, commands, arguments and probes are left out. Names, labels, annotations and images are kept;
secrets and config maps are not read.`,
		Example: `  slipway snapshot save cluster.json
  slipway plan --snapshot cluster.json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := readLive(cmd.Context(), kube)
			if err != nil {
				return err
			}
			if args[0] == "-" {
				return o.Write(cmd.OutOrStdout())
			}
			if err := replaceFile(args[0], o.Write); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.ErrOrStderr(), "%s: %d nodes and %d pods saved\n", args[0], len(o.Nodes), len(o.Pods))
			return err
		},
	}
	kube.add(cmd.Flags())
	return cmd
}

// replaceFile writes a file whole or not at all, for its owner's eyes only.
func replaceFile(path string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".slipway-snapshot-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if err := errors.Join(write(f), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
