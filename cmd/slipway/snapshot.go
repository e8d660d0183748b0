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

func newSnapshotCommand() *cobra.Command {
	return addSubcommands(&cobra.Command{
		Use:   "snapshot",
		Short: "Save a cluster for plan and why",
	}, newSnapshotSaveCommand())
}

type snapshotFlags struct {
	kube      kubeFlags
	hashNames bool
	names     string
}

func newSnapshotSaveCommand() *cobra.Command {
	f := snapshotFlags{kube: newKubeFlags("snapshot")}
	cmd := &cobra.Command{
		Use:   "save FILE",
		Short: "Save a cluster for slipway plan --snapshot and slipway why --snapshot",
		Long: `Save reads the cluster once and writes the data that plan and why need to a file with mode 0600. A FILE that ends in
.json, and "-" for standard output, is JSON. Any other file has a compact format that loads much faster. Images,
environment variables, commands and probes are left out. Secrets and ConfigMaps are not read.

With --hash-names the file can be shared: names, labels, taints, annotations, addresses and UIDs are replaced by hashes,
and plan and why give the same answers. Numbers, times and the order of the names remain. The original names are written
to the file of --names; without that flag they are lost.`,
		Example: `  slipway snapshot save cluster.snapshot
  slipway plan --snapshot cluster.snapshot
  slipway snapshot save --hash-names --names names.json for-others.snapshot`,
		Args: cobra.ExactArgs(1),
		RunE: f.saveSnapshot,
	}
	cmd.Flags().BoolVar(&f.hashNames, "hash-names", false, "replace names by hashes, so that the file can be shared")
	cmd.Flags().StringVar(&f.names, "names", "", "with --hash-names: write the original names to this file")
	f.kube.addFlags(cmd.Flags())
	return cmd
}

func (f *snapshotFlags) saveSnapshot(cmd *cobra.Command, args []string) error {
	if f.names != "" && !f.hashNames {
		return errors.New("--names: has no effect without --hash-names")
	}
	o, err := readLiveCluster(cmd.Context(), f.kube)
	if err != nil {
		return err
	}
	return f.writeSnapshot(cmd, args[0], o)
}

// writeSnapshot writes the names file and then the snapshot, because a hashed snapshot may be useless without its names.
func (f *snapshotFlags) writeSnapshot(cmd *cobra.Command, path string, o *saved.Objects) error {
	if f.hashNames {
		hashed, names := o.HashNames()
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
	write := func(w io.Writer) error { return o.WriteReduced(w, format) }
	if path == "-" {
		return write(cmd.OutOrStdout())
	}
	if err := replaceFile(path, write); err != nil {
		return err
	}
	_, err := fmt.Fprintf(cmd.ErrOrStderr(), "%s: %d nodes and %d pods saved\n", path, len(o.Nodes), len(o.Pods))
	return err
}

func writeNames(w io.Writer, names saved.OriginalNames) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(names)
}

// replaceFile replaces a file atomically, with mode 0600.
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
