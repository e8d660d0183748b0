package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/cmd/internal/start"
	"github.com/slipway-dev/slipway/internal/report"
)

const (
	// maxReportLogLines limits the lines that are read from the log of one container without --since.
	maxReportLogLines = 50_000
	// reportMargin is the time before the creation and after the end of a retirement that its report includes.
	reportMargin = time.Minute
)

type reportFlags struct {
	kube   kubeFlags
	since  string
	until  string
	node   string
	title  string
	output string
}

func newReportCommand() *cobra.Command {
	f := reportFlags{kube: newKubeFlags("report")}
	cmd := &cobra.Command{
		Use:   "report FILE|node/NAME|noderetirement/NAME...",
		Short: "Make an HTML page about drains, a retirement or a time range",
		Long: `Report makes one HTML page that needs no other file and no network. For each drain it has a chart with a row per pod: when
its eviction was requested, which PodDisruptionBudget blocked it, how long it was terminating, and whether it was
deleted without eviction. It also has the decisions with their reasons, and the Events.

A FILE contains drain reports of "slipway drain -o json", NodeRetirements or Events as JSON or YAML, or JSON logs of agents
and managers, also mixed. "-" is standard input. For node/NAME and noderetirement/NAME, report reads the NodeRetirements and the
Events from the cluster, and the logs of the manager and of the agent on the node. A part that cannot be read is named on
the page and on standard error.`,
		Example: `  slipway drain node-7 --deadline 30s -o json > drain.json; slipway report drain.json -o drain.html
  slipway report noderetirement/node-7-x2m4z -o node-7.html
  slipway report node/node-7 --since 1h -o node-7.html
  kubectl logs -n slipway slipway-agent-x7k2p | slipway report - -o node-7.html`,
		Args: cobra.MinimumNArgs(1),
		RunE: f.run,
	}
	fs := cmd.Flags()
	fs.StringVar(&f.since, "since", "", "start of the time range: a duration before now, such as 1h, or a time in RFC 3339")
	fs.StringVar(&f.until, "until", "", "end of the time range: a duration before now, or a time in RFC 3339")
	fs.StringVar(&f.node, "node", "", "leave out other nodes that the files contain")
	fs.StringVar(&f.title, "title", "", "title of the page")
	fs.StringVarP(&f.output, "output", "o", "html", `"html", "json" or "yaml" prints the report; a file name with one of these endings writes it to the file`)
	f.kube.addFlags(fs)
	return cmd
}

func (f *reportFlags) run(cmd *cobra.Command, args []string) error {
	format, path, err := f.parseOutput()
	if err != nil {
		return err
	}
	o := report.Options{Title: f.title, Now: time.Now(), Version: start.Version()}
	if o.From, err = parseRangeTime("--since", f.since, o.Now); err != nil {
		return err
	}
	if o.To, err = parseRangeTime("--until", f.until, o.Now); err != nil {
		return err
	}
	if !o.From.IsZero() && !o.To.IsZero() && o.To.Before(o.From) {
		return fmt.Errorf("--until: %q is before --since %q", f.until, f.since)
	}
	if f.node != "" {
		o.Nodes = []string{f.node}
	}
	var in report.Inputs
	for _, arg := range args {
		if err := f.readSubject(cmd, &in, &o, arg); err != nil {
			return err
		}
	}
	for _, problem := range in.Problems() {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s\n", problem)
	}
	r := report.Build(&in, o)
	write := func(w io.Writer) error {
		if format == "html" {
			return r.WriteHTML(w)
		}
		return outputFlag(format).printAnswer(w, r, nil)
	}
	if path == "" {
		return write(cmd.OutOrStdout())
	}
	if err := replaceFile(path, write); err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	_, err = fmt.Fprintf(cmd.ErrOrStderr(), "%s: drains: %d, retirements: %d, Events: %d\n", path, len(r.Drains), len(r.Retirements), len(r.Events))
	return err
}

// parseOutput returns the format of --output, and the file if it names one.
func (f *reportFlags) parseOutput() (format, path string, err error) {
	switch f.output {
	case "html", "json", "yaml":
		return f.output, "", nil
	}
	switch ending := filepath.Ext(f.output); ending {
	case ".html", ".json", ".yaml":
		return ending[1:], f.output, nil
	}
	return "", "", fmt.Errorf("--output: %q: want html, json or yaml, or a file name that ends in .html, .json or .yaml", f.output)
}

// parseRangeTime returns the time of a flag that has a duration before now or a time. It returns the zero time for an
// empty flag.
func parseRangeTime(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s: %q: want a duration such as 1h, or a time such as 2026-01-31T12:00:00Z", flag, text)
	}
	return at, nil
}

// readSubject reads the input that an argument names.
func (f *reportFlags) readSubject(cmd *cobra.Command, in *report.Inputs, o *report.Options, arg string) error {
	kind, name, found := strings.Cut(arg, "/")
	switch {
	case arg == "-":
		data, err := io.ReadAll(cmd.InOrStdin())
		if err != nil {
			return err
		}
		return in.Read("standard input", data)
	case found && (kind == "node" || kind == "nodes" || isRetirementKind(kind)):
		if name == "" {
			return fmt.Errorf("%q: the name is empty: want %s/NAME", arg, kind)
		}
		reader, err := f.newClusterReader(in)
		if err != nil {
			return err
		}
		if isRetirementKind(kind) {
			return reader.readRetirement(cmd.Context(), name, o)
		}
		return reader.readNode(cmd.Context(), name, o)
	}
	data, err := os.ReadFile(arg)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: want a file, node/NAME or noderetirement/NAME", err)
	}
	if err != nil {
		return err
	}
	return in.Read(arg, data)
}

