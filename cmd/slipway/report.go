package main

import (
	"bytes"
	"cmp"
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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/cmd/internal/start"
	"github.com/slipway-dev/slipway/internal/doctor"
	"github.com/slipway-dev/slipway/internal/report"
)

const (
	// maxReportLogLines limits the lines that are read from the log of one container without --since. maxReportLogBytes limits
	// one log, and maxReportLogsBytes all logs together.
	maxReportLogLines  = 50_000
	maxReportLogBytes  = 16 << 20
	maxReportLogsBytes = 64 << 20
	// reportLogTimeout limits the time for one log. An unreachable node does not send its log.
	reportLogTimeout = 30 * time.Second
	// maxConcurrentLogs limits the logs that are read at the same time, and so the memory for logs that are not added yet.
	maxConcurrentLogs = 8
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
		Use:   "report [FILE|node/NAME|noderetirement/NAME...]",
		Short: "Make an HTML page about drains, a retirement or a time range",
		Long: `Report makes one HTML page that needs no other file and no network. For each drain it has a chart with a row per pod: when
its eviction was requested, which PodDisruptionBudget blocked it, how long it was terminating, and whether it was
deleted without eviction. It also has the decisions with their reasons, and the Events.

A FILE contains drain reports of "slipway drain -o json", NodeRetirements or Events as JSON or YAML, or JSON logs of agents
and managers, also mixed. "-" is standard input. For node/NAME and noderetirement/NAME, report reads the NodeRetirements and the
Events from the cluster, and the logs of the manager and of the agent on the node. Without an argument, --since selects a
time range, and report does the same for all nodes. It limits how many objects and logs it then reads. A part that cannot be
read or is left out is named on the page and on standard error.`,
		Example: `  slipway drain node-7 --deadline 30s -o json > drain.json; slipway report drain.json -o drain.html
  slipway report noderetirement/node-7-x2m4z -o node-7.html
  slipway report node/node-7 --since 1h -o node-7.html
  slipway report --since 1h -o last-hour.html
  kubectl logs -n slipway slipway-agent-x7k2p | slipway report - -o node-7.html`,
		Args: cobra.ArbitraryArgs,
		RunE: f.run,
	}
	fs := cmd.Flags()
	fs.StringVar(&f.since, "since", "", "start of the time range: a duration before now, such as 1h, or a time in RFC 3339")
	fs.StringVar(&f.until, "until", "", "end of the time range: a duration before now, or a time in RFC 3339")
	fs.StringVar(&f.node, "node", "", "leave out other nodes")
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
		if f.node, err = parseNodeName(f.node); err != nil {
			return fmt.Errorf("--node: %w", err)
		}
		o.Nodes = []string{f.node}
	}
	var in report.Inputs
	if o.From, o.To, err = f.readSubjects(cmd, &in, timeRange{o.From, o.To}, args); err != nil {
		return err
	}
	r := report.Build(&in, o)
	for _, problem := range r.Problems {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s\n", problem)
	}
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

// timeRange is a part of a report. A zero time means no limit.
type timeRange struct{ from, to time.Time }

// joinRanges returns the shortest time range that contains all ranges.
func joinRanges(all []timeRange) (from, to time.Time) {
	from, to = all[0].from, all[0].to
	for _, r := range all {
		if r.from.Before(from) { // also a zero time
			from = r.from
		}
		if r.to.IsZero() || !to.IsZero() && r.to.After(to) {
			to = r.to
		}
	}
	return from, to
}

// readSubjects reads the inputs that the arguments name. Without arguments, it reads the time range. It returns the time range of
// the report.
func (f *reportFlags) readSubjects(cmd *cobra.Command, in *report.Inputs, r timeRange, args []string) (from, to time.Time, err error) {
	switch {
	case len(args) == 0 && f.node != "":
		args = []string{"node/" + f.node}
	case len(args) == 0 && r.from.IsZero():
		return r.from, r.to, errors.New("no argument and no --since: want FILE, node/NAME or noderetirement/NAME, or --since for a time range of all nodes")
	case len(args) == 0:
		reader, err := f.newClusterReader(in)
		if err != nil {
			return r.from, r.to, err
		}
		return r.from, r.to, reader.readRange(cmd.Context(), r)
	}
	ranges := make([]timeRange, len(args))
	for i, arg := range args {
		if ranges[i], err = f.readSubject(cmd, in, r, arg); err != nil {
			return r.from, r.to, err
		}
	}
	from, to = joinRanges(ranges)
	return from, to, nil
}

