package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/discovery"

	"github.com/slipway-dev/slipway/cmd/internal/start"
	"github.com/slipway-dev/slipway/internal/doctor"
	"github.com/slipway-dev/slipway/internal/observe"
)

// versionTimeout limits each request of slipway version, unless --request-timeout is set.
const versionTimeout = 5 * time.Second

// versions is the content that slipway version prints.
type versions struct {
	Client clientVersion `json:"client"`
	// Kubernetes is the version of the API server. It is empty if no server was asked.
	Kubernetes string `json:"kubernetes,omitempty"`
	// Parts are the running parts of Slipway, one for each kind and version. PartsUnknown says why they are unknown.
	Parts        []partVersion `json:"parts,omitempty"`
	PartsUnknown string        `json:"partsUnknown,omitempty"`
}

// clientVersion describes the build of this program.
type clientVersion struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	// CommitDate is the time of the commit, in RFC 3339.
	CommitDate string `json:"commitDate,omitempty"`
	// Modified is true if the source had uncommitted changes.
	Modified  bool   `json:"modified,omitempty"`
	GoVersion string `json:"goVersion"`
	Platform  string `json:"platform"`
}

// partVersion counts the pods of one part of Slipway with one version.
type partVersion struct {
	Part    doctor.PartKind `json:"part"`
	Version string          `json:"version"`
	Pods    int             `json:"pods"`
}

func newVersionCommand() *cobra.Command {
	kube := newKubeFlags("version")
	var output outputFlag
	var clientOnly bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of slipway, the API server and the running parts of Slipway",
		Long: `Version prints the version, commit and commit date of this program. Unless --client is set, it also prints the version
of the API server, and the versions of the running agents and managers. These are the tags of their images.

Without a kubeconfig it prints only its own version. If the API server does not answer, it also exits with 1.`,
		Example: `  slipway version --client
  slipway version -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := output.validateWithoutNames(); err != nil {
				return err
			}
			v := versions{Client: newClientVersion()}
			var err error
			if !clientOnly {
				err = v.readServer(cmd.Context(), kube)
			}
			return errors.Join(output.printAnswer(cmd.OutOrStdout(), v, v.printTable), err)
		},
	}
	cmd.Flags().BoolVar(&clientOnly, "client", false, "print only the version of this program, without contacting the API server")
	output.addFlagWithoutNames(cmd.Flags())
	kube.addFlags(cmd.Flags())
	return cmd
}

func newClientVersion() clientVersion {
	b := start.BuildInfo()
	return clientVersion{
		Version: b.Version, Commit: b.Commit, CommitDate: b.CommitDate, Modified: b.Modified,
		GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
}

// readServer reads the version of the API server and the versions of Slipway's pods. Without a kubeconfig it reads
// nothing.
func (v *versions) readServer(ctx context.Context, kube kubeFlags) error {
	cfg, err := kube.restConfig()
	if errors.Is(err, errNoKubeconfig) {
		return nil
	} else if err != nil {
		return err
	}
	cfg.Timeout = cmp.Or(cfg.Timeout, versionTimeout)
	api, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return err
	}
	server, err := api.ServerVersion()
	if err != nil {
		return err
	}
	v.Kubernetes = server.GitVersion
	c, err := newObjectClientFor(cfg)
	if err != nil {
		return err
	}
	pods, err := doctor.ListOwnPods(ctx, c)
	if err != nil {
		v.PartsUnknown = err.Error()
		return nil
	}
	for _, p := range pods { // sorted by part and version
		if last := len(v.Parts) - 1; last < 0 || v.Parts[last].Part != p.Part || v.Parts[last].Version != p.Version {
			v.Parts = append(v.Parts, partVersion{Part: p.Part, Version: p.Version})
		}
		v.Parts[len(v.Parts)-1].Pods++
	}
	return nil
}

func (v *versions) printTable(w io.Writer, _ bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintf(t, "version\t%s\n", v.Client.Version)
	if v.Client.Commit != "" {
		modified := ""
		if v.Client.Modified {
			modified = ", with uncommitted changes"
		}
		fmt.Fprintf(t, "commit\t%s%s\n", v.Client.Commit, modified)
	}
	if v.Client.CommitDate != "" {
		fmt.Fprintf(t, "commit date\t%s\n", v.Client.CommitDate)
	}
	fmt.Fprintf(t, "Go\t%s\nplatform\t%s\n", v.Client.GoVersion, v.Client.Platform)
	if v.Kubernetes != "" {
		fmt.Fprintf(t, "Kubernetes\t%s\n", v.Kubernetes)
	}
	for _, p := range v.Parts {
		fmt.Fprintf(t, "%s\t%s (%s)\n", p.Part, p.Version, observe.FormatCount(p.Pods, "pod"))
	}
	switch {
	case v.PartsUnknown != "":
		fmt.Fprintf(t, "Slipway's pods\tunknown: %s\n", v.PartsUnknown)
	case v.Kubernetes != "" && len(v.Parts) == 0:
		fmt.Fprintln(t, "Slipway's pods\tnone")
	}
	return t.Flush()
}
