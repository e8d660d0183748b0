package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slipway-dev/slipway/internal/placement/saved"
)

func snapshotCommand() *cobra.Command {
	return commands(&cobra.Command{
		Use:   "snapshot",
		Short: "Save what plan and why read of a cluster",
	}, snapshotSaveCommand())
}

type snapshotFlags struct {
	kube      kubeFlags
	hashNames bool
	names     string
}

func snapshotSaveCommand() *cobra.Command {
	f := snapshotFlags{kube: newKubeFlags("snapshot")}
	cmd := &cobra.Command{
		Use:   "save FILE",
		Short: "Save a cluster for slipway plan --snapshot and slipway why --snapshot",
		Long: `Save reads the cluster once and writes what plan and why read of it into a file, for its owner's eyes only. A FILE
that ends in .json, and "-" for standard output, is JSON; any other is a compact form that is loaded many times as fast.
Images, environment, commands, probes and all else that plan and why do not read are left out; secrets and config maps
are not even asked for.

With --hash-names the file can be handed to others: names, labels, taints, annotations, addresses and UIDs are hidden,
and plan and why give the same answers about it. Numbers, times and the order of the names remain. What each hidden name
stands for is written to the file of --names, if one is given, and is lost otherwise.`,
		Example: `  slipway snapshot save cluster.snapshot
  slipway plan --snapshot cluster.snapshot
  slipway snapshot save --hash-names --names names.json for-others.snapshot`,
		Args: cobra.ExactArgs(1),
		RunE: f.save,
	}
	cmd.Flags().BoolVar(&f.hashNames, "hash-names", false, "hide names, so that the file can be handed to others")
	cmd.Flags().StringVar(&f.names, "names", "", "with --hash-names: write what each hidden name stands for into this file")
	f.kube.add(cmd.Flags())
	return cmd
}

func (f *snapshotFlags) save(cmd *cobra.Command, args []string) error {
	if f.names != "" && !f.hashNames {
		return errors.New("--names: there are no hidden names without --hash-names")
	}
	o, err := readLive(cmd.Context(), f.kube)
	if err != nil {
		return err
	}
	return f.write(cmd, args[0], o)
}

// write writes the cluster where it is asked for, and first the names, without which the file may be of no use.
func (f *snapshotFlags) write(cmd *cobra.Command, path string, o *saved.Objects) error {
	if f.hashNames {
		hashed, names := o.Hashed()
		if f.names != "" {
			if err := replaceFile(f.names, func(w io.Writer) error { return writeNames(w, names) }); err != nil {
				return fmt.Errorf("--names: %w", err)
			}
		}
		o = hashed
	}
	format := saved.Compact
	if path == "-" || strings.HasSuffix(path, ".json") {
		format = saved.JSON
	}
	write := func(w io.Writer) error { return o.Write(w, format) }
	if path == "-" {
		return write(cmd.OutOrStdout())
	}
	if err := replaceFile(path, write); err != nil {
		return err
	}
	_, err := fmt.Fprintf(cmd.ErrOrStderr(), "%s: %d nodes and %d pods saved\n", path, len(o.Nodes), len(o.Pods))
	return err
}

func writeNames(w io.Writer, names saved.Names) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(names)
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