// readSubject reads the input that an argument names. It returns the time range that the report of this input has.
func (f *reportFlags) readSubject(cmd *cobra.Command, in *report.Inputs, r timeRange, arg string) (timeRange, error) {
	kind, name, found := strings.Cut(arg, "/")
	switch {
	case arg == "-":
		data, err := io.ReadAll(cmd.InOrStdin())
		if err != nil {
			return r, err
		}
		return r, in.Read("standard input", data)
	case found && (kind == "node" || kind == "nodes" || isRetirementKind(kind)):
		if name == "" {
			return r, fmt.Errorf("%q: the name is empty: want %s/NAME", arg, kind)
		}
		if !isRetirementKind(kind) {
			var err error
			if name, err = parseNodeName(arg); err != nil {
				return r, err
			}
		}
		reader, err := f.newClusterReader(in)
		if err != nil {
			return r, err
		}
		if isRetirementKind(kind) {
			return reader.readRetirement(cmd.Context(), name, r)
		}
		return r, reader.readNode(cmd.Context(), name, r.from)
	}
	data, err := os.ReadFile(arg)
	if errors.Is(err, os.ErrNotExist) {
		return r, fmt.Errorf("%w: want a file, node/NAME or noderetirement/NAME", err)
	}
	if err != nil {
		return r, err
	}
	return r, in.Read(arg, data)
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
	// hasRead is true if a request succeeded. failure is the first error.
	hasRead bool
	failure error
	// logBytes is how much of logs has been read.
	logBytes int64
}

func (f *reportFlags) newClusterReader(in *report.Inputs) (*clusterReader, error) {
	objects, err := f.kube.newObjectClient()
	if err != nil {
		return nil, err
	}
	core, err := f.kube.newClientset()
	return &clusterReader{in: in, objects: objects, core: core}, err
}

// recordResult records whether a request succeeded. A failure is a problem of the report.
func (c *clusterReader) recordResult(what string, err error) {
	if err == nil {
		c.hasRead = true
		return
	}
	c.in.AddProblem("%s: %v", what, err)
	c.failure = cmp.Or(c.failure, err)
}

// failureOfAll returns the first error if every request failed. A page without content would hide it.
func (c *clusterReader) failureOfAll() error {
	if c.hasRead {
		return nil
	}
	return c.failure
}

// readRetirement reads a retirement and the records about its node. It returns the time range of its report.
func (c *clusterReader) readRetirement(ctx context.Context, name string, r timeRange) (timeRange, error) {
	var rt v1alpha1.NodeRetirement
	if err := c.objects.Get(ctx, client.ObjectKey{Name: name}, &rt); err != nil {
		return r, explainMissingTypes(err)
	}
	if r.from.IsZero() {
		r.from = rt.CreationTimestamp.Add(-reportMargin)
	}
	if end := rt.Status.Times.Finished; r.to.IsZero() && end != nil {
		r.to = end.Add(reportMargin)
	}
	if err := c.addRetirements(rt); err != nil {
		return r, err
	}
	return r, c.readNodeRecords(ctx, rt.Spec.NodeName, []string{rt.Name}, r.from)
}

// readNode reads the retirements of a node and the records about it. It returns an error if nothing can be read.
func (c *clusterReader) readNode(ctx context.Context, node string, from time.Time) error {
	if err := c.objects.Get(ctx, client.ObjectKey{Name: node}, &corev1.Node{}); apierrors.IsNotFound(err) {
		c.in.AddProblem("node %s: the Node does not exist", node) // its records may still exist
	} else if err != nil {
		c.recordResult("node "+node, err)
	}
	// Kubernetes 1.30 has no field selector for spec.nodeName.
	of := slices.DeleteFunc(c.listRetirements(ctx), func(rt v1alpha1.NodeRetirement) bool { return rt.Spec.NodeName != node })
	var names []string
	for _, rt := range of {
		names = append(names, rt.Name)
	}
	if err := c.addRetirements(of...); err != nil {
		return err
	}
	if err := c.readNodeRecords(ctx, node, names, from); err != nil {
		return err
	}
	return c.failureOfAll()
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

// readNodeRecords reads the Events about a node and its retirements, and what the logs of Slipway have about the node.
func (c *clusterReader) readNodeRecords(ctx context.Context, node string, retirements []string, from time.Time) error {
	if err := c.readEvents(ctx, "Node", node); err != nil {
		return err
	}
	for _, name := range retirements {
		if err := c.readEvents(ctx, "NodeRetirement", name); err != nil {
			return err
		}
	}
	pods, err := doctor.ListOwnPods(ctx, c.objects)
	c.recordResult("pods of Slipway", err)
	pods = slices.DeleteFunc(pods, func(p doctor.OwnPod) bool {
		return p.Part != doctor.Manager && (p.Part != doctor.Agent || p.Node != node)
	})
	for _, part := range []doctor.PartKind{doctor.Agent, doctor.Manager} {
		if err == nil && !slices.ContainsFunc(pods, func(p doctor.OwnPod) bool { return p.Part == part }) {
			c.in.AddProblem("node %s: no pod of the %s was found, so its log is missing (label app.kubernetes.io/name)", node, part)
		}
	}
	c.readLogs(ctx, pods, node, from)
	return nil
}

// readEvents reads the Events about an object, or about all objects of a kind if the name is empty.
func (c *clusterReader) readEvents(ctx context.Context, kind, name string) error {
	about, what := fields.Set{"involvedObject.kind": kind}, "Events of "+kind+"s"
	if name != "" {
		about["involvedObject.name"], what = name, "Events of "+kind+" "+name
	}
	var events []any
	c.readPages(what, func(token string) (int, string, error) {
		list, err := c.core.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: about.String(), Limit: reportPageSize, Continue: token})
		if err != nil {
			return 0, "", err
		}
		for _, e := range list.Items {
			e.ManagedFields = nil
			events = append(events, e)
		}
		return len(list.Items), list.Continue, nil
	})
	if len(events) == 0 {
		return nil
	}
	return c.add(what, events...)
}