func isRetirementKind(kind string) bool {
	kind, _, _ = strings.Cut(kind, ".")
	return kind == "noderetirement" || kind == "noderetirements" || kind == "nr"
}

// clusterReader reads the inputs of a report from the cluster.
type clusterReader struct {
	in      *report.Inputs
	objects client.Client
	core    kubernetes.Interface
}

func (f *reportFlags) newClusterReader(in *report.Inputs) (*clusterReader, error) {
	objects, err := f.kube.newObjectClient()
	if err != nil {
		return nil, err
	}
	core, err := f.kube.newClientset()
	return &clusterReader{in, objects, core}, err
}

func (c *clusterReader) readRetirement(ctx context.Context, name string, o *report.Options) error {
	var rt v1alpha1.NodeRetirement
	if err := c.objects.Get(ctx, client.ObjectKey{Name: name}, &rt); err != nil {
		return explainMissingTypes(err)
	}
	if o.From.IsZero() {
		o.From = rt.CreationTimestamp.Add(-reportMargin)
	}
	if end := rt.Status.Times.Finished; o.To.IsZero() && end != nil {
		o.To = end.Add(reportMargin)
	}
	if err := c.addRetirements(rt); err != nil {
		return err
	}
	return c.readNodeRecords(ctx, rt.Spec.NodeName, []string{rt.Name}, o)
}

func (c *clusterReader) readNode(ctx context.Context, node string, o *report.Options) error {
	var all v1alpha1.NodeRetirementList
	err := c.objects.List(ctx, &all) // Kubernetes 1.30 has no field selector for spec.nodeName
	switch {
	case meta.IsNoMatchError(err): // only agents are installed
	case err != nil:
		c.in.AddProblem("NodeRetirements: %v", err)
	}
	of := slices.DeleteFunc(all.Items, func(rt v1alpha1.NodeRetirement) bool { return rt.Spec.NodeName != node })
	var names []string
	for _, rt := range of {
		names = append(names, rt.Name)
	}
	if err := c.addRetirements(of...); err != nil {
		return err
	}
	return c.readNodeRecords(ctx, node, names, o)
}

func (c *clusterReader) addRetirements(all ...v1alpha1.NodeRetirement) error {
	for _, rt := range all {
		rt.Kind, rt.APIVersion = "NodeRetirement", v1alpha1.GroupVersion.String()
		if err := c.add("NodeRetirement "+rt.Name, rt); err != nil {
			return err
		}
	}
	return nil
}

func (c *clusterReader) add(name string, objects ...any) error {
	var data []byte
	for _, o := range objects {
		raw, err := json.Marshal(o)
		if err != nil {
			return err
		}
		data = append(append(data, raw...), '\n')
	}
	return c.in.Read(name, data)
}

// readNodeRecords reads the Events about a node and its retirements, and the logs of Slipway.
func (c *clusterReader) readNodeRecords(ctx context.Context, node string, retirements []string, o *report.Options) error {
	if !slices.Contains(o.Nodes, node) {
		o.Nodes = append(o.Nodes, node)
	}
	if err := c.readEvents(ctx, "Node", node); err != nil {
		return err
	}
	for _, name := range retirements {
		if err := c.readEvents(ctx, "NodeRetirement", name); err != nil {
			return err
		}
	}
	logs := map[string]string{"slipway-agent": fields.OneTermEqualSelector("spec.nodeName", node).String(), "slipway-manager": ""}
	for _, app := range []string{"slipway-agent", "slipway-manager"} {
		pods, err := c.core.CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + app, FieldSelector: logs[app]})
		if err != nil {
			c.in.AddProblem("pods of %s: %v", app, err)
			continue
		}
		for _, p := range pods.Items {
			c.readLog(ctx, &p, o.From)
		}
	}
	return nil
}

func (c *clusterReader) readEvents(ctx context.Context, kind, name string) error {
	list, err := c.core.CoreV1().Events("").List(ctx, metav1.ListOptions{
		FieldSelector: fields.Set{"involvedObject.kind": kind, "involvedObject.name": name}.String(),
	})
	if err != nil {
		c.in.AddProblem("Events of %s %s: %v", kind, name, err)
		return nil
	}
	if len(list.Items) == 0 {
		return nil
	}
	var events []any
	for _, e := range list.Items {
		events = append(events, e)
	}
	return c.add("Events of "+kind+" "+name, events...)
}

// readLog reads the log of a pod. A log that is missing is only a problem of the report.
func (c *clusterReader) readLog(ctx context.Context, p *corev1.Pod, from time.Time) {
	o := corev1.PodLogOptions{Container: p.Spec.Containers[0].Name}
	if from.IsZero() {
		o.TailLines = new(int64(maxReportLogLines))
	} else {
		o.SinceTime = &metav1.Time{Time: from}
	}
	name := "log of pod " + p.Namespace + "/" + p.Name
	data, err := c.core.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &o).DoRaw(ctx)
	if err != nil {
		c.in.AddProblem("%s: %v", name, err)
		return
	}
	if len(data) == 0 {
		return
	}
	if err := c.in.Read(name, data); err != nil {
		c.in.AddProblem("%v", err)
	}
}