// podLog is the log of one pod.
type podLog struct {
	pod  doctor.OwnPod
	data []byte
	err  error
}

// readLogs reads what the logs of pods have about a node, or about all nodes if the node is empty. It reads several logs at a time and
// adds them in the order of the pods, so that the first pods get the limit of all logs. A log that is missing is only a problem
// of the report.
func (c *clusterReader) readLogs(ctx context.Context, pods []doctor.OwnPod, node string, from time.Time) {
	reads := make([]chan podLog, len(pods))
	for i, started := 0, 0; i < len(pods); i++ {
		for ; started < min(i+maxConcurrentLogs, len(pods)); started++ {
			read := make(chan podLog, 1)
			reads[started] = read
			if p := pods[started]; c.logBytes < maxReportLogsBytes {
				go func() { read <- c.readLog(ctx, p, from) }()
			} else {
				read <- podLog{pod: p}
			}
		}
		c.addLog(<-reads[i], node, from)
	}
}

// readLog reads the log of a pod, at most maxReportLogBytes.
func (c *clusterReader) readLog(ctx context.Context, p doctor.OwnPod, from time.Time) podLog {
	o := corev1.PodLogOptions{Container: p.Container}
	if from.IsZero() {
		o.TailLines = new(int64(maxReportLogLines)) // LimitBytes would cut the newest of these lines
	} else {
		o.SinceTime, o.LimitBytes = &metav1.Time{Time: from}, new(int64(maxReportLogBytes))
	}
	bounded, cancel := context.WithTimeout(ctx, reportLogTimeout)
	defer cancel()
	log := podLog{pod: p}
	stream, err := c.core.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &o).Stream(bounded)
	if err == nil {
		log.data, err = readLastBytes(stream, maxReportLogBytes)
		_ = stream.Close()
	}
	log.err = err
	return log
}

// addLog adds what a log has about a node, as far as the limit of all logs allows.
func (c *clusterReader) addLog(log podLog, node string, from time.Time) {
	name := "log of pod " + log.pod.Namespace + "/" + log.pod.Name
	limit := int(min(maxReportLogBytes, maxReportLogsBytes-c.logBytes))
	if limit <= 0 {
		c.in.AddProblem("%s: was not read, because %d MiB of other logs were: want a shorter time range, or node/NAME", name, maxReportLogsBytes>>20)
		return
	}
	c.recordResult(name, log.err)
	if log.err != nil || len(log.data) == 0 {
		return
	}
	data := log.data
	switch {
	case len(data) < limit:
	case from.IsZero():
		data = data[len(data)-limit:]
		data = data[bytes.IndexByte(data, '\n')+1:] // the first line is cut
		c.in.AddProblem("%s: only its last %d KiB were read: want --since", name, limit>>10)
	default:
		data = data[:limit]
		data = data[:bytes.LastIndexByte(data, '\n')+1] // the last line is cut
		c.in.AddProblem("%s: only its first %d KiB were read: want a shorter time range", name, limit>>10)
	}
	c.logBytes += int64(min(len(log.data), limit))
	if err := c.in.ReadLogOfNode(name, data, node); err != nil {
		c.in.AddProblem("%v", err)
	}
}

// readLastBytes reads a stream to its end, and returns at most its last limit bytes.
func readLastBytes(r io.Reader, limit int64) ([]byte, error) {
	var last bytes.Buffer
	for {
		_, err := io.CopyN(&last, r, limit)
		last.Next(max(0, last.Len()-int(limit)))
		if errors.Is(err, io.EOF) {
			return last.Bytes(), nil
		}
		if err != nil {
			return nil, err
		}
	}
}
